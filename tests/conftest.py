"""Shared fixtures: hypothesis without deadlines (shared machines are noisy), small models and devices."""

from hypothesis import settings

settings.register_profile("dse", deadline=None, max_examples=100)
settings.load_profile("dse")
