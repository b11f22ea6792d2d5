"""The joins of Golab and Özsu run by the engine: windows on one common attribute, and what their loops compare.

Counted are the rows that loops look at, per unit of time (one second), once windows are full. The outermost scan is left out, as in
the equations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import dovetail as dt
from experiments.golab_orders import Streams

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("attr", pa.int64())])
SECOND = 1_000_000
SETTLING = 1_000
Orders: TypeAlias = Mapping[str, Sequence[str]]
Tuples: TypeAlias = Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Times and values by stream."""


@dataclass(frozen=True)
class Run:
    """What joining took, once windows were full."""

    comparisons: dict[str, float]
    """Per unit of time, by origin."""
    tuples: int
    seconds: float
    """Of processor time, so that other work of the machine weighs less."""

    @property
    def total(self) -> float:
        return sum(self.comparisons.values())

    @property
    def rate(self) -> float:
        """Tuples of all streams per second of processor time."""
        return self.tuples / self.seconds


def joined(streams: Streams, select: str = "*") -> str:
    """The query: all windows on one common attribute."""
    names = [f"s{name}" for name in streams]
    windows = ", ".join(f"s{name} [RANGE {s.window} SECONDS]" for name, s in streams.items())
    equalities = " AND ".join(f"{names[0]}.attr = {name}.attr" for name in names[1:])
    return f"SELECT {select} FROM {windows} WHERE {equalities}"  # noqa: S608


def start(streams: Streams, config: dt.Config, orders: Orders | None = None, select: str = "*") -> dt.LocalSession:
    """A session with the query; without `orders` it chooses them itself, and knows how many pairs match."""
    session = dt.LocalSession(config=config)
    for name, s in streams.items():
        session.stream(f"s{name}", SCHEMA, "ts", rate=s.rate)
    named = {f"s{driver}": [f"s{name}" for name in order] for driver, order in (orders or {}).items()}
    session.query("q", joined(streams, select), named)
    for a, b in combinations(streams, 2):
        distinct = max(streams[a].distinct, streams[b].distinct)
        session.selectivity(f"s{a}.attr = s{b}.attr", 1 / distinct)
    return session


def evenly_spaced(streams: Streams, units: int, seed: int) -> Tuples:
    """Times and values by stream: no two at one time, values from 1 to v."""
    rng = np.random.default_rng(seed)
    made = {}
    for place, (name, s) in enumerate(streams.items(), start=1):
        count = int(s.rate * units)
        times = ((np.arange(count) + place / (len(streams) + 1)) / s.rate * SECOND).astype(np.int64)
        made[name] = (times, rng.integers(1, int(s.distinct) + 1, count))
    return made


def cut(data: Tuples, begin: float, end: float) -> dict[str, pa.Table]:
    """The tuples of a span of time, as a batch."""
    batch = {}
    for name, (times, values) in data.items():
        part = slice(*np.searchsorted(times, [int(begin * SECOND), int(end * SECOND)]))
        batch[f"s{name}"] = pa.table({"ts": pa.array(times[part], TS), "attr": pa.array(values[part])})
    return batch


def one_by_one(data: Tuples, begin: float) -> Iterator[dict[str, pa.Table]]:
    """The tuples from a time on, each as a batch of its own."""
    late = [(t, name, v) for name, made in data.items() for t, v in zip(*map(np.ndarray.tolist, made), strict=True)]
    for moment, name, value in sorted(late):
        if moment >= begin * SECOND:
            yield {f"s{name}": pa.table({"ts": pa.array([moment], TS), "attr": pa.array([value], pa.int64())})}


def rows_read(session: dt.LocalSession) -> dict[str, int]:
    """Rows compared so far, by origin; the outermost loop compares nothing."""
    paths: Any = session.metrics()["queries"]["q"]["paths"]
    return {driver[1:]: sum(stage["rows_read"] for stage in stages[1:]) for driver, stages in paths.items()}


def chosen_orders(streams: Streams, config: dt.Config, step: int, *, seed: int = 0) -> Orders:
    """The orders that a session has come to after `SETTLING` units of time, as it takes them."""
    session = start(streams, config, select="s1.attr")
    data = evenly_spaced(streams, SETTLING, seed)
    for batch in _cuts(data, 0, SETTLING, step):
        session.push(batch)
    paths: Any = session.metrics()["queries"]["q"]["paths"]
    first = config.nested_loop == "multi-way"  # there new tuples are outermost, and orders leave them out
    return {driver[1:]: tuple(stage["alias"][1:] for stage in stages[first:]) for driver, stages in paths.items()}


def drive(
    streams: Streams, config: dt.Config, orders: Orders | None, step: int | None, units: int, *, seed: int = 0
) -> Run:
    """Join `units` of time, in a batch every `step` units, or, if that is None, each tuple by itself.

    Counters of an origin begin anew when a session changes its order, so orders are to be given, or not to adapt.
    """
    fill = 400  # a multiple of every step, longer than every window and a step
    session = start(streams, config, orders, select="s1.attr")
    data = evenly_spaced(streams, fill + units, seed)
    for begin in range(0, fill, step or fill):
        session.push(cut(data, begin, begin + (step or fill)))
    before = rows_read(session)
    batches = one_by_one(data, fill) if step is None else _cuts(data, fill, units, step)
    prepared = list(batches)
    began = time.process_time()
    for batch in prepared:
        session.push(batch)
    seconds = time.process_time() - began
    counted = {name: (count - before[name]) / units for name, count in rows_read(session).items()}
    return Run(counted, sum(table.num_rows for batch in prepared for table in batch.values()), seconds)


def _cuts(data: Tuples, begin: int, units: int, step: int) -> Iterator[dict[str, pa.Table]]:
    return (cut(data, moment, moment + step) for moment in range(begin, begin + units, step))
