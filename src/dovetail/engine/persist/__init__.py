"""Persistence of an engine: snapshots, mapped arrays, and the checks of what is read back."""
