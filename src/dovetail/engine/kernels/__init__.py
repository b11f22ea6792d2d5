"""Compiled loops over arrays and scalars: no allocation on the data path, no checks, no Arrow."""
