"""Shed the oldest tuple. Not in the paper; best when matches follow quickly."""

from __future__ import annotations

from dovetail.engine.kernels.tuple_table import FIFO
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("fifo", FIFO)
