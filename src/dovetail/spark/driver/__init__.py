"""The driver: builds and changes the streaming query that Spark runs for declared streams and queries."""
