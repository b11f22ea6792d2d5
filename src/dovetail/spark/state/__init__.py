"""State of a shard: its log in Spark's state store, and its arrays in shared memory."""
