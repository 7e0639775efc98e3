"""Published and measured values beside computed ones."""
