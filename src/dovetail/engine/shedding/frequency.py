"""Law, Zaniolo, as Kwon et al. compare with it: tuples go first whose key is rarest in all windows of the join. Ties by the seed."""

from __future__ import annotations

from dovetail.engine.kernels.roster import FREQUENCY
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("frequency", FREQUENCY)
