"""Specifications that a user names or writes: devices, language models, token policies, workloads, measured numbers."""
