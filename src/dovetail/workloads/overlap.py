"""Overlapping queries: each joins four of six streams on one key, with its own windows and outputs.

The streams are the nodes of a tree of five predicates, and each query has a connected part of three. So on average a predicate is in
60 % of the queries: the sharing ratio of Alrahmani's experiments (predicates per query / predicates in all). There are six such parts,
so many queries have few join graphs; `different` has one query for each of the tree's 17 connected parts of two or more predicates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import pyarrow as pa

from dovetail.config import reject_unknown_options
from dovetail.workloads import checks
from dovetail.workloads.arrivals import SECOND, Arrivals
from dovetail.workloads.columns import Uniform, Words
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import Stream, Workload

STREAMS = ("s0", "s1", "s2", "s3", "s4", "s5")
TREE = (("s0", "s1"), ("s0", "s2"), ("s0", "s3"), ("s3", "s4"), ("s3", "s5"))
PREDICATES = 3
WINDOWS = (4, 6, 8, 10)
"""Window lengths in seconds."""
MATCHES = 0.5
"""Expected number of tuples with a given key in a window of ten seconds."""
NOTES = tuple(f"note {number:011}" for number in range(97))


def sharing_ratio(queries: dict[str, str]) -> float:
    """Return the fraction of queries that have a predicate, in the mean over predicates."""
    texts = [f"{left}.k = {right}.k" for left, right in TREE]
    return sum(text in sql for text in texts for sql in queries.values()) / (len(texts) * len(queries))


def queries(count: int, seed: int = 5) -> dict[str, str]:
    """Return `count` queries; a larger count begins with the same ones."""
    rng = random.Random(seed)  # noqa: S311 - a replayable seed
    return {f"q{number}": _sql(rng, _part(rng)) for number in range(count)}


def different(seed: int = 5) -> dict[str, str]:
    """Return a query for each connected part of the tree with at least two predicates; all graphs differ."""
    rng = random.Random(seed)  # noqa: S311 - a replayable seed
    parts = [part for count in range(2, len(TREE) + 1) for part in combinations(TREE, count) if _is_connected(part)]
    return {f"q{number}": _sql(rng, part) for number, part in enumerate(parts)}


def graphs(queries: dict[str, str]) -> int:
    """Return the number of different join graphs, whatever the windows and outputs of the queries."""
    return len({sql.split(" WHERE ")[1] for sql in queries.values()})


def _sql(rng: random.Random, edges: Sequence[tuple[str, str]]) -> str:
    streams = sorted({name for edge in edges for name in edge})
    outputs = [f"{name}.{column} AS {name}_{column}" for name in rng.sample(streams, 3) for column in ("k", "v")]
    window = rng.choice(WINDOWS)
    windows = ", ".join(f"{name} [RANGE {window} SECONDS]" for name in streams)
    equalities = " AND ".join(f"{left}.k = {right}.k" for left, right in edges)
    return f"SELECT {', '.join(outputs[1:])} FROM {windows} WHERE {equalities}"  # noqa: S608 - no user input


def _is_connected(edges: Sequence[tuple[str, str]]) -> bool:
    """Whether edges of a tree are connected: they then have one stream more than edges."""
    return len({name for edge in edges for name in edge}) == len(edges) + 1


def _part(rng: random.Random) -> list[tuple[str, str]]:
    """Return a random connected part of the tree."""
    edges = [rng.choice(TREE)]
    while len(edges) < PREDICATES:
        streams = {name for edge in edges for name in edge}
        edges.append(rng.choice([edge for edge in TREE if edge not in edges and streams & set(edge)]))
    return sorted(edges)


def keys(rate: float) -> int:
    """Return the number of key values that gives `MATCHES` at this rate."""
    return int(rate * 10 / MATCHES)


@reject_unknown_options
@dataclass(frozen=True)
class Overlap(Scenario):
    """Streams `s0` to `s5` with the same columns, and queries that each join four of them."""

    rate: float = 1000.0
    """Tuples of each stream per second."""
    arrivals: str = "uniform"
    lateness_seconds: float = 0.0
    late_share: float = 0.0
    queries: int = 8
    query_seed: int = 5

    def build(self) -> Workload:
        checks.whole("Overlap: queries", self.queries, 1)
        columns = {"k": Uniform(keys(self.rate)), "v": Uniform(1000), "note": Words(NOTES)}
        sources = tuple(Stream(name, self.arrival_process(self.rate), columns, self.delay) for name in STREAMS)
        hints = {f"{a}.k = {b}.k": 1 / keys(self.rate) for a, b in combinations(STREAMS, 2)}
        return Workload("overlap", sources, queries(self.queries, self.query_seed), hints, self.seed, start=0)


COLUMNS = Overlap().workload.columns("s0")


def declare(session: Any, source: Callable[[str], Any], count: int, rate: float, seed: int = 5) -> None:
    """Declare streams and queries in any session."""
    Overlap(rate=rate, queries=count, query_seed=seed).workload.declare(session, source)


def table(stream: str, first: int, rows: int, rate: float) -> pa.Table:
    """Return tuples `first` to `first + rows` of a stream with `rate` tuples per second."""
    workload = _workload(rate)
    block = workload.block
    begin, end = (round(index * SECOND / rate) // block * block for index in (first, first + rows))
    tuples = workload.arrived(stream, begin, end + 2 * block)
    return tuples.slice(first - Arrivals(rate, "uniform").count_before(begin), rows)


@lru_cache(maxsize=4)
def _workload(rate: float) -> Workload:
    return Overlap(rate=rate).workload
