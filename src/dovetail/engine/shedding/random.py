"""Shed a uniformly random tuple."""

from __future__ import annotations

from dovetail.engine.kernels.tuple_table import RANDOM
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("random", RANDOM)
