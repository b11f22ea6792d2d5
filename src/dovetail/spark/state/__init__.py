"""What a shard keeps: its log in Spark's state store, and its arrays in shared memory."""
