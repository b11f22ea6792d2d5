"""What is counted and estimated while queries run: plain figures that add up over shards."""
