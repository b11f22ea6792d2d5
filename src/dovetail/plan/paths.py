"""From an order of aliases to the stages that carry it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.plan.nodes import Access, KeyPart, ProbePath, ProbeStage
from dovetail.query.model import Condition, JoinQuery, Key

AccessRule = Callable[[str, bool], Access]
"""Chooses how a stage finds its rows, given the alias and whether an equality leads to it."""


def probe_path(query: JoinQuery, driver: str, order: Sequence[str], access: AccessRule) -> ProbePath:
    """Build the path of `driver`'s new tuples along `order`, which holds every alias once, the driver included."""
    # Equalities that hashing in their class's type does not settle are checked like any other condition.
    checked = query.conditions + tuple(Condition(edge.expression, edge.text) for edge in query.inexact_equalities)
    stages = []
    for place, alias in enumerate(order):
        before = tuple(order[:place])
        key = _key(query, alias, before)
        joined = {*before, alias}
        conditions = tuple(
            condition for condition in checked if alias in condition.aliases and joined.issuperset(condition.aliases)
        )
        chosen: Access = "new" if alias == driver else access(alias, bool(key))
        stages.append(ProbeStage(alias, chosen, key, conditions))
    return ProbePath(driver, tuple(stages))


def _key(query: JoinQuery, alias: str, before: Sequence[str]) -> tuple[KeyPart, ...]:
    parts = []
    for group in query.classes:
        targets = group.of(alias)
        source = next((other for other in before if group.of(other)), None)
        if targets and source is not None:
            parts.append(KeyPart(targets[0], Key(source, group.of(source)[0])))
    # One canonical order, so that all paths share the same indexes.
    return tuple(sorted(parts, key=lambda part: str(part.target)))
