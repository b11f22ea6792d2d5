"""Counters and estimates of running queries, as frozen data that adds up over shards."""
