"""Probe orders of many joins, chosen together: paths of one stream's new tuples that begin alike are probed once (`plan.stems`).

What is minimised is the expected cost of each stream's tree of probes. A stage that several paths share costs once: as many probes,
rows and matches as the one of them that has most. Each path may take any order that equalities and conditions connect; of wide joins,
any beginning of one, completed greedily. Two searches are made, and the cheaper tree counts:

- from the orders that there are, one path after another takes the order that adds least to the tree of all the others;
- the same from a hopeful tree, in which each path has taken what would be cheapest if all shared a stage who could. So a stage
  that is nobody's first choice is found, too.

No tree becomes dearer than it was, and a stream whose paths would share too little for a tree keeps its orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from dovetail.config import Config
from dovetail.optimizer.graph.indexed import Indexed, Prefix, members
from dovetail.plan.paths import AccessRule, PathMaker
from dovetail.plan.prefixes import PathName, Probe, Stem, may_share, stem, together
from dovetail.query.model import JoinQuery, TimeWindow

Order: TypeAlias = tuple[str, ...]
"""All inputs of a join, in the order in which they are met: the driver first."""
MOST_ORDERS = 24
"""Orders that a path may take: all of five inputs."""
_ROUNDS = 8
_ROUNDING = 1 + 1e-9


def are_chosen_together(config: Config) -> bool:
    """Whether orders of many joins are: where paths can share stages, and nobody asked for another method by name."""
    return config.ordering == "weave" and config.joins_in_turn and config.join != "nested-loop"


@dataclass(frozen=True)
class Candidate:
    """A join whose orders may be chosen."""

    name: str
    query: JoinQuery
    """With the join's inputs among its aliases."""
    graph: Indexed
    """Of the query, with the join's windows."""
    access: AccessRule
    orders: Mapping[str, Order]
    """Those that it has, by driver."""
    fixed: Collection[str] = ()
    """Drivers whose orders stay."""
    scope: str = ""
    """Joins of different scopes share nothing."""
    tried: Callable[[str, Order, Order], float | None] | None = None
    """How many times cheaper a driver's second order was than the first, both without the driver; None where that is not known."""


class Chosen(NamedTuple):
    """What came of it."""

    orders: dict[PathName, Order]
    """Those that are to take the place of others."""
    share: float
    """What all paths are expected to cost in these orders and in trees, as a share of what they would by themselves."""


def chosen_together(joins: Sequence[Candidate], gain: float = 1.0) -> Chosen:
    """Choose the orders of joins.

    `gain`: how many times cheaper a path has to become by another order, or a whole tree by others.
    """
    drivers: dict[tuple[str, str], list[tuple[Candidate, str]]] = {}
    for join in joins:
        if all(isinstance(ref.window, TimeWindow) for ref in join.query.refs):
            for driver in join.orders:
                drivers.setdefault((join.scope, join.query.ref(driver).stream), []).append((join, driver))
    found, alone, shared = dict[PathName, Order](), 0.0, 0.0
    makers = {join.name: PathMaker(join.query) for join in joins}
    for paths in drivers.values():
        tree = _Tree([_path(join, driver, makers[join.name], gain) for join, driver in paths], gain)
        alone += tree.alone
        if may_share([(join.name, len(join.orders)) for join, _ in paths]):
            found |= tree.changes()
        shared += tree.cost
    return Chosen(found, shared / alone if alone else 1.0)


class _Stage(NamedTuple):
    """A stage of a path, with what it is expected to do per second."""

    node: int
    came: float
    """Partial matches that probe."""
    made: float


class _Choice:
    """An order that a path may take."""

    __slots__ = ("alone", "order", "own", "rows", "stages", "stem")

    def __init__(self, order: Order, whole: Stem, rows: list[float], alone: float) -> None:
        self.order, self.stem, self.rows, self.alone = order, whole, rows, alone
        """`rows`: partial matches per second after each stage of the stem, new tuples first. `alone`: the cost behind it."""
        self.own = alone + sum(_price(came, made) for came, made in pairwise(rows))
        self.stages: list[_Stage] = []


class _Path(NamedTuple):
    name: PathName
    rate: float
    choices: list[_Choice]
    """The order that it has first."""


def _price(came: float, made: float) -> float:
    """What a stage costs: its probes, and the rows that they find, which are looked at and become partial matches."""
    return came + 2 * made


def _path(join: Candidate, driver: str, maker: PathMaker, gain: float) -> _Path:
    graph = join.graph
    numbers = {alias: number for number, alias in enumerate(graph.names)}
    inside = sum(1 << numbers[alias] for alias in join.orders)
    rows = {1 << numbers[driver]: graph.rates[numbers[driver]]}
    """By set of inputs: partial matches per second."""

    def choice(order: Order) -> _Choice:
        path = maker.path(driver, order, join.access)
        whole, sizes, joined, alone = stem(join.query, path), [graph.rates[numbers[driver]]], 1 << numbers[driver], 0.0
        for depth, stage in enumerate(path.stages[1:]):
            number = numbers[stage.alias]
            came, after = rows[joined], joined | 1 << number
            if after not in rows:
                rows[after] = came * graph.extension(joined, number)
            if depth < len(whole):
                sizes.append(rows[after])
            elif stage.access == "hash":
                alone += _price(came, rows[after])
            else:
                alone += came * graph.sizes[number] + rows[after]
            joined = after
        return _Choice(order, whole, sizes, alone)

    now = choice(join.orders[driver])
    choices = [now]
    if driver not in join.fixed:
        for order in _orders(graph, numbers[driver], inside):
            other = choice(order) if order != now.order else now
            if other is not now and not _is_refuted(join, driver, now, other, gain):
                choices.append(other)
    return _Path((join.name, driver), graph.rates[numbers[driver]], choices)


def _is_refuted(join: Candidate, driver: str, now: _Choice, other: _Choice, gain: float) -> bool:
    """Whether an order that looks cheaper was tried lately, and was not."""
    if join.tried is None or other.own >= now.own:
        return False
    seen = join.tried(driver, now.order[1:], other.order[1:])
    return seen is not None and seen <= gain


def _orders(graph: Indexed, driver: int, inside: int) -> Iterator[Order]:
    """Orders of some inputs without cross products: all, or one for each beginning of as many stages as `MOST_ORDERS` allows."""
    count = inside.bit_count() - 1
    length, most = 0, 1
    while length < count and most * (count - length) <= MOST_ORDERS:
        most *= count - length
        length += 1
    begun = [[driver]]
    for _ in range(length):
        begun = [
            [*order, number]
            for order in begun
            for number in members(inside & ~sum(1 << each for each in order))
            if graph.near[number] & sum(1 << each for each in order)
        ]
    for order in begun:
        if len(order) <= count:
            _complete(graph, order, inside)
        yield tuple(graph.names[number] for number in order)


def _complete(graph: Indexed, order: list[int], inside: int) -> None:
    """Let the window follow, again and again, that is expected to match least."""
    prefix = Prefix(graph, order[0])
    for number in order[1:]:
        prefix.add(number)
    while left := inside & ~prefix.joined:
        number = min(members(left & prefix.reach or left), key=prefix.matches.__getitem__)
        order.append(number)
        prefix.add(number)


class _Tree:
    """The paths of one stream, each with the order that it has at the moment."""

    def __init__(self, paths: Sequence[_Path], gain: float) -> None:
        self._paths, self._gain = paths, gain
        nodes: dict[tuple[int, Probe], int] = {}
        for path in paths:
            for choice in path.choices:
                node = -1
                for probe, (came, made) in zip(choice.stem, pairwise(choice.rows), strict=True):
                    node = nodes.setdefault((node, probe), len(nodes))
                    choice.stages.append(_Stage(node, came, made))
        self._users: list[dict[int, _Stage]] = [{} for _ in nodes]
        """By node: the paths that go through it, by number."""
        self._most = [(0.0, 0.0)] * len(nodes)
        """By node: the most probes and matches of any of them."""
        self._taken = [path.choices[0] for path in paths]
        self.alone = self.cost = sum(path.choices[0].own for path in paths)
        """What the paths cost by themselves in the orders that they have, and, once `changes` were found, what they will."""

    def changes(self) -> dict[PathName, Order]:
        """Give the orders of the cheapest tree that was found, as far as they are others than now."""
        for number, choice in enumerate(self._taken):
            self._put(number, choice)
        self._improve(self._gain)
        found, cost = list(self._taken), self._whole
        self._hope()
        self._improve(1.0)
        if cost > self._gain * self._whole * _ROUNDING:
            found, cost = self._taken, self._whole
        names = [path.name for path in self._paths]
        if not together(("", name, choice.stem) for name, choice in zip(names, found, strict=True)):
            return {}
        self.cost = cost
        pairs = zip(self._paths, found, strict=True)
        return {path.name: choice.order for path, choice in pairs if choice is not path.choices[0]}

    @property
    def _whole(self) -> float:
        return sum(_price(*most) for most in self._most) + sum(choice.alone for choice in self._taken)

    def _put(self, number: int, choice: _Choice) -> None:
        for stage in choice.stages:
            self._users[stage.node][number] = stage
            came, made = self._most[stage.node]
            self._most[stage.node] = max(came, stage.came), max(made, stage.made)
        self._taken[number] = choice

    def _take_out(self, number: int) -> None:
        for stage in self._taken[number].stages:
            users, most = self._users[stage.node], self._most[stage.node]
            del users[number]
            if stage.came >= most[0] or stage.made >= most[1]:
                came = max((each.came for each in users.values()), default=0.0)
                self._most[stage.node] = came, max((each.made for each in users.values()), default=0.0)

    def _added(self, choice: _Choice) -> float:
        """What a path that takes an order adds to the cost of all others."""
        cost = choice.alone
        for stage in choice.stages:
            came, made = self._most[stage.node]
            cost += max(stage.came - came, 0.0) + 2 * max(stage.made - made, 0.0)
        return cost

    def _improve(self, gain: float) -> None:
        """Let each path take the order that adds least, again and again."""
        for _ in range(_ROUNDS):
            moved = False
            for number, path in enumerate(self._paths):
                if len(path.choices) < 2:
                    continue
                now = self._taken[number]
                self._take_out(number)
                best = min(path.choices, key=self._added)
                if self._added(now) + path.rate > gain * (self._added(best) + path.rate) * _ROUNDING:
                    now, moved = best, True
                self._put(number, now)
            if not moved:
                return

    def _hope(self) -> None:
        """Let each path take what would cost it least if all who can share a stage did, and shared its cost."""
        able = Counter(
            node for path in self._paths for node in {stage.node for each in path.choices for stage in each.stages}
        )

        def hoped(choice: _Choice) -> float:
            return choice.alone + sum(_price(stage.came, stage.made) / able[stage.node] for stage in choice.stages)

        for number, path in enumerate(self._paths):
            self._take_out(number)
            self._put(number, min(path.choices, key=hoped))
