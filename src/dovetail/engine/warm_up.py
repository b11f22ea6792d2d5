"""Compile every kernel before the first batch.

Compiled code is cached on disk (see `kernels.compile`), so this takes some seconds once and some milliseconds afterwards.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from dovetail.config import Config, Shedding
from dovetail.engine.kernels.extend import LookupCodes, TargetAlias, WindowArrays, gather_codes, probe_hash
from dovetail.engine.kernels.index import Chain
from dovetail.engine.kernels.verify import keep_marked, keep_marked_results
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding import POLICIES
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.paths import build_path
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.steps import Consumer, JoinStep, SourceUse
from dovetail.query.expressions import Column, rename_alias
from dovetail.query.model import (
    CountWindow,
    Equality,
    JoinQuery,
    Key,
    Output,
    StreamRef,
    TimeWindow,
    equality_classes,
)
from dovetail.schema import TIMESTAMP, StreamSchema

_COLUMNS = pa.schema([("t", TIMESTAMP), ("k", pa.int64()), ("s", pa.string()), ("b", pa.large_string())])
_ROWS = pa.table([[0, 0, 1, 1], [1, 2, 1, 2], ["a", "b", "a", "b"], ["a", "b", "a", "b"]], schema=_COLUMNS)
_NULLS = pa.table([[1], [1], [None], [None]], schema=_COLUMNS)


def cache_directory() -> str | None:
    """Return the directory of compiled code; None if none is writable, or nothing is compiled."""
    kernel_cache = getattr(keep_marked, "_cache", None)
    return getattr(kernel_cache, "cache_path", None)


@cache
def warm_up() -> None:
    """Run a few tuples through every kernel that all sessions need, once per process."""
    for config in (
        Config(),
        Config(join="nested-loop", nested_loop="naive"),
        Config(evaluation="eager", expiration="eager"),
    ):
        engine = ShardEngine(config)
        engine.add_stream(StreamSchema("w", _COLUMNS, "t"))
        # Two queries of each kind share stages, which run in a probe tree.
        steps = [_step(f"q{index}", window, keys, config) for index, (window, keys) in enumerate(2 * _QUERIES)]
        engine.adopt(ExecutionPlan.of(steps))
        for rows in (_ROWS, _ROWS, _NULLS):
            engine.push({"w": rows})
        for store in engine.joined.windows.values():
            store.compact(np.ones(len(store.rows), np.bool_))
            for column in store.columns.values():
                column.take(np.zeros(1, np.int64))
        engine.advance({"w": 1 << 40})
    _warm_up_stages()
    marks = np.zeros(1, np.int64)  # the next kernels run only if a condition fails or two hashes collide
    keep_marked(np.zeros((1, 1), np.int64), 1, marks)
    keep_marked_results(np.zeros((1, 1), np.int64), 0, marks)


def _warm_up_stages() -> None:
    """Compile the kernels of stages that run one at a time, after a condition."""
    words, codes, rows = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.zeros((1, 3), np.int64)
    window = WindowArrays(0, codes, words, words, codes)
    chain = Chain(words, words, np.uint64(63))
    lookup, bounds = LookupCodes(codes, -1, 0), (rows[:, :1].copy(), rows[:, :1].copy())
    probe_hash(rows, 0, 0, -1, *window, *TargetAlias(0, 1, np.uint64(1)), *chain, words, *lookup, *bounds, 0, 0, rows)
    gather_codes(rows, 0, 0, codes, 0, codes)


@cache
def warm_up_shedding() -> None:
    """Run a few tuples through the kernels of shedding, once per process."""
    for policy in POLICIES:
        engine = ShardEngine(Config(shedding=Shedding(policy, max_tuples=2)))
        engine.add_stream(StreamSchema("w", _COLUMNS, "t"))
        engine.adopt(ExecutionPlan.of([_step("q", TimeWindow(10), ("k",), engine.config)]))
        for _ in range(2):
            engine.push({"w": _ROWS})
        shedder = engine.joined.shedder
        assert shedder is not None  # noqa: S101 - the configuration says so
        shedder.warm_up()


_QUERIES: tuple[tuple[TimeWindow | CountWindow, tuple[str, ...]], ...] = (
    (TimeWindow(10), ("k",)),
    (TimeWindow(10), ("k", "s")),
    (TimeWindow(10), ("s",)),
    (CountWindow(1), ("k",)),
    (CountWindow(1, "s"), ("k",)),
)


def _step(name: str, window: TimeWindow | CountWindow, keys: tuple[str, ...], config: Config) -> JoinStep:
    refs = tuple(StreamRef(alias, "w", window) for alias in "xy")
    columns = {alias: [Column(alias, field.name, field.type) for field in _COLUMNS] for alias in "xy"}
    pairs = [[column for column in columns[alias] if column.name in keys] for alias in "xy"]
    equalities = tuple(
        Equality(Key("x", left), Key("y", right), left.type, "") for left, right in zip(*pairs, strict=True)
    )
    outputs = tuple(Output(f"{column.alias}{column.name}", column) for alias in "xy" for column in columns[alias])
    query = JoinQuery(name, "", refs, equalities, (), (), outputs, equality_classes(equalities))
    scan = config.join == "nested-loop"
    orders = {"x": "xy", "y": "xy" if scan else "yx"}
    paths = (
        build_path(query, driver, order, lambda *_: "scan" if scan else "hash") for driver, order in orders.items()
    )
    plan = QueryPlan(query, tuple(paths), "fixed")
    key_columns = {
        alias: tuple(rename_alias(column, lambda _: "") for column in columns[alias] if column.name in keys)
        for alias in "xy"
    }
    text = Column("", "s", pa.string())
    partition = (text, text) if isinstance(window, CountWindow) and window.partition_by else None
    sources = [SourceUse(alias, "w", window, alias, (), key_columns[alias], partition) for alias in "xy"]
    spans = dict.fromkeys("xy", window.micros) if isinstance(window, TimeWindow) else {}
    consumer = Consumer(name, {alias: alias for alias in "xy"}, outputs, tuple(range(len(outputs))), spans)
    return JoinStep(plan, tuple(sources), (consumer,))
