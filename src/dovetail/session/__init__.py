"""Sessions: what a user declares, what runs of it, and when it is planned again."""
