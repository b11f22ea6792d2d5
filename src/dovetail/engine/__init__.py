"""The engine of one shard: Arrow batches and progress in, result batches out. No Spark, no wall clock."""
