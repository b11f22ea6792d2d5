"""Many queries with much in common: each joins four of six streams on one key, with windows and outputs of its own.

The streams are the nodes of a tree of five predicates, and a query has three of them that hang together. So on average a predicate
is in 60 % of the queries: the sharing ratio of Alrahmani's experiments (predicates per query / predicates in all). There are six such
parts, so many queries have few join graphs; `different` has one query for each of the tree's 17 parts with two or more predicates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import pyarrow as pa

from dovetail.config import names_checked
from dovetail.workloads import checks
from dovetail.workloads.arrivals import SECOND, Arrivals
from dovetail.workloads.columns import Uniform, Words
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import Stream, Workload

STREAMS = ("s0", "s1", "s2", "s3", "s4", "s5")
TREE = (("s0", "s1"), ("s0", "s2"), ("s0", "s3"), ("s3", "s4"), ("s3", "s5"))
PREDICATES = 3
WINDOWS = (4, 6, 8, 10)
"""Seconds."""
MATCHES = 0.5
"""Tuples in a window of ten seconds that have a given key."""
NOTES = tuple(f"note {number:011}" for number in range(97))


def sharing_ratio(queries: dict[str, str]) -> float:
    """The mean, over predicates, of the share of queries that have it."""
    texts = [f"{left}.k = {right}.k" for left, right in TREE]
    return sum(text in sql for text in texts for sql in queries.values()) / (len(texts) * len(queries))


def queries(count: int, seed: int = 5) -> dict[str, str]:
    """So many queries; the first of more are the same."""
    rng = random.Random(seed)  # noqa: S311 - a replayable seed
    return {f"q{number}": _sql(rng, _part(rng)) for number in range(count)}


def different(seed: int = 5) -> dict[str, str]:
    """A query for each part of the tree with two or more predicates: no two have the same join graph."""
    rng = random.Random(seed)  # noqa: S311 - a replayable seed
    parts = [part for count in range(2, len(TREE) + 1) for part in combinations(TREE, count) if _hangs_together(part)]
    return {f"q{number}": _sql(rng, part) for number, part in enumerate(parts)}


def graphs(queries: dict[str, str]) -> int:
    """How many different join graphs queries have, whatever their windows and outputs."""
    return len({sql.split(" WHERE ")[1] for sql in queries.values()})


def _sql(rng: random.Random, edges: Sequence[tuple[str, str]]) -> str:
    streams = sorted({name for edge in edges for name in edge})
    outputs = [f"{name}.{column} AS {name}_{column}" for name in rng.sample(streams, 3) for column in ("k", "v")]
    window = rng.choice(WINDOWS)
    windows = ", ".join(f"{name} [RANGE {window} SECONDS]" for name in streams)
    equal = " AND ".join(f"{left}.k = {right}.k" for left, right in edges)
    return f"SELECT {', '.join(outputs[1:])} FROM {windows} WHERE {equal}"  # noqa: S608 - not from outside


def _hangs_together(edges: Sequence[tuple[str, str]]) -> bool:
    """Whether edges of a tree are one piece: it has one stream more than edges."""
    return len({name for edge in edges for name in edge}) == len(edges) + 1


def _part(rng: random.Random) -> list[tuple[str, str]]:
    """Predicates of the tree that hang together."""
    edges = [rng.choice(TREE)]
    while len(edges) < PREDICATES:
        inside = {name for edge in edges for name in edge}
        edges.append(rng.choice([edge for edge in TREE if edge not in edges and inside & set(edge)]))
    return sorted(edges)


def keys(rate: float) -> int:
    """How many values the key has."""
    return int(rate * 10 / MATCHES)


@names_checked
@dataclass(frozen=True)
class Overlap(Scenario):
    """Streams `s0` to `s5` with the same columns, and queries over four of them each."""

    rate: float = 1000.0
    """Tuples of each stream per second."""
    arrivals: str = "uniform"
    lateness_seconds: float = 0.0
    late_share: float = 0.0
    queries: int = 8
    query_seed: int = 5

    def made(self) -> Workload:
        checks.whole("Overlap: queries", self.queries, 1)
        columns = {"k": Uniform(keys(self.rate)), "v": Uniform(1000), "note": Words(NOTES)}
        sources = tuple(Stream(name, self.coming(self.rate), columns, self.delay) for name in STREAMS)
        hints = {f"{a}.k = {b}.k": 1 / keys(self.rate) for a, b in combinations(STREAMS, 2)}
        return Workload("overlap", sources, queries(self.queries, self.query_seed), hints, self.seed, start=0)


COLUMNS = Overlap().workload.columns("s0")


def declare(session: Any, source: Callable[[str], Any], count: int, rate: float, seed: int = 5) -> None:
    """Declare streams and queries in any session."""
    Overlap(rate=rate, queries=count, query_seed=seed).workload.declare(session, source)


def table(stream: str, first: int, rows: int, rate: float) -> pa.Table:
    """Tuples `first` to `first + rows` of a stream that has `rate` of them per second."""
    workload = _workload(rate)
    block = workload.block
    begin, end = (round(number * SECOND / rate) // block * block for number in (first, first + rows))
    found = workload.arrived(stream, begin, end + 2 * block)
    return found.slice(first - Arrivals(rate, "uniform").first_number(begin), rows)


@lru_cache(maxsize=4)
def _workload(rate: float) -> Workload:
    return Overlap(rate=rate).workload
