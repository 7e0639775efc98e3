"""A small language model of our own, run with numpy: its weights, forward pass, KV caches and perplexity."""
