"""Any tuple goes, each as likely as the others."""

from __future__ import annotations

from dovetail.engine.kernels.roster import RANDOM
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("random", RANDOM)
