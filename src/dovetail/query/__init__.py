"""Queries as frozen data, and the SQL front end that produces them."""
