"""From queries and statistics to a plan: pure functions over frozen data."""
