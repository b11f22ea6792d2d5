"""State removal: from a binary tree towards an n-ary join, the cheapest stored sub-join first (Alrahmani, algorithm 7).

Removing a state makes the operator that produced it and the one that read it into a single n-ary join (op1 is in the subplan, op2 is
the join that *consumes* the state: the printed roles do not work). Each round the state with the smallest ΔCPU / Δmemory goes. States
that the global plan has are never removed: they cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.optimizer.multiquery.draft import Subplan, without
from dovetail.optimizer.multiquery.turn import Turn


def state_removal(turn: Turn, subplan: Subplan) -> Iterator[Subplan]:
    """Give the plans on the way from a tree of binary joins to one n-ary join."""
    while True:
        before = turn.added(subplan)
        smaller = [without(turn.model, subplan, state) for state in subplan.states]
        loads = [turn.added(each) for each in smaller]
        saved = [before.memory - load.memory for load in loads]
        ratios = [
            (load.cpu - before.cpu) / space if space > 0 else float("inf")
            for load, space in zip(loads, saved, strict=True)
        ]
        if not smaller:
            return
        subplan = smaller[ratios.index(min(ratios))]
        yield subplan
