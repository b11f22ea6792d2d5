"""Plans as frozen data, and their explanations."""
