"""Dovetail's own strategies: searches over sets of materialized joins, which determine the plan."""
