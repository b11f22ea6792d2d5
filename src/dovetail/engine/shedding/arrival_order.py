"""Kwon, Lee, Kim: tuples whose key has been seen, when they came, in windows that promise few results go first.

A tuple's existence pattern (definition 1) has a bit for each window that held its key when it came. Its priority (definition 3) is
the mean number of results that tuples of its window with that pattern have been part of. All bits set means that its result is out:
it goes first, as section 3.2 has it. Within a pattern the oldest goes; of patterns with the same priority, the one with the oldest.
"""

from __future__ import annotations

from dovetail.engine.kernels.roster import ARRIVAL_ORDER
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("arrival-order", ARRIVAL_ORDER)
