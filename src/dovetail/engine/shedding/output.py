"""Shed the tuple whose key has given the fewest results (Srivastava and Widom, as described by Kwon et al.).

A key's results are counted as long as some window holds it.
"""

from __future__ import annotations

from dovetail.engine.kernels.tuple_table import OUTPUT
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("output", OUTPUT)
