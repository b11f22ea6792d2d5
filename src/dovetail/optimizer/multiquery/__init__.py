"""Many queries, one plan that fits a CPU and a memory budget (Alrahmani, chapter 3). One file per algorithm."""
