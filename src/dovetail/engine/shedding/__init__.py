"""Load shedding: which tuples to drop under a cap, and the recall that remains. Start reading at `shedder.Shedder`."""

from __future__ import annotations

from dovetail.engine.shedding import arrival_order, fifo, frequency, frequency_own, output, random

POLICIES = {
    module.POLICY.name: module.POLICY for module in (arrival_order, frequency, frequency_own, output, random, fifo)
}
"""Policies other than `auto`, which selects among some of them."""
