"""Data that ships with the tool: what the papers claim. See README.md in this directory."""
