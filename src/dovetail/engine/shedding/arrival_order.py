"""Shed the tuple whose arrival pattern has yielded the fewest results (Kwon, Lee, Kim).

A tuple's existence pattern (definition 1) has a bit for each window that held its key when the tuple arrived. Its priority
(definition 3) is the mean number of results of tuples of its window with the same pattern. A tuple with all bits set has already
given its result and is shed before all others (section 3.2). Ties shed the oldest tuple first.
"""

from __future__ import annotations

from dovetail.engine.kernels.tuple_table import ARRIVAL_ORDER
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("arrival-order", ARRIVAL_ORDER)
