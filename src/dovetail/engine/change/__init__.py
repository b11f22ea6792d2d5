"""A running engine takes over another plan."""
