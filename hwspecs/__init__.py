"""Devices and language models: one TOML file each, in devices/ and models/; see the README for the fields."""
