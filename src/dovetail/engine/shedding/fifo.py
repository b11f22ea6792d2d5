"""The oldest tuple goes. It is missing from the paper, and best where partners come soon: the oldest have met theirs."""

from __future__ import annotations

from dovetail.engine.kernels.roster import FIFO
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("fifo", FIFO)
