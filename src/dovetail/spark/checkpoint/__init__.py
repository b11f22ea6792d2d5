"""Checkpoints: the plan log, compatibility, resharding."""
