"""In-memory windows: rows, columns, hash indexes, materialized joins."""
