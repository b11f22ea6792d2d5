"""What plans cost: equations 2-1 to 2-6 of Alrahmani, for any mix of n-ary joins, binary joins and stored sub-joins.

    CPU     C_i + C_d for every tuple that enters a window or a stored sub-join, C_j for every tuple that a join produces;
            and, beyond the thesis, a price for every probe and for every result delivered (zero in its figures)
    memory  the tuples in all windows and stored sub-joins, in bytes

A join over inputs that are sub-joins themselves produces, from the new tuples of input i along its path, pace_i · Σ_k f(S_k),
where S_k are the sets of base inputs that the path has joined and f is their size: 2-1 (all binary), 2-3 (no sub-joins) and 2-5
(both) are instances. C_j is charged per produced tuple, final results included. Orders are chosen by one of `ordering.METHODS`, in
every join by the same (the thesis takes Viglas's greedy ones; its printed equations hold for the orders of its figure 2-4).

A query with smaller windows than a stored sub-join that it reads pays for all that a probe of the sub-join finds, and goes on
with what lies in its own windows. Base windows are in order of time, so there a probe never sees what is outside (largest window
only, 2.1.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TypeAlias

from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.indexed import Indexed, KeyClass, members
from dovetail.optimizer.ordering import METHODS
from dovetail.optimizer.ordering.task import Task
from dovetail.optimizer.sharing.model.workload import NumberedQuery, QuerySet, Target
from dovetail.plan.shared_plan import Load
from dovetail.stats.probes import Objective

Parts: TypeAlias = tuple[Target, ...]
"""The inputs of an operator: base windows and stored sub-joins."""


@dataclass(frozen=True, slots=True)
class JoinCost:
    """An operator's orders, and what they produce."""

    paths: tuple[tuple[int, ...], ...]
    """For each input all inputs by number, itself first."""
    produced: float
    """Per second."""
    probes: float
    """Per second."""


class CostModel:
    """Prices for the operators and states of a workload; every answer is remembered."""

    def __init__(
        self, workload: QuerySet, units: UnitCosts, ordering: str = "weave", objective: Objective = "produced"
    ) -> None:
        self.workload = workload
        self.units = units
        self._order = METHODS[ordering]
        self._objective = objective
        self._joins: dict[tuple[int, tuple[float, ...], Parts], JoinCost] = {}
        self._states: dict[Target, Load] = {}

    def join(self, target: Target, parts: Parts) -> JoinCost:
        """Give the orders of an operator that produces `target` from `parts`, and what they cost."""
        key = (target.signature, target.spans, parts)
        if key not in self._joins:
            self._joins[key] = self._price(target, parts)
        return self._joins[key]

    def cpu(self, target: Target, parts: Parts) -> float:
        """Give the milliseconds per second that an operator joins; its windows and states are priced apart."""
        cost = self.join(target, parts)
        calls = len(parts) ** 2 * self.units.batch_stage
        return cost.produced * self.units.join + cost.probes * self.units.probe + calls

    @property
    def delivering_all(self) -> float:
        """The same for all queries."""
        return sum(map(self.delivering, range(len(self.workload.queries))))

    def delivering(self, query: int) -> float:
        """Give the milliseconds per second that it takes to gather the results of `query`: the same in every plan."""
        results = self.workload.rate(self.workload.target(query, self.workload.queries[query].all))
        return results * self.units.result + self.units.batch_result

    def state(self, target: Target) -> Load:
        """Give what it takes to keep `target`: inserting, deleting, bytes."""
        if target not in self._states:
            size, rate = self.workload.size(target), self.workload.rate(target)
            bytes_each = self.units.state_bytes(target.mask.bit_count())
            self._states[target] = Load(rate * self.units.keep_match + self.units.batch_store, size * bytes_each)
        return self._states[target]

    def window(self, stream: str, span: float) -> Load:
        """Give what it takes to keep `span` seconds of `stream`."""
        rate = self.workload.stream_rate(stream)
        return Load(rate * self.units.keep, rate * span * self.units.window_bytes(stream))

    def spans(self, targets: Iterable[Target]) -> dict[str, float]:
        """Give the streams that the producers of `targets` read, each with the largest window that one of them has on it."""
        spans: dict[str, float] = {}
        for target in targets:
            for source, span in self.workload.spans_of(target).items():
                stream = self.workload.sources[source].stream
                spans[stream] = max(span, spans.get(stream, 0.0))
        return spans

    def windows(self, targets: Iterable[Target]) -> Load:
        """Give what it takes to keep the windows of the producers of `targets`, shared between them."""
        return Load.total(self.window(stream, span) for stream, span in self.spans(targets).items())

    def least_windows(self) -> Load:
        """Give what it takes to keep the windows that all queries have: no plan that shares them keeps less."""
        queries = range(len(self.workload.queries))
        return self.windows(self.workload.target(query, self.workload.queries[query].all) for query in queries)

    def parts(self, target: Target, states: Collection[Target] = ()) -> Parts:
        """Give the inputs of an operator that reads `states`, and base windows for the rest; in order of their first input."""
        left, placed = target.mask, list[tuple[int, Target]]()
        for state in states:
            mask = self.workload.mask(state.signature, target.query)
            placed.append((mask & -mask, state))
            left &= ~mask
        spans = self.workload.spans_of(target)
        for number in members(left):
            placed.append((1 << number, self.workload.target(target.query, 1 << number, spans)))
        return tuple(part for _, part in sorted(placed, key=lambda pair: pair[0]))

    # -- one operator -------------------------------------------------------------------------------------------------------------

    def _price(self, target: Target, parts: Parts) -> JoinCost:
        workload = self.workload
        query = workload.queries[target.query]
        masks = [workload.mask(part.signature, target.query) for part in parts]
        spans = workload.spans_of(target)
        inside = [workload.target(target.query, mask, spans) for mask in masks]
        sizes = [workload.size(part) for part in inside]
        graph = _coarse(query, masks, sizes, [workload.rate(part) for part in inside])
        is_own = target == workload.target(target.query, target.mask) and all(part.is_base for part in parts)
        chosen = query.paths.get(target.mask) if is_own else None
        paths = chosen or self._order(Task(graph, self._objective)).paths
        # Sizes are known for the query's own windows; the target's may be larger.
        wider = [size / query.size(mask) for size, mask in zip(sizes, masks, strict=True)]
        # A sub-join stored with larger windows than ours gives more than goes on.
        surplus = [workload.size(part) / size for part, size in zip(parts, sizes, strict=True)]
        produced = probes = 0.0
        for path in paths:
            joined, scale, grown, probing = masks[path[0]], wider[path[0]], 0.0, 0.0
            for number in path[1:]:
                probing += query.size(joined) * scale
                joined |= masks[number]
                scale *= wider[number]
                grown += query.size(joined) * scale * surplus[number]
            produced += grown / graph.windows[path[0]]
            probes += probing / graph.windows[path[0]]
        return JoinCost(tuple(tuple(path) for path in paths), produced, probes)


def _coarse(query: NumberedQuery, masks: Sequence[int], sizes: Sequence[float], rates: Sequence[float]) -> Indexed:
    """Give the join graph over sub-joins of `query`: edges between two multiply, a common key has the least count inside."""
    count, graph = len(masks), query.graph
    factors = [[1.0] * count for _ in masks]
    near = [0] * count
    for first, second in combinations(range(count), 2):
        if query.linked(masks[first]) & masks[second]:
            rows = (graph.factors[number] for number in members(masks[first]))
            factor = prod(row[other] for row in rows for other in members(masks[second]))
            factors[first][second] = factors[second][first] = factor
        if query.neighbours(masks[first]) & masks[second]:
            near[first] |= 1 << second
            near[second] |= 1 << first
    classes = [
        KeyClass({number: each.least(mask) for number, mask in enumerate(masks) if mask & each.members})
        for each in graph.classes
    ]
    windows = [size / rate for size, rate in zip(sizes, rates, strict=True)]
    return Indexed(tuple(map(str, range(count))), rates, windows, factors, near, classes)
