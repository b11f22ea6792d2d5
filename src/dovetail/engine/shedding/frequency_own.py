"""Shed the tuple whose key is rarest in its own window: the other reading of the frequency-based algorithm.

Ties shed the oldest tuple first, so where keys do not repeat this policy equals `fifo`.
"""

from __future__ import annotations

from dovetail.engine.kernels.tuple_table import FREQUENCY_OWN
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("frequency-own", FREQUENCY_OWN)
