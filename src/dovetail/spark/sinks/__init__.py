"""Sinks: destinations of results, each batch written exactly once."""
