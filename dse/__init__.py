"""Design-space exploration of KV-cache quantization for LLM serving."""

__version__ = "0.1.0"
