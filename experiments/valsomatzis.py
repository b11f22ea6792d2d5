"""Valsomatzis, Gounaris: "Driver input selection for main-memory multi-way joins", section 4 (tables 4 and 5, figures 6 to 8).

Three streams are joined on one key, a batch at a time. Whose tuples of a batch come first: how long does a batch take, and how
soon are its results there? Datasets I to VI, batches of 0.1M and 1M time units, ten repeats with other data; `declared` beside the
paper's five policies, with the streams declared as S1, S2, S3 and, as `reversed`, the other way round.

What the paper leaves out or has wrong, and what we take:

- keys: in I to IV 1,000 keys with 1, 5 and 1,000 tuples in S1, S2 and S3, in V and VI with 1, 10 and 100; all other tuples match
  nothing, and those that do are spread at random. That meets every selectivity of table 2 (its last three rows give, for I to IV,
  the join's selectivity; σ_S is 5). Table 3's 10^9 for S2 must be 10^5;
- time: a unit is a microsecond, not a nanosecond, and a run takes 10M of them. Windows are longer than that. "Each quarter of the
  input" is a quarter of the tuples: then streams of 1 per 5 and 1 per 15 units end with those of 1 per 10;
- the sinusoid has two periods, and its rate goes from half of the mean to one and a half;
- the b-model halves time ten times, each time with 20 % (V: 80 %) of the tuples in the first half. It could also turn cuts at
  random, but then 20-80 and 80-20 would be the same;
- a result is the key alone, so that what all policies have in common weighs little;
- probes: S1 meets S2 then S3, S2 meets S1 then S3, S3 meets S1 then S2: the most selective first. Orders do not adapt.

The same batches are joined a second time by the paper's own program, compiled, one tuple after another (`valsomatzis_compiled`), in
processor time.

Sessions of all policies get each batch one after another, in random order, so that whatever else the machine does hits all alike.
That is done twice: once with results as they are found (`push_iter`, about 24 pieces per batch), once with `push`. On some
repeats it is done a third time, not timed: there work is counted after each piece, in probes and rows looked at. (Counting in
between makes a run slower by a sixth.) Every run is checked: each policy gives the expected number of results, and as many
with each batch as the others.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from inspect import unwrap
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console

import dovetail as dt
from dovetail.config import DriverPolicy
from dovetail.workloads.arrivals import pattern_curve
from experiments import valsomatzis_compiled
from experiments.points import Points

POLICIES = (
    "timestamp",
    "round-robin",
    "consumption-rate",
    "initial-output-size",
    "output-rate",
    "declared",
    "reversed",
)
"""`reversed` is `declared` with the streams declared the other way round."""
STREAMS = ("s1", "s2", "s3")
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
SQL = "SELECT s1.k AS k FROM s1 [RANGE 1 HOUR], s2 [RANGE 1 HOUR], s3 [RANGE 1 HOUR] WHERE s1.k = s2.k AND s2.k = s3.k"
ORDERS = {"s1": ("s2", "s3"), "s2": ("s1", "s3"), "s3": ("s1", "s2")}
COUNTED = ("probes", "rows_read", "matches", "results")
"""What the engine counts of a query; `matches` are results and the intermediate tuples on the way to them."""
LEFT_OUT = 0.2
"""The share of batches, the first ones, that the tables and figures leave out."""
AXIS = np.linspace(0, 1.5, 76)
"""Where curves are kept: cost over that of `timestamp` for the whole batch."""
Numbers: TypeAlias = NDArray[np.float64]
Trace: TypeAlias = list[tuple[float, int]]
"""Of a batch: cost so far (seconds, or work) and results so far, after each piece; the last entry is the whole batch."""
Batch: TypeAlias = Mapping[str, pa.Table]
Take: TypeAlias = Callable[[dt.LocalSession, Batch, int], Trace]
"""Gives a session a batch, and takes the results of so many tuples at a time."""


@dataclass(frozen=True)
class Dataset:
    """How tuples of three streams arrive and match."""

    arrivals: tuple[str, str, str]
    sizes: tuple[int, int, int] = (1000, 1000, 1000)
    """Tuples for each key that matches."""
    matching: tuple[int, int, int] = (1, 5, 1000)
    """Those of them that have that key."""


_SKEWED = {"sizes": (10, 100, 1000), "matching": (1, 10, 100)}
DATASETS = {
    "I": Dataset(("uniform", "uniform", "fast-slow")),
    "II": Dataset(("uniform", "slow-fast", "fast-slow")),
    "III": Dataset(("uniform", "slow-fast", "sinusoid")),
    "IV": Dataset(("uniform", "uniform", "20-80")),
    "V": Dataset(("uniform", "uniform", "80-20"), **_SKEWED),
    "VI": Dataset(("uniform", "uniform", "20-80"), **_SKEWED),
}
PERIODS = ("0.1M", "1M")
"""Time units of a batch."""


@dataclass(frozen=True)
class Grid:
    """What is run."""

    keys: int = 1000
    """That match; everything else, the length of a run as well, grows with it."""
    compiled_keys: int = 1000
    """The same for the paper's own program."""
    repeats: int = 10
    counted: int = 2
    """Repeats, the first ones, in which work is counted after each piece."""
    batches: tuple[int, int] = (100, 10)
    """Of a run, for each of `PERIODS`."""
    pieces: int = 24
    """Of a batch, about."""
    seed: int = 2012

    @property
    def length(self) -> int:
        """Time units of a run."""
        return 10_000 * self.keys

    def points(self) -> Iterator[Point]:
        """Every dataset and period, one repeat after another."""
        for repeat in range(self.repeats):
            for dataset in DATASETS:
                for period in PERIODS:
                    yield Point(dataset, period, repeat)


@dataclass(frozen=True)
class Point:
    """One repeat of a dataset and period."""

    dataset: str
    period: str
    repeat: int
    compiled: bool = False
    """By the paper's own program, tuple at a time."""

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.period}-{self.repeat}{'-compiled' if self.compiled else ''}"


QUICK = Grid(keys=10, compiled_keys=10, repeats=2, counted=1, batches=(10, 5), pieces=6)


def run(console: Console, points: Points, grid: Grid) -> dict[Point, dict[str, Any]]:
    """Compute all points that are not there yet: by the engine, and by the paper's program."""
    alone = list(grid.points())
    planned = [*alone, *(replace(point, compiled=True) for point in alone)]
    found = points.fill(console, planned, lambda point: run_point(point, grid), _weight)
    return {point: {**found[point], **found[replace(point, compiled=True)]} for point in alone}


def _weight(point: Point) -> int:
    return (7 if point.period == "0.1M" else 4) * (1 if point.dataset in ("V", "VI") else 3)


def run_point(point: Point, grid: Grid) -> dict[str, Any]:
    """Run all policies on the same batches."""
    if point.compiled:
        grid = replace(grid, keys=grid.compiled_keys)
    expected = grid.keys * prod(DATASETS[point.dataset].matching)
    if point.compiled:
        return run_compiled(drawn_batches(point, grid), grid, grid.seed + point.repeat, expected)
    _warm_up()
    gc.collect()  # the sessions of the last point
    batches = drawn_batches(point, grid)
    takes = {"seconds": _timed, "whole": _pushed} | ({"work": _counted} if point.repeat < grid.counted else {})
    found: dict[str, Any] = {}
    for unit, take in takes.items():
        driven = drive(batches, take, grid.pieces, grid.seed + point.repeat)
        _check(driven.traces, expected)
        found[unit] = {"policies": summary(driven.traces), "counts": driven.counts, "parts": driven.parts}
    return found


def run_compiled(batches: Sequence[Batch], grid: Grid, seed: int, expected: int) -> dict[str, Any]:
    """Run all policies in the paper's program: `compiled` is timed, `compiled work` are probes and rows looked at."""
    given = [valsomatzis_compiled.buffers(batch) for batch in batches]
    sizes = [sum(len(keys[stream]) for _, keys in given) for stream in range(3)]
    joins = {policy: valsomatzis_compiled.MJoin(policy, sizes, 1 << 16) for policy in POLICIES}
    timed: dict[str, list[Trace]] = {policy: [] for policy in POLICIES}
    worked: dict[str, list[Trace]] = {policy: [] for policy in POLICIES}
    before = dict[str, NDArray[np.int64]]()
    rng = np.random.default_rng(seed)
    for number, batch in enumerate(given):
        if number == int(LEFT_OUT * len(given)):
            before = {policy: join.counts.copy() for policy, join in joins.items()}
        rows = max(1, sum(map(len, batch[1])) // grid.pieces)
        for policy in rng.permutation(POLICIES):
            trace = joins[policy].run(batch, rows)
            timed[policy].append([(seconds, results) for seconds, _, results in trace])
            worked[policy].append([(work, results) for _, work, results in trace])
    _check(timed, expected)
    counts = {
        policy: dict(zip(valsomatzis_compiled.COUNTED, (join.counts - before[policy]).tolist(), strict=True))
        for policy, join in joins.items()
    }
    return {
        "compiled": {"policies": summary(timed), "counts": counts},
        "compiled work": {"policies": summary(worked), "counts": counts},
    }


@cache
def _warm_up() -> None:
    """Load and compile, once, what the first batches would wait for."""
    small = Grid(keys=5, batches=(5, 5))
    batches = drawn_batches(Point("I", "1M", 0), small)
    for take in (_timed, _pushed):
        drive(batches, take, small.pieces, 0)


# -- data ---------------------------------------------------------------------------------------------------------------------------


def drawn_batches(point: Point, grid: Grid) -> list[dict[str, pa.Table]]:
    """The tuples of a run, cut into batches."""
    rng = np.random.default_rng([grid.seed, list(DATASETS).index(point.dataset), point.repeat])
    count = grid.batches[PERIODS.index(point.period)]
    ends = np.arange(1, count) * (grid.length // count)
    dataset, batches = DATASETS[point.dataset], [dict[str, pa.Table]() for _ in range(count)]
    for number, stream in enumerate(STREAMS):
        size, matching = grid.keys * dataset.sizes[number], dataset.matching[number]
        times = arrival_times(dataset.arrivals[number], size, grid.length, rng)
        keys = np.arange(size) + (number + 1) * 10**9
        keys[rng.permutation(size)[: grid.keys * matching]] = np.repeat(np.arange(grid.keys), matching)
        table = pa.table([pa.array(times).cast(SCHEMA.field("ts").type), keys], schema=SCHEMA)
        cuts = [0, *np.searchsorted(times, ends), size]
        for batch, first, stop in zip(batches, cuts, cuts[1:], strict=False):
            batch[stream] = table.slice(first, stop - first)
    return batches


def arrival_times(pattern: str, count: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """When so many tuples arrive: one at a random moment of each equal share of the pattern.

    >>> arrival_times("fast-slow", 8, 80, np.random.default_rng(1))[[1, 3, 5, 7]]
    array([ 9, 39, 47, 71])
    """
    kind, bias = ("b-model", int(pattern[:2]) / 100) if pattern in ("20-80", "80-20") else (pattern, 0.5)
    moments, shares = pattern_curve(kind, bias)
    ranks = (np.arange(count) + rng.random(count)) / count
    return np.interp(ranks, shares, moments * length).astype(np.int64)


# -- runs ---------------------------------------------------------------------------------------------------------------------------


def new_session(policy: str) -> dt.LocalSession:
    """A session with the query, and one policy."""
    backwards = policy == "reversed"
    config = dt.Config(driver_policy="declared" if backwards else cast("DriverPolicy", policy), adaptive=False)
    session = dt.LocalSession(config=config)
    for stream in reversed(STREAMS) if backwards else STREAMS:
        session.stream(stream, SCHEMA, event_time="ts")
    session.query("q", SQL, probe_orders=ORDERS)
    return session


def _work(session: dt.LocalSession) -> dict[str, int]:
    """Counters so far, and the results that each stream's tuples have found.

    While a batch is under way `metrics` refuses to answer; what it decorates only reads.
    """
    counted: Any = unwrap(dt.LocalSession.metrics)(session)["queries"]["q"]
    paths = counted["paths"]  # empty before the first batch
    by_driver = {stream: paths[stream][-1]["matches"] if paths else 0 for stream in STREAMS}
    return {name: counted[name] for name in COUNTED} | by_driver


def _pieces(session: dt.LocalSession, batch: Batch, rows: int, clock: Callable[[], float]) -> Trace:
    trace, results, began = Trace(), 0, clock()
    for _, table in session.push_iter(batch, piece_rows=rows):
        results += table.num_rows
        trace.append((clock() - began, results))
    trace.append((clock() - began, results))
    return trace


def _timed(session: dt.LocalSession, batch: Batch, rows: int) -> Trace:
    return _pieces(session, batch, rows, time.perf_counter)


def _counted(session: dt.LocalSession, batch: Batch, rows: int) -> Trace:
    def clock() -> float:
        made = _work(session)
        return made["probes"] + made["rows_read"]

    return _pieces(session, batch, rows, clock)


def _pushed(session: dt.LocalSession, batch: Batch, _: int) -> Trace:
    began = time.perf_counter()
    results = session.push(batch)["q"].num_rows
    return [(time.perf_counter() - began, results)]


@dataclass(frozen=True)
class Driven:
    """What came of all policies over the same batches."""

    traces: Mapping[str, list[Trace]]
    """By policy, of each batch."""
    counts: Mapping[str, Mapping[str, int]]
    """By policy: what the batches that are not left out took."""
    parts: Mapping[str, Mapping[str, float]]
    """By policy: what the engine says it spent on joins and on results, in seconds, and what all took; of all batches."""


def drive(batches: Sequence[Batch], take: Take, pieces: int, seed: int) -> Driven:
    """Give each batch to every policy's session."""
    rng = np.random.default_rng(seed)
    sessions = {policy: new_session(policy) for policy in POLICIES}
    traces: dict[str, list[Trace]] = {policy: [] for policy in POLICIES}
    before: dict[str, dict[str, int]] = {}
    with _no_collections():
        for number, batch in enumerate(batches):
            if number == int(LEFT_OUT * len(batches)):
                before = {policy: _work(session) for policy, session in sessions.items()}
            rows = max(1, sum(table.num_rows for table in batch.values()) // pieces)
            for policy in rng.permutation(POLICIES):
                traces[policy].append(take(sessions[policy], batch, rows))
    counts, parts = {}, {}
    for policy, session in sessions.items():
        counts[policy] = {name: count - before[policy][name] for name, count in _work(session).items()}
        nodes: Any = session.metrics()["nodes"]
        parts[policy] = {kind: nodes[kind]["q"]["ms"] / 1000 for kind in ("joins", "results")}
        parts[policy]["all"] = sum(trace[-1][0] for trace in traces[policy])
    return Driven(traces, counts, parts)


def _check(traces: Mapping[str, list[Trace]], expected: int) -> None:
    given = {policy: [trace[-1][1] for trace in found] for policy, found in traces.items()}
    for policy, counts in given.items():
        if sum(counts) != expected or counts != given["timestamp"]:
            raise AssertionError(f"{policy} gave {sum(counts):,} results; expected {expected:,}")


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# -- summaries ----------------------------------------------------------------------------------------------------------------------


def summary(traces: Mapping[str, Sequence[Trace]]) -> dict[str, dict[str, Any]]:
    """By policy, over the batches that are not left out, in units of what `timestamp` needs for the same.

    `total`, `to60`, `to100`: the cost of all of them, and until 60 % and 100 % of each one's results are there; `totals`: the first
    by halves. `cost`, `costs`: of all and of each, not divided by anything. `half`: the share of a batch's results at half of what
    `timestamp` needs for it, in the mean over batches; `own70`: at 70 % of the policy's own cost. `curves`: such shares at `AXIS`,
    by halves.
    """
    left_out = int(LEFT_OUT * len(traces["timestamp"]))
    kept = {policy: [np.array(trace, float) for trace in found[left_out:]] for policy, found in traces.items()}
    base = np.array([trace[-1, 0] for trace in kept["timestamp"]])
    middle = len(base) // 2
    parts = (slice(None, middle), slice(middle, None))
    found = {}
    for policy, batches in kept.items():
        total, to60, to100 = (np.array([_until(trace, share) for trace in batches]) for share in (None, 0.6, 1.0))
        sums = {"total": total, "to60": to60, "to100": to100}
        giving = [(trace, whole) for trace, whole in zip(batches, base, strict=True) if trace[-1, 1]]
        curves = [_share(trace, AXIS * whole) for trace, whole in giving]
        halves = (curves[: len(curves) // 2], curves[len(curves) // 2 :])
        found[policy] = {
            **{name: float(values.sum() / base.sum()) for name, values in sums.items()},
            "cost": float(total.sum()),
            "costs": np.round(total, 6).tolist(),
            "totals": [float(total[part].sum() / base[part].sum()) for part in parts],
            "half": float(np.mean([_share(trace, 0.5 * whole) for trace, whole in giving])),
            "own70": float(np.mean([_share(trace, 0.7 * trace[-1, 0]) for trace, _ in giving])),
            "curves": [np.round(np.mean(half, axis=0), 4).tolist() for half in halves],
        }
    return found


def _share(trace: Numbers, cost: Any) -> Any:
    """Which share of the results is there when so much has been spent.

    >>> _share(np.array([(1.0, 5), (2.0, 8), (3.0, 10)]), np.array([0.5, 1.0, 2.5, 9.0]))
    array([0. , 0.5, 0.8, 1. ])
    """
    reached = np.searchsorted(trace[:, 0], cost, side="right")
    return np.append(0.0, trace[:, 1])[reached] / trace[-1, 1]


def _until(trace: Numbers, share: float | None) -> float:
    """What is spent until some share of the results is there, or, for None, all work is done."""
    if share is None:
        return float(trace[-1, 0])
    return float(trace[np.searchsorted(trace[:, 1], share * trace[-1, 1]), 0])
