"""Windows in memory: rows, columns, hash indexes, and the joins that are kept as windows."""
