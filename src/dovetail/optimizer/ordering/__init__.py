"""Probe orders: one file per method."""
