"""Unit costs of the engine on this machine, so that what a plan is expected to cost can be said in milliseconds.

A stage of a probe path costs so much per call, per probe and per match; a window so much per tuple inserted and expired. All five are
measured on small joins of the engine itself and kept in the user's cache directory, by machine and version.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dovetail.config import Config
from dovetail.optimizer.planner import plan_query
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema

if TYPE_CHECKING:
    from dovetail.engine.shard import ShardEngine

_COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.string())])
_SQL = "SELECT a.v, b.v AS w FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k"
_ROWS = 20_000
_ROUNDS = 5
_VERSION = 1


@dataclass(frozen=True)
class UnitTimes:
    """Microseconds."""

    insert: float
    """Per tuple that enters a window with one index."""
    expire: float
    """Per tuple that leaves it."""
    probe: float
    """Per probe of a hash index that finds nothing."""
    match: float
    """Per match it finds, besides."""
    call: float
    """Per call of a stage, however few probes it makes."""

    def stage(self, calls: float, probes: float, matches: float) -> float:
        """Expected microseconds of a stage."""
        return calls * self.call + probes * self.probe + matches * self.match


def calibrate(*, again: bool = False) -> UnitTimes:
    """Give this machine's unit costs: measured once, in about a second, then read from the cache; `again` measures anew."""
    if again:
        _calibrated.cache_clear()
        _cache_file().unlink(missing_ok=True)
    return _calibrated()


@cache
def _calibrated() -> UnitTimes:
    path = _cache_file()
    try:
        return UnitTimes(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    units = _measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(units)), encoding="utf-8")
    except OSError:
        pass  # a home that cannot be written to costs a second per process
    return units


def _cache_file() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    machine = "".join(c if c.isalnum() else "-" for c in f"{platform.node()}-{platform.machine()}")
    return home / "dovetail" / f"units-{_VERSION}-{machine}.json"


def _measure() -> UnitTimes:
    miss, hit, matches = _typical(_probing(keys=1 << 40)), _typical(_probing(keys=_ROWS // 4)), _matches(_ROWS // 4)
    call = _typical(_calling())
    probe = max(miss - call / _ROWS, 1e-4)
    return UnitTimes(
        _typical(_inserting) / _ROWS, _typical(_expiring) / _ROWS, probe, max((hit - miss) / matches, 1e-4), call
    )


def _typical(measure: Callable[[], float]) -> float:
    measure()  # compiles, and warms the caches
    return median(measure() for _ in range(_ROUNDS))


def _engine() -> ShardEngine:
    from dovetail.engine.shard import ShardEngine  # noqa: PLC0415 - Spark's driver seldom needs it

    streams = {name: StreamSchema(name, _COLUMNS, "ts") for name in "ab"}
    engine = ShardEngine(Config(adaptive=False))
    for stream in streams.values():
        engine.add_stream(stream)
    engine.add_query(plan_query(parse_query("q", _SQL, streams), streams, engine.config))
    return engine


def _table(rows: int, keys: int, seed: int) -> pa.Table:
    values = np.random.default_rng(seed).integers(0, keys, rows)
    times = pa.array(np.arange(rows) * (9_000_000 // max(rows, 1)), TIMESTAMP)
    return pa.table([times, values, pa.array(np.full(rows, "sixteen letters."))], schema=_COLUMNS)


def _filled(keys: int) -> ShardEngine:
    engine = _engine()
    engine.push({"b": _table(_ROWS, keys, 1)})
    return engine


def _stage_micros(engine: ShardEngine) -> float:
    return 1e6 * engine.run_of("q").runners["a"].seconds[1]


def _probing(keys: int) -> Callable[[], float]:
    def measure() -> float:
        engine = _filled(keys)
        engine.push({"a": _table(_ROWS, keys, 2)})
        return _stage_micros(engine) / _ROWS

    return measure


def _matches(keys: int) -> float:
    """Matches per probe of the joins that `_probing` times."""
    engine = _filled(keys)
    return len(engine.push({"a": _table(_ROWS, keys, 2)})["q"]) / _ROWS


def _calling() -> Callable[[], float]:
    def measure() -> float:
        engine = _filled(1 << 40)
        one = _table(1, 1, 3)
        for _ in range(50):
            engine.push({"a": one})
        return _stage_micros(engine) / 50

    return measure


def _inserting() -> float:
    engine = _engine()
    prepared = engine.joined.prepare({"b": engine._readers["b"].read(_table(_ROWS, 1 << 40, 1))})  # noqa: SLF001
    began = time.perf_counter()
    engine.joined.load(prepared)
    return 1e6 * (time.perf_counter() - began)


def _expiring() -> float:
    engine = _filled(1 << 40)
    (store,) = engine.joined.stores("b")
    began = time.perf_counter()
    store.expire_before(1 << 60)
    return 1e6 * (time.perf_counter() - began)
