"""What a user asks for: devices, language models, token policies, workloads, measured numbers."""
