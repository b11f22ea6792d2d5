"""Checkpoints: directories and locks, the plan log, compatibility, resharding."""
