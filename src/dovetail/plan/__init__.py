"""What will be done: plans as frozen data, and how they are shown."""
