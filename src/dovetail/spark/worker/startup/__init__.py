"""Code that Spark's Python processes run when they start: this directory is on their PYTHONPATH."""
