"""The strategy of Alrahmani's thesis and its baselines: one query after the other, in a chosen order."""
