"""Cost models: produced tuples, comparisons, milliseconds and bytes."""
