"""Orders that begin alike: of orders that cost about the same, queries take those whose first probes others make as well.

A stage that several paths have in common is probed once (`plan.stems`), so each of them is charged its part. From the orders that the
joins have by themselves, each path in turn takes the one that is cheapest for it given all others, until none changes. What all
stages cost together falls with every change, so that comes to an end. An order that costs much more alone is not taken: estimates
err, and those who share it may leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from dovetail.config import Config
from dovetail.optimizer.estimates import estimate
from dovetail.optimizer.graph import JoinGraph
from dovetail.optimizer.planner import access_rule, objective
from dovetail.optimizer.query_graph import join_graph
from dovetail.plan.nodes import ProbePath
from dovetail.plan.paths import PathMaker
from dovetail.plan.stems import Stem, stem
from dovetail.plan.steps import Step

MOST_INPUTS = 5
"""Joins of more keep their orders: there would be too many to try."""
MOST_EXTRA = 1.25
"""What an order may cost by itself, as a multiple of the best."""
_ROUNDS = 4
_LEAST_GAIN = 1e-9


@dataclass(frozen=True)
class _Option:
    """One order of a path."""

    path: ProbePath
    stem: Stem
    stages: tuple[float, ...]
    """What each stage of the stem costs, in partial results that come and are made per second."""
    rest: float
    """What the others cost."""

    @cached_property
    def cost(self) -> float:
        return sum(self.stages) + self.rest

    @cached_property
    def prefixes(self) -> list[Stem]:
        return [self.stem[: length + 1] for length in range(len(self.stem))]


def begin_alike(steps: Sequence[Step], config: Config, given: Collection[str] = ()) -> tuple[Step, ...]:
    """Give the same joins with orders that share their first probes where that is cheaper; those `given` by users stay."""
    if not config.joins_in_turn or config.join == "nested-loop" or len(steps) < 2:
        return tuple(steps)
    choices = [_Choice(step, config, fixed=step.name in given or config.ordering != "weave") for step in steps]
    users: Counter[tuple[str, Stem]] = Counter()
    for choice in choices:
        choice.enter(users)
    for _ in range(_ROUNDS):
        changed = [choice.settle(users) for choice in choices]
        if not any(changed):
            break
    return tuple(choice.result() for choice in choices)


class _Choice:
    """The orders of one join."""

    def __init__(self, step: Step, config: Config, *, fixed: bool) -> None:
        self._step, self._config = step, config
        query, known = step.plan.query, step.plan.known
        self._streams = {ref.alias: ref.stream for ref in query.refs}
        self._fixed = fixed or len(query.refs) > MOST_INPUTS or bool(step.stored_inputs) or bool(step.frontier)
        self._graph = join_graph(query, known.rates, known.hints)
        self._chosen = {path.driver: self._option(path) for path in step.plan.paths}
        self._options = {} if self._fixed else {path.driver: self._others(path) for path in step.plan.paths}

    def _others(self, path: ProbePath) -> list[_Option]:
        """The orders that a path could have, its own first."""
        own, graph = self._chosen[path.driver], self._graph
        if path.driver in self._step.plan.known.forced or path.stages[0].access != "new":
            return [own]
        access, maker = access_rule(self._step.plan.query, graph, self._config), PathMaker(self._step.plan.query)
        orders = [order for order in _orders(graph, (path.driver,)) if order != path.order]
        options = [self._option(maker.path(path.driver, order, access)) for order in orders]
        return [own, *(option for option in options if option.cost <= MOST_EXTRA * own.cost)]

    def _option(self, path: ProbePath) -> _Option:
        shared = stem(self._step, path)
        rows = [self._graph.rates[path.driver]]
        for place, alias in enumerate(path.order[1:], 1):
            rows.append(rows[-1] * self._graph.extension(path.order[:place], alias))
        costs = [before + after for before, after in pairwise(rows)]
        return _Option(path, shared, tuple(costs[: len(shared)]), sum(costs[len(shared) :]))

    def enter(self, users: Counter[tuple[str, Stem]]) -> None:
        """Count the stages that the join's paths have now."""
        for driver, option in self._chosen.items():
            users.update((self._streams[driver], prefix) for prefix in option.prefixes)

    def settle(self, users: Counter[tuple[str, Stem]]) -> bool:
        """Take for each path the order that is cheapest given all others; say whether one has changed."""
        changed = False
        for driver, options in self._options.items():
            if len(options) < 2:
                continue
            stream, before = self._streams[driver], self._chosen[driver]
            users.subtract((stream, prefix) for prefix in before.prefixes)

            def charged(option: _Option, stream: str = stream) -> float:
                shares = (
                    cost / (1 + users[stream, prefix])
                    for cost, prefix in zip(option.stages, option.prefixes, strict=True)
                )
                return option.rest + sum(shares)

            best = min(options, key=charged)
            if best is not before and charged(best) < charged(before) * (1 - _LEAST_GAIN):
                self._chosen[driver], changed = best, True
            users.update((stream, prefix) for prefix in self._chosen[driver].prefixes)
        return changed

    def result(self) -> Step:
        """The join with the orders that were taken."""
        plan = self._step.plan
        paths = tuple(self._chosen[path.driver].path for path in plan.paths)
        if paths == plan.paths:
            return self._step
        orders = {path.driver: path.order for path in paths}
        expected = estimate(self._graph, orders, objective(self._config))
        return replace(self._step, plan=replace(plan, paths=paths, estimate=expected))


def _orders(graph: JoinGraph, joined: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All orders that begin so and in which a probe leads to each input."""
    if len(joined) == len(graph.rates):
        yield joined
        return
    for name in graph.rates:
        if name not in joined and graph.connected(joined, name):
            yield from _orders(graph, (*joined, name))
