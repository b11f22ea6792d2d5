"""Compiled loops over arrays and scalars. Nothing here allocates on the data path, checks arguments or knows about Arrow."""
