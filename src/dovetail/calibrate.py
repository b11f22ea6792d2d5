"""Calibration: measures the engine's unit costs on this machine, to price plans in milliseconds.

A stage of a probe path has a cost per call, per probe and per match; a window per tuple inserted and expired; a result per column; a
materialized join per match. All are measured on small joins of the engine itself and cached in the user's cache directory, by machine
and version. `explain` shows them, as `UnitTimes`; planning under a budget charges them, as `UnitCosts`; probe orders do not depend on
them.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import log
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.arena import HeapArena
from dovetail.engine.storage.materialized import MATCH_BYTES, MEMBER_BYTES
from dovetail.engine.storage.window import WindowStore
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.names import WindowCopies, window_name
from dovetail.plan.steps import JOINED
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.stats.counters import Measurements

_COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.string())])
_SQL = {
    "pairs": "SELECT a.v, b.v AS w FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k",
    "triples": "SELECT c.v FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.k = b.k AND a.v = c.v",
}
"""The second reads the matches of the first, which are materialized."""
_BATCH = 20_000
_SIZES = (20_000, 1_000_000)
"""Tuples in the measured windows: one fits a processor's cache, the other does not."""
_LONG = 3_600_000_000
"""Lateness in microseconds: all batches have the same event times, and none is late."""
_ROUNDS = 5
_VERSION = 10


@dataclass(frozen=True)
class UnitTimes:
    """Measured times of the engine's operations in microseconds.

    `unit_costs` converts them for the planner.
    """

    insert: float
    """Per tuple of three columns inserted into a window with one index: read, checked, hashed, copied."""
    expire: float
    """Per expired tuple."""
    probe: float
    """Per probe of a hash index that finds nothing."""
    match: float
    """Per match, in addition to the probe."""
    call: float
    """Per call of a stage, a fixed cost."""
    value: float
    """Per column of a result."""
    store: float
    """Per match stored in a materialized join."""
    batch_result: float
    """Per batch with results of a query of two columns, a fixed cost."""
    batch_store: float
    """Per batch with matches of a materialized join, a fixed cost."""

    def unit_costs(self, stream_bytes: Mapping[str, float], outputs: float) -> UnitCosts:
        """Return the planner's unit costs, given bytes per tuple by window and the mean of output columns."""
        return UnitCosts(
            insert=self.insert / 1000,
            delete=self.expire / 1000,
            store=self.store / 1000,
            join=self.match / 1000,
            probe=self.probe / 1000,
            result=outputs * self.value / 1000,
            batch_result=outputs / 2 * self.batch_result / 1000,
            batch_store=self.batch_store / 1000,
            batch_stage=self.call / 1000,
            stream_bytes=stream_bytes,
            match_bytes=MATCH_BYTES,
            member_bytes=MEMBER_BYTES,
        )

    def stage(self, calls: float, probes: float, matches: float) -> float:
        """Return the expected microseconds of a stage, for `explain`."""
        return calls * self.call + probes * self.probe + matches * self.match


def calibrate(tuples: float = _SIZES[0], *, again: bool = False) -> UnitTimes:
    """Return this machine's unit times for windows of `tuples` tuples; larger windows take longer.

    They are measured once, in about two seconds, then read from a file; `again` measures them again.
    """
    if again:
        _calibrated.cache_clear()
        _cache_file().unlink(missing_ok=True)
    small, large = _calibrated()
    weight = min(max(log(max(tuples, 1) / _SIZES[0]) / log(_SIZES[1] / _SIZES[0]), 0.0), 1.0)
    return UnitTimes(
        **{name: value ** (1 - weight) * getattr(large, name) ** weight for name, value in asdict(small).items()}
    )


def unit_costs_for(
    plan: ExecutionPlan,
    streams: Mapping[str, StreamSchema],
    window_copies: Mapping[str, WindowCopies] | None = None,
) -> UnitCosts:
    """Return the unit costs of a plan on this machine, with bytes per row from the layout of its windows.

    `window_copies` has the windows of groups of shards, by scoped name.
    """
    sizes = {}
    for window in plan.windows:
        store = WindowStore(HeapArena(), window.name, streams[window.stream])
        store.extend(window.kept, window.expiry_tables, window.words)
        sizes[window_name(window.stream, settled=window.group != JOINED)] = store.bytes_per_row
    copies = (window_copies or {}).items()
    sizes |= {window: sizes[plain] * count for window, (plain, count) in copies if plain in sizes}
    consumers = [consumer for step in plan.steps for consumer in step.consumers]
    outputs = sum(len(consumer.outputs) for consumer in consumers) / max(len(consumers), 1)
    tuples = [(streams[window.stream].rate or 1.0) * window.longest_micros / 1e6 for window in plan.windows]
    return calibrate(sum(tuples) / max(len(tuples), 1)).unit_costs(sizes, outputs)


def unit_times_for(measured: Measurements) -> UnitTimes:
    """Return the unit times for windows of the mean `measured` size."""
    windows = measured.nodes.windows.values()
    return calibrate(sum(window.tuples or 0 for window in windows) / max(len(windows), 1))


@cache
def _calibrated() -> tuple[UnitTimes, UnitTimes]:
    path = _cache_file()
    try:
        small, large = json.loads(path.read_text(encoding="utf-8"))
        return UnitTimes(**small), UnitTimes(**large)
    except (OSError, ValueError, TypeError):
        pass
    small, large = measured = _measure(_SIZES[0]), _measure(_SIZES[1])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(small), asdict(large)]), encoding="utf-8")
    except OSError:
        pass  # without a writable cache, each process takes two seconds to measure
    return measured


def _cache_file() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    machine = "".join(c if c.isalnum() else "-" for c in f"{platform.node()}-{platform.machine()}")
    # Without Numba's JIT the kernels take hundreds of times as long; other processes must not plan by that.
    uncompiled = "-nojit" if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" else ""
    return home / "dovetail" / f"units-{_VERSION}-{machine}{uncompiled}.json"


def _measure(tuples: int) -> UnitTimes:
    """Measure joins with a window of `tuples` tuples, once without matches, once with about one per probe."""
    misses, hits = _Bench(tuples, 1 << 40), _Bench(tuples, tuples)
    call = median(misses.push(1).probing for _ in range(10 * _ROUNDS))
    few = [hits.push(1) for _ in range(10 * _ROUNDS)]
    missed, hit = ([bench.push(_BATCH) for _ in range(1 + _ROUNDS)][1:] for bench in (misses, hits))
    miss = median(round_.probing for round_ in missed)
    matches = median(round_.matches for round_ in hit)
    hits.expire_seconds()  # the first time takes longer
    return UnitTimes(
        insert=1e6 * median(misses.insert_seconds(_BATCH) for _ in range(_ROUNDS)) / _BATCH,
        expire=1e6 * misses.expire_seconds() / tuples,
        probe=max(1e6 * (miss - call) / _BATCH, 1e-4),
        match=max(1e6 * (median(round_.probing for round_ in hit) - miss) / matches, 1e-4),
        call=1e6 * call,
        value=1e6 * median(round_.gathering for round_ in hit) / (2 * matches),
        store=1e6 * median(round_.storing for round_ in hit) / matches,
        batch_result=1e6 * median(round_.gathering for round_ in few),
        batch_store=1e6 * median(round_.storing for round_ in few),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """Seconds of each phase of a batch, and its matches."""

    probing: float
    gathering: float
    storing: float
    matches: float


class _Bench:
    """An engine that delivers and materializes matches; tuples of one stream probe the window of another."""

    def __init__(self, tuples: int, keys: int) -> None:
        streams = {name: StreamSchema(name, _COLUMNS, "ts", lateness=_LONG) for name in "abc"}
        config = Config(adaptive=False, strategy="bjtree")
        self._engine = ShardEngine(config)
        for stream in streams.values():
            self._engine.add_stream(stream)
        plans = {name: plan_query(parse_query(name, sql, streams), streams, config) for name, sql in _SQL.items()}
        shared = JointPlanning(plans, config).plan()
        self._engine.adopt(ExecutionPlan.of(Lowering(streams, config).steps(shared)))
        self._run = self._engine.run_of("pairs")
        self._keys, self._seed = keys, 0
        self._engine.push({"b": self._table(tuples)})

    def _table(self, rows: int) -> pa.Table:
        self._seed += 1
        values = np.random.default_rng(self._seed).integers(0, self._keys, rows)
        times = pa.array(np.arange(rows) * 9_000_000 // max(rows, 1), TIMESTAMP)
        return pa.table([times, values, pa.repeat("sixteen letters.", rows)], schema=_COLUMNS)

    def push(self, rows: int) -> _Round:
        table, before = self._table(rows), self._counters()
        self._engine.push({"a": table})
        return _Round(*(after - earlier for after, earlier in zip(self._counters(), before, strict=True)))

    def _counters(self) -> tuple[float, ...]:
        (materialized,) = self._engine.joined.materialized.values()
        collector, probing = self._run.collectors["pairs"], self._run.runners["a"].seconds[1]
        return probing, collector.seconds, materialized.seconds, collector.results

    def insert_seconds(self, rows: int) -> float:
        """Return the seconds to insert `rows` tuples into the probed window, which has one index."""
        store = self._engine.joined.windows["b"]
        before = store.seconds
        self._engine.push({"b": self._table(rows)})
        return store.seconds - before

    def expire_seconds(self) -> float:
        """Return the seconds to expire the whole window."""
        store = self._engine.joined.windows["b"]
        start = time.perf_counter()
        store.expire_before(1 << 60)
        return time.perf_counter() - start
