"""Better plans for queries that run, from what was measured."""
