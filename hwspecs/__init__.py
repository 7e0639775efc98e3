"""Device data: one TOML file per device; see the README for the fields."""
