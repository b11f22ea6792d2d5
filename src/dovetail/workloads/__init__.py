"""Streams to try things on: seeded, vectorised generators that are the same on every machine."""
