"""Our own strategies: which sub-joins are stored is searched for, and the rest of the plan follows from that."""
