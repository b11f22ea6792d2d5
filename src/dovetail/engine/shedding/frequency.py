"""Shed the tuple whose key is rarest in all windows of the join (Law and Zaniolo, as described by Kwon et al.)."""

from __future__ import annotations

from dovetail.engine.kernels.tuple_table import FREQUENCY
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("frequency", FREQUENCY)
