"""A tree of binary joins: what the global plan has already, then the lightest edge again and again (Alrahmani, algorithm 6).

A coalesced vertex has the rate of the composite, Σ_i λ_i·Π_{j≠i} λ_jW·Πσ. The thesis assigns 2·λ_x·λ_y·σ, which leaves out W; with it,
the printed value is right for two base streams and nearly right above.
"""

from __future__ import annotations

from dovetail.optimizer.multiquery.draft import Subplan, mjoin
from dovetail.optimizer.multiquery.turn import Turn


def bjtree(turn: Turn) -> Subplan:
    """Join two at a time, and store every result but the last."""
    subplan = mjoin(turn.model, turn.query)
    while len(subplan.parts) > 2 and (known := turn.known_unions(subplan)):
        subplan = turn.reused(subplan, *known[0])
    while len(subplan.parts) > 2 and (pairs := list(turn.pairs(subplan))):
        subplan = turn.stored(subplan, *min(pairs, key=lambda pair: turn.weight(*pair)))
    return subplan
