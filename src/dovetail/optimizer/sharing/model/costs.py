"""Cost of plans with n-ary, binary and materialized joins: equations 2-1 to 2-6 of Alrahmani.

    CPU     C_i + C_d for every tuple that enters a window or a materialized join, C_j for every tuple that a join produces;
            and, beyond the thesis, a price for every probe and for every delivered result (zero in its figures)
    memory  the tuples in all windows and materialized joins, in bytes

A join over inputs that are sub-joins themselves produces, from the new tuples of input i along its path, pace_i · Σ_k f(S_k),
where S_k are the sets of base inputs joined along the path and f is their size: 2-1 (all binary), 2-3 (no sub-joins) and 2-5
(both) are instances. C_j is charged per produced tuple, final results included. One of `ordering.METHODS` orders all joins (the thesis
uses Viglas's greedy orders; its printed equations hold for the orders of its figure 2-4).

A query with smaller windows than a materialized join that it reads pays for all matches that a probe finds, and continues with those
inside its own windows. Base windows are ordered by time, so a probe never reads tuples outside (largest window only, 2.1.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TypeAlias

from dovetail.config import Ordering
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.indexed import IndexedGraph, KeyClass, members
from dovetail.optimizer.ordering import METHODS
from dovetail.optimizer.ordering.problem import OrderingProblem
from dovetail.optimizer.sharing.model.query_set import NumberedQuery, QuerySet, SubJoin
from dovetail.plan.shared_plan import Load
from dovetail.stats.probes import Objective

Parts: TypeAlias = tuple[SubJoin, ...]
"""The inputs of an operator: base windows and materialized joins."""


@dataclass(frozen=True, slots=True)
class JoinCost:
    """An operator's probe orders and their work per second."""

    paths: tuple[tuple[int, ...], ...]
    """For each input, the indexes of all inputs, itself first."""
    produced: float
    probes: float


class CostModel:
    """Costs of operators, materialized joins and windows of a query set; results are cached."""

    def __init__(
        self, query_set: QuerySet, units: UnitCosts, ordering: Ordering = "weave", objective: Objective = "produced"
    ) -> None:
        self.query_set = query_set
        self.units = units
        self._order = METHODS[ordering]
        self._objective = objective
        self._joins: dict[tuple[int, tuple[float, ...], Parts], JoinCost] = {}
        self._materializations: dict[SubJoin, Load] = {}

    def join(self, sub_join: SubJoin, parts: Parts) -> JoinCost:
        """Return the orders and work of an operator that produces `sub_join` from `parts`."""
        key = (sub_join.signature, sub_join.window_seconds, parts)
        if key not in self._joins:
            self._joins[key] = self._price(sub_join, parts)
        return self._joins[key]

    def cpu(self, sub_join: SubJoin, parts: Parts) -> float:
        """Return the milliseconds per second of an operator's joining.

        Those of its windows and materialized joins are not included.
        """
        cost = self.join(sub_join, parts)
        calls = len(parts) ** 2 * self.units.batch_stage
        return cost.produced * self.units.join + cost.probes * self.units.probe + calls

    @property
    def total_delivery_cost(self) -> float:
        """Milliseconds per second to gather the results of all queries."""
        return sum(map(self.delivery_cost, range(len(self.query_set.queries))))

    def delivery_cost(self, query: int) -> float:
        """Return the milliseconds per second to gather the results of `query`, the same in every plan."""
        results = self.query_set.rate(self.query_set.sub_join(query, self.query_set.queries[query].all))
        return results * self.units.result + self.units.batch_result

    def materialization(self, sub_join: SubJoin) -> Load:
        """Return the load of materializing `sub_join`: inserts, deletes and bytes."""
        if sub_join not in self._materializations:
            size, rate = self.query_set.size(sub_join), self.query_set.rate(sub_join)
            match_bytes = self.units.bytes_per_match(sub_join.mask.bit_count())
            self._materializations[sub_join] = Load(
                rate * self.units.keep_match + self.units.batch_store, size * match_bytes
            )
        return self._materializations[sub_join]

    def window(self, stream: str, seconds: float) -> Load:
        """Return the load of a window of `seconds` seconds of `stream`."""
        rate = self.query_set.stream_rate(stream)
        return Load(rate * self.units.keep, rate * seconds * self.units.window_bytes(stream))

    def window_seconds(self, sub_joins: Iterable[SubJoin]) -> dict[str, float]:
        """Return, by stream, the largest window that a producer of `sub_joins` reads."""
        window_seconds: dict[str, float] = {}
        for sub_join in sub_joins:
            for source, seconds in self.query_set.window_seconds_of(sub_join).items():
                stream = self.query_set.sources[source].stream
                window_seconds[stream] = max(seconds, window_seconds.get(stream, 0.0))
        return window_seconds

    def windows(self, sub_joins: Iterable[SubJoin]) -> Load:
        """Return the load of the windows of the producers of `sub_joins`, shared between them."""
        return Load.total(self.window(stream, seconds) for stream, seconds in self.window_seconds(sub_joins).items())

    def least_windows(self) -> Load:
        """Return the load of the windows of all queries, a lower bound for every plan."""
        queries = range(len(self.query_set.queries))
        return self.windows(self.query_set.sub_join(query, self.query_set.queries[query].all) for query in queries)

    def parts(self, sub_join: SubJoin, materialized: Collection[SubJoin] = ()) -> Parts:
        """Return the inputs of an operator, ordered by their first input.

        It reads `materialized` joins and base windows.
        """
        remaining, parts = sub_join.mask, list[tuple[int, SubJoin]]()
        for join in materialized:
            mask = self.query_set.mask(join.signature, sub_join.query)
            parts.append((mask & -mask, join))
            remaining &= ~mask
        window_seconds = self.query_set.window_seconds_of(sub_join)
        for index in members(remaining):
            parts.append((1 << index, self.query_set.sub_join(sub_join.query, 1 << index, window_seconds)))
        return tuple(part for _, part in sorted(parts, key=lambda pair: pair[0]))

    # -- one operator -------------------------------------------------------------------------------------------------------------

    def _price(self, sub_join: SubJoin, parts: Parts) -> JoinCost:
        query_set = self.query_set
        query = query_set.queries[sub_join.query]
        masks = [query_set.mask(part.signature, sub_join.query) for part in parts]
        window_seconds = query_set.window_seconds_of(sub_join)
        inside = [query_set.sub_join(sub_join.query, mask, window_seconds) for mask in masks]
        sizes = [query_set.size(part) for part in inside]
        graph = _coarse(query, masks, sizes, [query_set.rate(part) for part in inside])
        is_own = sub_join == query_set.sub_join(sub_join.query, sub_join.mask) and all(part.is_base for part in parts)
        chosen = query.paths.get(sub_join.mask) if is_own else None
        paths = chosen or self._order(OrderingProblem(graph, self._objective)).paths
        # `query.size` is for the query's own windows; the sub-join's may be larger.
        wider = [size / query.size(mask) for size, mask in zip(sizes, masks, strict=True)]
        # A join materialized with larger windows yields more matches than continue.
        surplus = [query_set.size(part) / size for part, size in zip(parts, sizes, strict=True)]
        produced = probes = 0.0
        for path in paths:
            joined, scale, grown, probing = masks[path[0]], wider[path[0]], 0.0, 0.0
            for index in path[1:]:
                probing += query.size(joined) * scale
                joined |= masks[index]
                scale *= wider[index]
                grown += query.size(joined) * scale * surplus[index]
            produced += grown / graph.windows[path[0]]
            probes += probing / graph.windows[path[0]]
        return JoinCost(tuple(tuple(path) for path in paths), produced, probes)


def _coarse(query: NumberedQuery, masks: Sequence[int], sizes: Sequence[float], rates: Sequence[float]) -> IndexedGraph:
    """Return the join graph over sub-joins of `query`.

    Factors between two sub-joins multiply; a key has the least distinct count inside its sub-join.
    """
    count, graph = len(masks), query.graph
    factors = [[1.0] * count for _ in masks]
    neighbours = [0] * count
    for first, second in combinations(range(count), 2):
        if query.linked(masks[first]) & masks[second]:
            rows = (graph.factors[index] for index in members(masks[first]))
            factor = prod(row[other] for row in rows for other in members(masks[second]))
            factors[first][second] = factors[second][first] = factor
        if query.neighbours(masks[first]) & masks[second]:
            neighbours[first] |= 1 << second
            neighbours[second] |= 1 << first
    classes = [
        KeyClass({index: key_class.least(mask) for index, mask in enumerate(masks) if mask & key_class.members})
        for key_class in graph.classes
    ]
    windows = [size / rate for size, rate in zip(sizes, rates, strict=True)]
    return IndexedGraph(tuple(map(str, range(count))), rates, windows, factors, neighbours, classes)
