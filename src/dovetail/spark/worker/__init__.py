"""Python workers: route tuples to shards, and join one batch of one shard."""
