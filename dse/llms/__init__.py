"""Language-model data: one TOML file per model; see the README for the fields."""
