"""A Hugging Face config.json as a language model."""
