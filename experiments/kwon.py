"""Kwon, Lee, Kim: "Load shedding for multi-way stream joins based on arrival order patterns", section 5 (figures 5 to 11).

Streams are joined on one key, with windows of 100 s and a cap in tuples for each. How many results are left of those that there
would be, by policy? Beside the paper's four: `fifo`, the other reading of frequency, and `auto`.

How data are made decides everything, and the paper says little. Ours:

- a *key* appears in an ordered, non-empty subset of the streams (325 of them for 5 streams), in each of these once. Orders are
  shuffled, then drawn by Zipf's law over their ranks; of the figures `orders` says if only the first so many are in use;
- a key first appears at a uniform moment; each next appearance follows after an exponential gap, of 5 s in the mean;
- there are so many keys that a stream has the paper's number of tuples in the mean, and time is such that it has its rate. With
  skew some streams have more than others;
- figure 7: rates are higher and the run is shorter. The engine keeps up; that the paper's program does not, from 16.7 tuples per
  second on, is simulated: it processes that many, as many as it may store wait, and others are lost;
- figure 9: the time of inserting, expiring, deciding and keeping statistics in the simulated program; results are counted and not
  made. `benchmarks/shedding.py` times the engine's decisions;
- figure 10: five streams with keys of a normal distribution around 100 have some 10^11 results, so they are counted by the simulated
  program. Beside it the engine joins three, 2,000 tuples each, windows of 10 s and a memory of 50: the same share of a window;
- figure 11: the trace is not ClarkNet's but that of 1 August 1995 at NASA's Kennedy Space Center, from the same archive: requests for
  four pages, joined on the host, in windows of a day. Results of fewer than `FEW` hosts are too few to test anything.

The engine sheds, of tuples that are worth the same, the oldest, or the one whose key has been worth that longest: the paper says so
of patterns, and nothing of keys. The simulated program (`kwon_simulator`) has both rules, the oldest and a random one. Dead keys do
not go first: policies are those of the paper. `benchmarks/dead_keys.py` compares both.

All policies get the same batches, and runs are checked: results under shedding are never more than those without.
"""

from __future__ import annotations

import csv
import gzip
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console

import dovetail as dt
from dovetail.config import SheddingPolicy
from dovetail.workloads.columns import zipf_chances
from dovetail.workloads.orders import all_orders, stream_positions
from experiments import kwon_simulator
from experiments.points import Points

POLICIES: tuple[SheddingPolicy, ...] = (
    "arrival-order",
    "frequency",
    "frequency-own",
    "output",
    "random",
    "fifo",
    "auto",
)
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
SECOND = 1_000_000
TRACE = Path("../shared/data/nasa-http-1995-08-01.csv.gz")
FEW = 30
"""Hosts with results, below which figure 11 cannot be tested."""
SPANS = {"10": 10, "crossover": 10, "11": 86_400}
"""Windows in seconds; 100 otherwise."""
PAGES = ("/ksc.html", "/", "/shuttle/missions/missions.html", "/shuttle/countdown/")
Tables: TypeAlias = Mapping[str, pa.Table]
Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Point:
    """One setting, with one seed."""

    figure: str
    x: float
    """What the figure varies."""
    seed: int
    streams: int = 5
    memory: int = 500
    skew: float = 0.0
    rate: float = 10.0
    gap: float = 5.0
    orders: int = 0
    """That are in use; 0: all."""
    variance: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.figure}-{self.x:g}-{self.gap:g}-{self.orders}-{self.seed}"

    @property
    def setting(self) -> tuple[str, float, float, int]:
        return self.figure, self.x, self.gap, self.orders


@dataclass(frozen=True)
class Grid:
    """What is run."""

    tuples: int = 10_000
    """Per stream."""
    seeds: int = 10
    map_seeds: int = 3
    seed: int = 2010

    def points(self) -> Iterator[Point]:
        """Every setting, seed by seed."""
        for seed in range(self.seeds):
            yield from (Point("5", memory, seed, memory=memory) for memory in (100, 200, 300, 400, 500))
            yield from (Point("6", skew, seed, skew=skew) for skew in (0.0, 0.5, 1.0, 1.5, 2.0))
            yield from (Point("7", rate, seed, rate=rate) for rate in (10.0, 12.5, 16.7, 25.0))
            yield from (Point("8", streams, seed, streams=streams) for streams in (3, 4, 5, 6, 7))
            yield from (
                Point("10", variance, seed, streams=3, memory=50, variance=variance)
                for variance in (15, 20, 25, 30, 35)
            )
            if TRACE.exists():
                yield from (Point("11", memory, seed, streams=4, memory=memory) for memory in (150, 200, 250, 300, 350))
        for seed in range(self.map_seeds):
            for orders in (0, 20):
                for gap in (1.0, 5.0, 20.0, 50.0):
                    for skew in (0.0, 1.0, 2.0):
                        yield Point("map", skew, seed, skew=skew, gap=gap, orders=orders)
            for variance in (35.0, 1e2, 1e3, 1e4, 1e5, 1e6):
                yield Point("crossover", variance, seed, streams=3, memory=50, variance=variance)

    def simulated(self) -> Iterator[Point]:
        """What the paper's program is simulated for, seed by seed; their figures begin with s."""
        for seed in range(self.seeds):
            yield from (Point("s5", memory, seed, memory=memory) for memory in (100, 200, 300, 400, 500))
            yield from (Point("s6", skew, seed, skew=skew) for skew in (0.0, 0.5, 1.0, 1.5, 2.0))
            yield from (Point("s7", rate, seed, rate=rate) for rate in (10.0, 12.5, 16.7, 25.0))
            yield from (Point("s8", streams, seed, streams=streams) for streams in (3, 4, 5, 6, 7))
            yield from (Point("s9a", memory, seed, memory=memory) for memory in (100, 200, 300, 400, 500))
            yield from (Point("s9b", streams, seed, streams=streams) for streams in (3, 4, 5, 6, 7))
            yield from (Point("s10", variance, seed, variance=variance) for variance in (15, 20, 25, 30, 35))
        if TRACE.exists():
            yield Point("s11", 0, 0)


QUICK = Grid(tuples=800, seeds=2, map_seeds=1)


def run(console: Console, points: Points, grid: Grid) -> dict[Point, dict[str, Any]]:
    """Compute all points that are not there yet."""
    planned = [*grid.points(), *grid.simulated()]
    return points.fill(console, planned, lambda point: run_point(point, grid), lambda point: point.streams)


def run_point(point: Point, grid: Grid, *, dead_keys_first: bool = False) -> dict[str, Any]:
    """Run all policies on the same tuples."""
    if point.figure == "s11":
        return hosts(trace())
    streams = drawn(point, grid)
    if point.figure.startswith("s"):
        return simulated(point, streams)
    batches = cut(streams, 10)
    counted, seconds = driven(point, batches, None, dead_keys_first=dead_keys_first)
    found: dict[str, Any] = {
        "all": counted,
        "seconds": seconds,
        "tuples": sum(map(len, streams.values())),
        "policies": {},
    }
    for policy in POLICIES:
        given, taken = driven(point, batches, policy, dead_keys_first=dead_keys_first)
        if given > counted:
            raise AssertionError(f"{policy} gave {given:,} results; there are {counted:,}")
        found["policies"][policy] = {"results": given, "seconds": taken}
    return found


def simulated(point: Point, streams: Tables) -> dict[str, Any]:
    """Run the paper's program on the tuples."""
    span = 100 * SECOND
    if point.figure in ("s9a", "s9b"):
        return kwon_simulator.decisions(streams, point.memory, span)
    rate = kwon_simulator.PROCESSING if point.figure == "s7" else None
    return kwon_simulator.simulate(streams, point.memory, span, point.seed, rate)


def hosts(streams: Tables) -> dict[str, Any]:
    """How many results of the trace each host has, the most first."""
    counts = [Counter(table.column("k").to_pylist()) for table in streams.values()]
    common = set(counts[0]).intersection(*counts[1:])
    return {"by_host": sorted((prod(count[host] for count in counts) for host in common), reverse=True)}


def driven(
    point: Point, batches: Sequence[Tables], policy: SheddingPolicy | None, *, dead_keys_first: bool
) -> tuple[int, float]:
    """How many results a policy leaves, and how long all batches take; without one nothing is shed."""
    shedding = None
    if policy is not None:
        shedding = dt.Shedding(
            policy, max_tuples=point.memory, per="window", seed=point.seed, dead_keys_first=dead_keys_first
        )
    session = dt.LocalSession(config=dt.Config(shedding=shedding))
    names = [f"s{number}" for number in range(point.streams)]
    window = f"{SPANS.get(point.figure, 100)} SECONDS"
    schema = next(iter(batches[0].values())).schema
    for name in names:
        session.stream(name, schema, event_time="ts")
    tables = ", ".join(f"{name} [RANGE {window}]" for name in names)
    equal = " AND ".join(f"s0.k = {name}.k" for name in names[1:])
    session.query("q", f"SELECT s0.k AS k FROM {tables} WHERE {equal}")  # noqa: S608
    results, began = 0, time.perf_counter()
    for batch in batches:
        for _, table in session.push_iter(batch, piece_rows=1 << 16):
            results += table.num_rows
    return results, time.perf_counter() - began


# -- data ---------------------------------------------------------------------------------------------------------------------------


def drawn(point: Point, grid: Grid) -> dict[str, pa.Table]:
    """The tuples of all streams."""
    if point.figure == "11":
        return trace()
    rng = np.random.default_rng([grid.seed, point.seed, *map(ord, point.name)])
    if point.variance:
        return _normal(point, grid, rng)
    return _unique(point, 8 * grid.tuples if point.figure in ("s9a", "s9b") else grid.tuples, rng)


def _unique(point: Point, tuples: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """Keys that appear at most once in each stream."""
    orders = all_orders(point.streams)
    rng.shuffle(orders)
    orders = orders[: point.orders or len(orders)]
    chances = zipf_chances(len(orders), point.skew)
    lengths = np.array([len(order) for order in orders])
    count = int(tuples * point.streams / float(chances @ lengths))
    places = stream_positions(orders, point.streams)
    chosen = rng.choice(len(orders), count, p=chances)
    starts = rng.uniform(0, tuples / point.rate, count)
    gaps = rng.exponential(point.gap, (count, point.streams))
    gaps[:, 0] = 0
    times = starts[:, None] + np.cumsum(gaps, axis=1)
    return {
        f"s{stream}": _table(np.flatnonzero(places[chosen, stream] >= 0), times, places[chosen, stream])
        for stream in range(point.streams)
    }


def _table(keys: Numbers, times: NDArray[np.float64], places: Numbers) -> pa.Table:
    moments = (times[keys, places[keys]] * SECOND).astype(np.int64)
    order = np.argsort(moments, kind="stable")
    return pa.table([pa.array(moments[order]).cast(SCHEMA.field("ts").type), keys[order]], schema=SCHEMA)


def _normal(point: Point, grid: Grid, rng: np.random.Generator) -> dict[str, pa.Table]:
    count, found = grid.tuples if point.figure == "s10" else max(100, grid.tuples // 5), {}
    for stream in range(point.streams):
        times = np.sort(rng.uniform(0, count / point.rate, count) * SECOND).astype(np.int64)
        keys = np.rint(rng.normal(100, np.sqrt(point.variance), count)).astype(np.int64)
        found[f"s{stream}"] = pa.table([pa.array(times).cast(SCHEMA.field("ts").type), keys], schema=SCHEMA)
    return found


def trace() -> dict[str, pa.Table]:
    """Requests for four pages, as streams."""
    requests: dict[str, list[tuple[int, str]]] = {page: [] for page in PAGES}
    with gzip.open(TRACE, "rt", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            if row["url"] in requests:
                requests[row["url"]].append((int(row["time"]) * SECOND, row["host"]))
    schema = pa.schema([SCHEMA.field("ts"), ("k", pa.string())])
    found = {}
    for number, page in enumerate(PAGES):
        times, hosts = zip(*sorted(requests[page]), strict=True)
        found[f"s{number}"] = pa.table([pa.array(times).cast(schema.field("ts").type), pa.array(hosts)], schema=schema)
    return found


def cut(streams: Tables, count: int) -> list[dict[str, pa.Table]]:
    """Batches of equal event time."""
    times = {name: table.column("ts").cast(pa.int64()).to_numpy() for name, table in streams.items()}
    first, last = min(each[0] for each in times.values()), max(each[-1] for each in times.values())
    bounds = np.linspace(first, last + 1, count + 1).astype(np.int64)
    batches = []
    for begin, end in pairwise(bounds):
        spans = {name: np.searchsorted(each, (begin, end)) for name, each in times.items()}
        batches.append({name: streams[name].slice(low, high - low) for name, (low, high) in spans.items()})
    return batches
