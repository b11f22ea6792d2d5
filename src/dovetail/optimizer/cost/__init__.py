"""What plans cost: produced tuples, comparisons, milliseconds and bytes."""
