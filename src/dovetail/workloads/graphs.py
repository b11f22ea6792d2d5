"""Join graphs: streams joined along any graph, with an independent selectivity for each edge.

An edge between two streams is a column in both, named after the edge: two tuples match along it with the edge's selectivity,
independently of the other edges. Streams with a common key have a column `k` instead; there edges are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt

import numpy as np

from dovetail.config import reject_unknown_options
from dovetail.errors import ConfigError, listed
from dovetail.workloads import checks
from dovetail.workloads.arrivals import Arrivals
from dovetail.workloads.columns import Copied, GeneratedColumn, Matching, Normal, Uniform, Zipf
from dovetail.workloads.delays import Delay
from dovetail.workloads.orders import Orders, all_orders
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import KEY, Appears, Stream, Workload

Edge = tuple[str, str]
SHAPES = ("chain", "star", "tree", "cycle", "clique", "common-key")
KEYS = ("uniform", "zipf", "normal", "unique")


def edges_of(shape: str, streams: Sequence[str]) -> tuple[Edge, ...]:
    """Return the edges of a join graph; the first stream is the center of a star or the root of a tree.

    >>> edges_of("cycle", "abc")
    (('a', 'b'), ('b', 'c'), ('a', 'c'))
    >>> edges_of("tree", "abcde")
    (('a', 'b'), ('a', 'c'), ('b', 'd'), ('b', 'e'))
    """
    checks.one_of("the shape of a join graph", shape, SHAPES)
    if len(streams) < 2:
        raise ConfigError(f"a join graph of {listed(streams)}; it must have at least two streams")
    if shape in ("star", "common-key"):
        return tuple((streams[0], other) for other in streams[1:])
    if shape == "tree":
        return tuple((streams[(child - 1) // 2], streams[child]) for child in range(1, len(streams)))
    if shape == "clique":
        return tuple(combinations(streams, 2))
    closing = [(streams[0], streams[-1])] if shape == "cycle" and len(streams) > 2 else []
    return (*pairwise(streams), *closing)


def join_workload(
    arrivals: Mapping[str, Arrivals],
    selectivities: Mapping[Edge, float],
    windows: Mapping[str, float],
    *,
    delay: Delay | None = None,
    seed: int = 0,
) -> Workload:
    """Return streams that are joined along the given edges, and the query `joined` over them.

    Parameters
    ----------
    arrivals
        The arrival process of each stream.
    selectivities
        For each edge, the probability that two tuples match along it.
    windows
        Length of each stream's window in seconds.
    delay
        Delay from event time to arrival; by default there is none.
    seed
        Seed of all random numbers.

    >>> arrivals = {"a": Arrivals(10), "b": Arrivals(20), "c": Arrivals(5)}
    >>> workload = join_workload(arrivals, {("a", "b"): 0.1, ("b", "c"): 0.26}, dict.fromkeys("abc", 60))
    >>> workload.columns("b").names
    ['ts', 'a_b', 'b_c']
    """
    for edge in selectivities:
        if len(set(edge)) != 2 or not set(edge) <= set(arrivals):
            raise ConfigError(f"the edge {edge!r} of a join graph; it must join two of its streams {listed(arrivals)}")
    for name in arrivals:
        checks.above(f"the window of {name!r}", windows.get(name, 0))
    sources = []
    for name, events in arrivals.items():
        columns = {
            _column_name(edge): Matching(selectivity) for edge, selectivity in selectivities.items() if name in edge
        }
        sources.append(Stream(name, events, columns, delay or Delay()))
    equalities = {
        f"{a}.{_column_name((a, b))} = {b}.{_column_name((a, b))}": selectivity
        for (a, b), selectivity in selectivities.items()
    }
    return Workload("join", tuple(sources), {"joined": _sql(windows, equalities)}, equalities, seed)


def common_key_workload(
    sources: Sequence[Stream], windows: Mapping[str, float], selectivity: float | None = None, *, seed: int = 0
) -> Workload:
    """Return a workload of streams that are joined on their columns `k`, and the query `joined` over them."""
    names = [stream.name for stream in sources]
    equalities = [f"{a}.k = {b}.k" for a, b in combinations(names, 2)]
    hints = dict.fromkeys(equalities, selectivity) if selectivity is not None else {}
    sql = _sql(windows, [f"{a}.k = {b}.k" for a, b in edges_of("common-key", names)])
    return Workload("join", tuple(sources), {"joined": sql}, hints, seed)


def _column_name(edge: Edge) -> str:
    return "_".join(edge)


def _sql(windows: Mapping[str, float], equalities: Sequence[str] | Mapping[str, float]) -> str:
    times = ", ".join(f"{name}.ts AS {name}_ts" for name in windows)
    tables = ", ".join(f"{name} [RANGE {round(seconds * 1000)} MILLISECONDS]" for name, seconds in windows.items())
    return f"SELECT {times} FROM {tables} WHERE {' AND '.join(equalities)}"  # noqa: S608 - no user input


@reject_unknown_options
@dataclass(frozen=True)
class Join(Scenario):
    """Streams `s0`, `s1`, ... joined along a graph of a given shape.

    >>> Join(shape="star", streams=3).workload.queries["joined"]
    'SELECT s0.ts AS s0_ts, s1.ts AS s1_ts, s2.ts AS s2_ts FROM s0 [RANGE 10000 MILLISECONDS], s1 [RANGE 10000 MILLISECONDS],
    s2 [RANGE 10000 MILLISECONDS] WHERE s0.s0_s1 = s1.s0_s1 AND s0.s0_s2 = s2.s0_s2'
    """

    rate: float = 100.0
    """Tuples of each stream per second."""
    shape: str = "chain"
    """Shape of the join graph: chain, star, tree, cycle, clique or common-key."""
    streams: int = 4
    selectivity: float = 0.001
    """Selectivity of each edge; with `common-key`, one over the number of keys."""
    window_seconds: float = 10.0
    keys: str = "uniform"
    """With `common-key`: uniform, zipf, normal, or unique (each key once per stream, in orders that follow Zipf's law)."""
    skew: float = 1.0
    """Zipf's exponent of keys or of orders."""
    gap_seconds: float = 2.0
    """Mean time between appearances of a unique key."""

    def build(self) -> Workload:
        checks.one_of("Join: shape", self.shape, SHAPES)
        checks.one_of("Join: keys", self.keys, KEYS)
        checks.whole("Join: streams", self.streams, 2, 8 if self.keys == "unique" else 64)
        checks.within("Join: selectivity", self.selectivity, 1e-15, 1)
        if self.keys != "uniform" and self.shape != "common-key":
            raise ConfigError(
                f"Join: keys is {self.keys!r} and shape is {self.shape!r}; allowed: keys='uniform'",
                "shape='common-key' joins all streams on one key of any distribution",
            )
        names = [f"s{number}" for number in range(self.streams)]
        windows = dict.fromkeys(names, self.window_seconds)
        if self.shape == "common-key":
            selectivity = self.selectivity if self.keys == "uniform" else None
            return common_key_workload(self._keyed_streams(names), windows, selectivity, seed=self.seed)
        selectivities = dict.fromkeys(edges_of(self.shape, names), self.selectivity)
        arrivals = {name: self.arrival_process(self.rate) for name in names}
        return join_workload(arrivals, selectivities, windows, delay=self.delay, seed=self.seed)

    def _keyed_streams(self, names: Sequence[str]) -> list[Stream]:
        if self.keys == "unique":
            ranked = all_orders(len(names))
            np.random.default_rng(self.seed).shuffle(ranked)
            orders = Orders(tuple(names), tuple(ranked), self.arrival_process(self.rate), self.skew, self.gap_seconds)
            appears = Appears(orders.with_rate(self.arrival_process(self.rate)))
            return [Stream(name, appears, {"k": Copied(KEY)}, self.delay) for name in names]
        count = round(1 / self.selectivity)
        column: GeneratedColumn = Uniform(count)
        if self.keys == "zipf":
            column = Zipf(count, self.skew)
        elif self.keys == "normal":
            column = Normal(0, count / sqrt(12))  # same variance as `uniform`
        return [Stream(name, self.arrival_process(self.rate), {"k": column}, self.delay) for name in names]
