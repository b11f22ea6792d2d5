"""The driver: from declared streams and queries to the streaming query that Spark runs."""
