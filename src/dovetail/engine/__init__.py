"""One shard: Arrow batches and progress in, result batches out. No Spark, no wall clock."""
