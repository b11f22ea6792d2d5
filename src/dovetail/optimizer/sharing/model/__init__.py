"""The model of all strategies: numbered queries, their common sub-joins, costs, and drafts of plans."""
