"""Unit costs of the engine on this machine, so that what a plan is expected to cost can be said in milliseconds.

A stage of a probe path costs so much per call, per probe and per match; a window so much per tuple inserted and expired; a result so
much per column; a stored sub-join so much per match. All are measured on small joins of the engine itself and kept in the user's
cache directory, by machine and version.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.arena import HeapArena
from dovetail.engine.needs import AliasNeeds
from dovetail.engine.shard import ShardEngine
from dovetail.engine.states import MATCH_BYTES, MEMBER_BYTES, StateStore
from dovetail.optimizer.planner import plan_query
from dovetail.optimizer.units import UnitCosts
from dovetail.plan.global_plan import SCOPE, SETTLED
from dovetail.plan.nodes import QueryPlan
from dovetail.query.expressions import Column
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema

_COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.string())])
_SQL = "SELECT a.v, b.v AS w FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k"
_ROWS = 20_000
_ROUNDS = 5
_VERSION = 2


@dataclass(frozen=True)
class UnitTimes:
    """Microseconds."""

    insert: float
    """Per tuple of three columns that enters a window with one index: read, checked, hashed, copied."""
    expire: float
    """Per tuple that leaves it."""
    probe: float
    """Per probe of a hash index that finds nothing."""
    match: float
    """Per match it finds, besides."""
    call: float
    """Per call of a stage, however few probes it makes."""
    value: float
    """Per column of a result."""
    store: float
    """Per match that is stored."""

    def unit_costs(self, stream_bytes: Mapping[str, float], outputs: float) -> UnitCosts:
        """The same for the planner of many queries, given the bytes of a tuple by window and the columns of a result."""
        return UnitCosts(
            insert=self.insert / 1000,
            delete=self.expire / 1000,
            store=self.store / 1000,
            join=self.match / 1000,
            probe=self.probe / 1000,
            result=outputs * self.value / 1000,
            stream_bytes=stream_bytes,
            match_bytes=MATCH_BYTES,
            member_bytes=MEMBER_BYTES,
        )

    def stage(self, calls: float, probes: float, matches: float) -> float:
        """Expected microseconds of a stage."""
        return calls * self.call + probes * self.probe + matches * self.match


def calibrate(*, again: bool = False) -> UnitTimes:
    """Give this machine's unit costs: measured once, in about a second, then read from the cache; `again` measures anew."""
    if again:
        _calibrated.cache_clear()
        _cache_file().unlink(missing_ok=True)
    return _calibrated()


def units_for(
    plans: Sequence[QueryPlan], streams: Mapping[str, StreamSchema], copies: Mapping[str, float] | None = None
) -> UnitCosts:
    """What tuples of some queries cost on this machine: their windows are laid out, and the bytes of a row counted.

    `copies` says how often a tuple of a window is kept, if not once.
    """
    engine = ShardEngine()
    for schema in streams.values():
        engine.add_stream(schema)
    for plan in plans:
        engine.add_query(plan)
    sizes = {
        stream + ("" if group is engine.joined else SETTLED): window.store.bytes_per_row
        for group in engine.groups
        for stream, window in group.windows.items()
    }
    sizes |= {window: sizes[window.split(SCOPE)[0]] * count for window, count in (copies or {}).items()}
    outputs = sum(len(plan.query.outputs) for plan in plans) / max(len(plans), 1)
    return calibrate().unit_costs(sizes, outputs)


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
    keys = _ROWS // 4
    miss, hit, matches = _typical(_probing(keys=1 << 40)), _typical(_probing(keys=keys)), _matches(keys)
    call = _typical(_calling())
    probe = max(miss - call / _ROWS, 1e-4)
    values, stored = _typical(_gathering(keys)), _typical(_storing(keys))
    return UnitTimes(
        insert=_typical(_inserting) / _ROWS,
        expire=_typical(_expiring) / _ROWS,
        probe=probe,
        match=max((hit - miss) / matches, 1e-4),
        call=call,
        value=values / (2 * matches * _ROWS),
        store=stored / (matches * _ROWS),
    )


def _typical(measure: Callable[[], float]) -> float:
    measure()  # compiles, and warms the caches
    return median(measure() for _ in range(_ROUNDS))


def _engine() -> ShardEngine:
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


def _gathering(keys: int) -> Callable[[], float]:
    def measure() -> float:
        engine = _filled(keys)
        engine.push({"a": _table(_ROWS, keys, 2)})
        return 1e6 * engine.collectors["q"].seconds

    return measure


def _storing(keys: int) -> Callable[[], float]:
    """Put the matches of `_probing` into a store with one index, as a join that is stored does."""

    def measure() -> float:
        engine = _filled(keys)
        (run,) = engine.joined.runs.values()
        windows = {source: tuples.store for source, tuples in run.tuples.items()}
        state = run.state = StateStore(HeapArena(), "state", tuple(run.windows.items()), windows)
        needs = AliasNeeds()
        needs.add_part(Column("", "[a].k", pa.int64()))
        needs.indexes |= needs.codes
        usages = {alias: window.usages["q", alias] for alias, window in engine.joined.windows.items()}
        state.add_reader("q", tuple(run.windows.items()), needs, {"[a].k": Column("a", "k", pa.int64())}, usages, None)
        run.step = replace(run.step, state="state")
        engine.joined.states["state"] = state
        engine.push({"a": _table(_ROWS, keys, 2)})
        return 1e6 * state.seconds

    return measure


def _inserting() -> float:
    engine = _engine()
    table = _table(_ROWS, 1 << 40, 1)
    began = time.perf_counter()
    engine.push({"b": table})
    return 1e6 * (time.perf_counter() - began)


def _expiring() -> float:
    engine = _filled(1 << 40)
    (store,) = engine.joined.stores("b")
    began = time.perf_counter()
    store.expire_before(1 << 60)
    return 1e6 * (time.perf_counter() - began)
