"""The workers: routing tuples to shards, and joining one batch of one shard."""
