"""Event time: intake of tuples, stream progress, count windows, expiry."""
