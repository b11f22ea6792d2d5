"""Builds probe paths: the stages that carry out an order of aliases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.plan.query_plan import Access, KeyPart, ProbePath, ProbeStage
from dovetail.query.expressions import Expression
from dovetail.query.model import Condition, JoinQuery, Key

AccessRule = Callable[[str, bool], Access]
"""Chooses how a stage finds its rows, given the alias and whether it has a key."""


class PathBuilder:
    """Builder of the paths of one query.

    It collects the keys and conditions of each alias once, for any number of orders.
    """

    def __init__(self, query: JoinQuery) -> None:
        self._keys: dict[str, list[tuple[int, Expression]]] = {alias: [] for alias in query.aliases}
        for index, group in enumerate(query.classes):
            for alias in dict.fromkeys(key.alias for key in group.keys):
                self._keys[alias].append((index, group.of(alias)[0]))
        for parts in self._keys.values():
            # One canonical order, so that all paths share the same indexes.
            parts.sort(key=lambda part: str(part[1]))
        # Equalities that hashing in their class's type does not prove are checked like any other condition.
        inexact = tuple(Condition(edge.expression, edge.text) for edge in query.inexact_equalities)
        self._conditions: dict[str, list[tuple[frozenset[str], Condition]]] = {alias: [] for alias in query.aliases}
        for condition in query.conditions + inexact:
            needed = frozenset(condition.aliases)
            for alias in needed:
                self._conditions[alias].append((needed, condition))

    def path(self, driver: str, order: Sequence[str], access: AccessRule) -> ProbePath:
        """Build the path of `driver`'s new tuples along `order`.

        The order holds every alias once, the driver included.
        """
        stages, joined = [], set[str]()
        sources: dict[int, Key] = {}
        """Key of the first alias in each class."""
        for alias in order:
            joined.add(alias)
            key = tuple(KeyPart(target, sources[index]) for index, target in self._keys[alias] if index in sources)
            conditions = tuple(condition for needed, condition in self._conditions[alias] if needed <= joined)
            stage_access: Access = "new" if alias == driver else access(alias, bool(key))
            stages.append(ProbeStage(alias, stage_access, key, conditions))
            for index, target in self._keys[alias]:
                sources.setdefault(index, Key(alias, target))
        return ProbePath(driver, tuple(stages))


def build_path(query: JoinQuery, driver: str, order: Sequence[str], access: AccessRule) -> ProbePath:
    """Build one path of a query."""
    return PathBuilder(query).path(driver, order, access)
