"""Queries of a job file or over files: declared, checked and explained in this process."""
