"""Many queries with much in common: each joins four of six streams on one key, with windows and outputs of its own.

The streams are the nodes of a tree of five predicates, and a query has three of them that hang together. So on average a predicate
is in 60 % of the queries: the sharing ratio of Alrahmani's experiments (predicates per query / predicates in all).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.schema import TIMESTAMP

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64()), ("note", pa.string())])
STREAMS = ("s0", "s1", "s2", "s3", "s4", "s5")
TREE = (("s0", "s1"), ("s0", "s2"), ("s0", "s3"), ("s3", "s4"), ("s3", "s5"))
PREDICATES = 3
WINDOWS = (4, 6, 8, 10)
"""Seconds."""
MATCHES = 0.5
"""Tuples in a window of ten seconds that have a given key."""


def sharing_ratio(queries: dict[str, str]) -> float:
    """The mean, over predicates, of the share of queries that have it."""
    texts = [f"{left}.k = {right}.k" for left, right in TREE]
    return sum(text in sql for text in texts for sql in queries.values()) / (len(texts) * len(queries))


def queries(count: int, seed: int = 5) -> dict[str, str]:
    """So many queries; the first of more are the same."""
    rng = random.Random(seed)  # noqa: S311 - a replayable seed
    found = {}
    for number in range(count):
        edges = _part(rng)
        streams = sorted({name for edge in edges for name in edge})
        outputs = [f"{name}.{column} AS {name}_{column}" for name in rng.sample(streams, 3) for column in ("k", "v")]
        window = rng.choice(WINDOWS)
        windows = ", ".join(f"{name} [RANGE {window} SECONDS]" for name in streams)
        equal = " AND ".join(f"{left}.k = {right}.k" for left, right in edges)
        found[f"q{number}"] = f"SELECT {', '.join(outputs[1:])} FROM {windows} WHERE {equal}"  # noqa: S608 - not from outside
    return found


def _part(rng: random.Random) -> list[tuple[str, str]]:
    """Predicates of the tree that hang together."""
    edges = [rng.choice(TREE)]
    while len(edges) < PREDICATES:
        inside = {name for edge in edges for name in edge}
        edges.append(rng.choice([edge for edge in TREE if edge not in edges and inside & set(edge)]))
    return sorted(edges)


def declare(session: Any, source: Callable[[str], Any], count: int, rate: float, seed: int = 5) -> None:
    """Declare streams and queries in any session."""
    for name in STREAMS:
        session.stream(name, source(name), "ts", rate=rate)
    for left, right in combinations(STREAMS, 2):
        session.selectivity(f"{left}.k = {right}.k", 1 / keys(rate))
    for name, sql in queries(count, seed).items():
        session.query(name, sql)


def keys(rate: float) -> int:
    """How many values the key has."""
    return int(rate * 10 / MATCHES)


def table(stream: str, first: int, rows: int, rate: float) -> pa.Table:
    """Tuples `first` to `first + rows` of a stream that has `rate` of them per second."""
    rng = np.random.default_rng((STREAMS.index(stream), first))
    times = ((first + np.arange(rows)) * (1e6 / rate)).astype(np.int64)
    notes = pa.array([f"note {number:011}" for number in range(97)]).take(pa.array(rng.integers(0, 97, rows)))
    columns = [pa.array(times, TIMESTAMP), rng.integers(0, keys(rate), rows), rng.integers(0, 1000, rows), notes]
    return pa.table(columns, schema=COLUMNS)
