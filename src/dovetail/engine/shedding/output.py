"""Srivastava, Widom, as Kwon et al. compare with it: tuples go first whose key has given fewest results. Ties by the seed.

A key's results are counted as long as some window holds it.
"""

from __future__ import annotations

from dovetail.engine.kernels.roster import OUTPUT
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("output", OUTPUT)
