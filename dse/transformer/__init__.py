"""Language models in numpy: weights of a GGUF file or a Hugging Face directory, their forward pass, caches in the loop."""
