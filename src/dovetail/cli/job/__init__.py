"""Job files: TOML that says what `dovetail run` runs."""
