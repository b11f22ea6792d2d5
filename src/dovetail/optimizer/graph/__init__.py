"""Join graphs: inputs, their rates and windows, and how selectively they join."""
