"""From an order of aliases to the stages that carry it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.plan.query_plan import Access, KeyPart, ProbePath, ProbeStage
from dovetail.query.expressions import Expression
from dovetail.query.model import Condition, JoinQuery, Key

AccessRule = Callable[[str, bool], Access]
"""Chooses how a stage finds its rows, given the alias and whether an equality leads to it."""


class PathMaker:
    """Makes the paths of one query: what each alias has to do with others is looked up once, for any number of orders."""

    def __init__(self, query: JoinQuery) -> None:
        self._keys: dict[str, list[tuple[int, Expression]]] = {alias: [] for alias in query.aliases}
        for number, group in enumerate(query.classes):
            for alias in dict.fromkeys(key.alias for key in group.keys):
                self._keys[alias].append((number, group.of(alias)[0]))
        for parts in self._keys.values():
            # One canonical order, so that all paths share the same indexes.
            parts.sort(key=lambda part: str(part[1]))
        # Equalities that hashing in their class's type does not settle are checked like any other condition.
        checked = query.conditions + tuple(Condition(edge.expression, edge.text) for edge in query.inexact_equalities)
        self._checked: dict[str, list[tuple[frozenset[str], Condition]]] = {alias: [] for alias in query.aliases}
        for condition in checked:
            needed = frozenset(condition.aliases)
            for alias in needed:
                self._checked[alias].append((needed, condition))

    def path(self, driver: str, order: Sequence[str], access: AccessRule) -> ProbePath:
        """Build the path of `driver`'s new tuples along `order`, which holds every alias once, the driver included."""
        stages, joined = [], set[str]()
        sources: dict[int, Key] = {}
        """By class, the first alias that has it."""
        for alias in order:
            joined.add(alias)
            key = tuple(KeyPart(target, sources[number]) for number, target in self._keys[alias] if number in sources)
            conditions = tuple(condition for needed, condition in self._checked[alias] if needed <= joined)
            chosen: Access = "new" if alias == driver else access(alias, bool(key))
            stages.append(ProbeStage(alias, chosen, key, conditions))
            for number, target in self._keys[alias]:
                sources.setdefault(number, Key(alias, target))
        return ProbePath(driver, tuple(stages))


def probe_path(query: JoinQuery, driver: str, order: Sequence[str], access: AccessRule) -> ProbePath:
    """Build one path of a query."""
    return PathMaker(query).path(driver, order, access)
