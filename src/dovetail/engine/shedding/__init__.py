"""What to forget when windows become too large, and what that costs. Start reading at `shedder.Shedder`."""

from __future__ import annotations

from dovetail.engine.shedding import arrival_order, fifo, frequency, frequency_own, output, random

POLICIES = {
    module.POLICY.name: module.POLICY for module in (arrival_order, frequency, frequency_own, output, random, fifo)
}
"""Those that tell by themselves what goes; `auto` follows one of them."""
