"""Language models in numpy: weights from GGUF or Hugging Face files, forward pass, quantized caches in the loop."""
