"""Probe orders of many joins, chosen together so that paths share stages (`plan.prefixes`).

The objective is the expected cost of each stream's probe tree. A stage that several paths share is charged once: the most probes, rows
and matches of any of them. A path may take any order that equalities and conditions connect; in wide joins, any beginning of one,
completed greedily. Two searches run, and the cheaper tree wins:

- from the current orders, one path after another takes the order that adds least to the tree of all the others;
- the same from an optimistic tree, in which each path has taken the order that would be cheapest if every path that can share a stage
  did. This finds a shared stage that no path would choose alone.

No tree becomes more expensive than before, and a stream whose paths would share too little for a tree keeps its orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from dovetail.config import Config, can_share_stages
from dovetail.optimizer.graph.indexed import IndexedGraph, Prefix, members
from dovetail.plan.paths import AccessRule, PathBuilder
from dovetail.plan.prefixes import PathName, Probe, ShareablePrefix, can_share, group_prefixes, shareable_prefix
from dovetail.query.model import JoinQuery, TimeWindow

Order: TypeAlias = tuple[str, ...]
"""All inputs of a join in probe order, the driver first."""
MAX_ORDERS = 24
"""The most orders that a path may choose from: all orders of five inputs."""
_ROUNDS = 8
_ROUNDING = 1 + 1e-9


def can_share_orders(config: Config) -> bool:
    """Whether orders of joins are chosen together: stages can be shared, and the method is `weave`."""
    return config.ordering == "weave" and can_share_stages(config) and config.join != "nested-loop"


@dataclass(frozen=True)
class ReorderableJoin:
    """A join whose probe orders may change."""

    name: str
    query: JoinQuery
    """Its aliases include the join's inputs."""
    graph: IndexedGraph
    """The query's graph, with the join's windows."""
    access: AccessRule
    orders: Mapping[str, Order]
    """Current orders by driver."""
    fixed: Collection[str] = ()
    """Drivers whose orders must not change."""
    scope: str = ""
    """Joins of different scopes share nothing."""
    measured_gain: Callable[[str, Order, Order], float | None] | None = None
    """Measured cost ratio of a driver's first order to its second, both without the driver; None if not measured."""


class SharedOrders(NamedTuple):
    """Orders that were chosen together."""

    orders: dict[PathName, Order]
    """The orders that change."""
    cost_ratio: float
    """Expected cost of all paths in these orders and in trees, divided by their cost without sharing."""


def choose_shared_orders(joins: Sequence[ReorderableJoin], gain: float = 1.0) -> SharedOrders:
    """Choose the orders of joins together.

    A new order must make its path `gain` times cheaper, or new orders the whole tree.
    """
    drivers: dict[tuple[str, str], list[tuple[ReorderableJoin, str]]] = {}
    for join in joins:
        if all(isinstance(ref.window, TimeWindow) for ref in join.query.refs):
            for driver in join.orders:
                drivers.setdefault((join.scope, join.query.ref(driver).stream), []).append((join, driver))
    orders, separate, shared = dict[PathName, Order](), 0.0, 0.0
    builders = {join.name: PathBuilder(join.query) for join in joins}
    for paths in drivers.values():
        tree = _Tree([_path(join, driver, builders[join.name], gain) for join, driver in paths], gain)
        separate += tree.separate_cost
        if can_share([(join.name, len(join.orders)) for join, _ in paths]):
            orders |= tree.changes()
        shared += tree.cost
    return SharedOrders(orders, shared / separate if separate else 1.0)


class _Stage(NamedTuple):
    """A stage of a path, with its expected work per second."""

    node: int
    probes: float
    matches: float


class _Choice:
    """An order that a path may take."""

    __slots__ = ("cost", "order", "prefix", "rows", "stages", "unshared_cost")

    def __init__(self, order: Order, prefix: ShareablePrefix, rows: list[float], unshared_cost: float) -> None:
        self.order, self.prefix = order, prefix
        self.rows = rows
        """Partial matches per second after each stage of the prefix, new tuples first."""
        self.unshared_cost = unshared_cost
        """Cost of the stages after the prefix."""
        self.cost = unshared_cost + sum(_stage_cost(probes, matches) for probes, matches in pairwise(rows))
        self.stages: list[_Stage] = []


class _Path(NamedTuple):
    name: PathName
    rate: float
    choices: list[_Choice]
    """The current order first."""


def _stage_cost(probes: float, matches: float) -> float:
    """Return the cost of a stage: its probes, and its matches as rows compared and as partial matches."""
    return probes + 2 * matches


def _path(join: ReorderableJoin, driver: str, builder: PathBuilder, gain: float) -> _Path:
    graph = join.graph
    indexes = {alias: index for index, alias in enumerate(graph.names)}
    inputs = sum(1 << indexes[alias] for alias in join.orders)
    start, rate = 1 << indexes[driver], graph.rates[indexes[driver]]
    rows = {start: rate}
    """Partial matches per second, by set of inputs."""

    def choice(order: Order) -> _Choice:
        path = builder.path(driver, order, join.access)
        prefix, prefix_rows, joined, unshared_cost = shareable_prefix(join.query, path), [rate], start, 0.0
        for depth, stage in enumerate(path.stages[1:]):
            index = indexes[stage.alias]
            probes, larger = rows[joined], joined | 1 << index
            if larger not in rows:
                rows[larger] = probes * graph.extension(joined, index)
            if depth < len(prefix):
                prefix_rows.append(rows[larger])
            elif stage.access == "hash":
                unshared_cost += _stage_cost(probes, rows[larger])
            else:
                unshared_cost += probes * graph.sizes[index] + rows[larger]
            joined = larger
        return _Choice(order, prefix, prefix_rows, unshared_cost)

    current = choice(join.orders[driver])
    choices = [current]
    if driver not in join.fixed:
        for order in _orders(graph, indexes[driver], inputs):
            other = choice(order) if order != current.order else current
            if other is not current and not _is_refuted(join, driver, current, other, gain):
                choices.append(other)
    return _Path((join.name, driver), rate, choices)


def _is_refuted(join: ReorderableJoin, driver: str, current: _Choice, other: _Choice, gain: float) -> bool:
    """Whether measurements contradict an order that is expected to be cheaper."""
    if join.measured_gain is None or other.cost >= current.cost:
        return False
    measured = join.measured_gain(driver, current.order[1:], other.order[1:])
    return measured is not None and measured <= gain


def _orders(graph: IndexedGraph, driver: int, inputs: int) -> Iterator[Order]:
    """Yield orders of `inputs` without cross products.

    These are all orders, or one for each beginning of as many stages as `MAX_ORDERS` allows.
    """
    count = inputs.bit_count() - 1
    length, orders = 0, 1
    while length < count and orders * (count - length) <= MAX_ORDERS:
        orders *= count - length
        length += 1
    beginnings = [[driver]]
    for _ in range(length):
        beginnings = [
            [*order, index]
            for order in beginnings
            for index in members(inputs & ~sum(1 << joined for joined in order))
            if graph.neighbours[index] & sum(1 << joined for joined in order)
        ]
    for order in beginnings:
        if len(order) <= count:
            _complete(graph, order, inputs)
        yield tuple(graph.names[index] for index in order)


def _complete(graph: IndexedGraph, order: list[int], inputs: int) -> None:
    """Append the remaining inputs, always the one with the fewest expected matches."""
    prefix = Prefix(graph, order[0])
    for index in order[1:]:
        prefix.add(index)
    while remaining := inputs & ~prefix.joined:
        index = min(members(remaining & prefix.reach or remaining), key=prefix.matches.__getitem__)
        order.append(index)
        prefix.add(index)


class _Tree:
    """The paths of one stream, each with its current choice."""

    def __init__(self, paths: Sequence[_Path], gain: float) -> None:
        self._paths, self._gain = paths, gain
        nodes: dict[tuple[int, Probe], int] = {}
        for path in paths:
            for choice in path.choices:
                node = -1
                for probe, (probes, matches) in zip(choice.prefix, pairwise(choice.rows), strict=True):
                    node = nodes.setdefault((node, probe), len(nodes))
                    choice.stages.append(_Stage(node, probes, matches))
        self._users: list[dict[int, _Stage]] = [{} for _ in nodes]
        """By node: the stages of the paths through it, by index of the path."""
        self._largest = [(0.0, 0.0)] * len(nodes)
        """By node: the most probes and matches of any of these stages."""
        self._choices = [path.choices[0] for path in paths]
        self.separate_cost = self.cost = sum(path.choices[0].cost for path in paths)
        """`separate_cost`: cost of the current orders without sharing. `cost`: after `changes`, that of the tree."""

    def changes(self) -> dict[PathName, Order]:
        """Return the new orders of the cheapest tree found, for the paths whose order changes."""
        for index, choice in enumerate(self._choices):
            self._insert(index, choice)
        self._improve(self._gain)
        best, cost = list(self._choices), self._total_cost
        self._choose_optimistically()
        self._improve(1.0)
        if cost > self._gain * self._total_cost * _ROUNDING:
            best, cost = self._choices, self._total_cost
        names = [path.name for path in self._paths]
        if not group_prefixes(("", name, choice.prefix) for name, choice in zip(names, best, strict=True)):
            return {}
        self.cost = cost
        pairs = zip(self._paths, best, strict=True)
        return {path.name: choice.order for path, choice in pairs if choice is not path.choices[0]}

    @property
    def _total_cost(self) -> float:
        shared = sum(_stage_cost(*largest) for largest in self._largest)
        return shared + sum(choice.unshared_cost for choice in self._choices)

    def _insert(self, index: int, choice: _Choice) -> None:
        for stage in choice.stages:
            self._users[stage.node][index] = stage
            probes, matches = self._largest[stage.node]
            self._largest[stage.node] = max(probes, stage.probes), max(matches, stage.matches)
        self._choices[index] = choice

    def _remove(self, index: int) -> None:
        for stage in self._choices[index].stages:
            users, (probes, matches) = self._users[stage.node], self._largest[stage.node]
            del users[index]
            if stage.probes >= probes or stage.matches >= matches:
                probes = max((user.probes for user in users.values()), default=0.0)
                self._largest[stage.node] = probes, max((user.matches for user in users.values()), default=0.0)

    def _added_cost(self, choice: _Choice) -> float:
        """Return the cost that a path with this choice adds to the tree of all others."""
        cost = choice.unshared_cost
        for stage in choice.stages:
            probes, matches = self._largest[stage.node]
            cost += max(stage.probes - probes, 0.0) + 2 * max(stage.matches - matches, 0.0)
        return cost

    def _improve(self, gain: float) -> None:
        """Let each path take the order that adds least cost, until nothing changes."""
        for _ in range(_ROUNDS):
            has_changed = False
            for index, path in enumerate(self._paths):
                if len(path.choices) < 2:
                    continue
                current = self._choices[index]
                self._remove(index)
                best = min(path.choices, key=self._added_cost)
                if self._added_cost(current) + path.rate > gain * (self._added_cost(best) + path.rate) * _ROUNDING:
                    current, has_changed = best, True
                self._insert(index, current)
            if not has_changed:
                return

    def _choose_optimistically(self) -> None:
        """Let each path take the order that would cost least if every path that can share a stage did."""
        sharers = Counter(
            node for path in self._paths for node in {stage.node for choice in path.choices for stage in choice.stages}
        )

        def optimistic_cost(choice: _Choice) -> float:
            shared = sum(_stage_cost(stage.probes, stage.matches) / sharers[stage.node] for stage in choice.stages)
            return choice.unshared_cost + shared

        for index, path in enumerate(self._paths):
            self._remove(index)
            self._insert(index, min(path.choices, key=optimistic_cost))
