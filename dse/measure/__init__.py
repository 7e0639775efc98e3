"""Quantizers on real tensors: bits and errors of dumps, of synthetic data and of small language models."""

#: bytes of tensors that are read into memory at once, unless --max-bytes says how many
MAX_BYTES = 4 * 2**30
