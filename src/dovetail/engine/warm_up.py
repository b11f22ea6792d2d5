"""Compile every kernel before the first batch does.

Compiled code is kept on disk beside the kernels (or where NUMBA_CACHE_DIR says), so this takes some seconds once and some
milliseconds afterwards.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.shard import ShardEngine
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.paths import probe_path
from dovetail.query.expressions import Column
from dovetail.query.model import (
    CountWindow,
    Equality,
    JoinQuery,
    Key,
    Output,
    StreamRef,
    TimeWindow,
    Window,
    equality_classes,
)
from dovetail.schema import TIMESTAMP, StreamSchema

_COLUMNS = pa.schema([("t", TIMESTAMP), ("k", pa.int64()), ("s", pa.string()), ("b", pa.large_string())])
_ROWS = pa.table([[0, 0, 1, 1], [1, 2, 1, 2], ["a", "b", "a", "b"], ["a", "b", "a", "b"]], schema=_COLUMNS)


@cache
def warm_up() -> None:
    """Run a few tuples through every kernel, once per process."""
    for config in (
        Config(),
        Config(join="nested-loop", nested_loop="naive"),
        Config(evaluation="eager", expiration="eager"),
    ):
        engine = ShardEngine(config)
        engine.add_stream(StreamSchema("w", _COLUMNS, "t"))
        for number, (window, keys) in enumerate(_SHAPES):
            engine.add_query(_plan(f"q{number}", window, keys, config))
        for _ in range(2):
            engine.push({"w": _ROWS})
        engine.advance({"w": 1 << 40})


_SHAPES: tuple[tuple[Window, tuple[str, ...]], ...] = (
    (TimeWindow(10), ("k",)),
    (TimeWindow(10), ("k", "s")),
    (TimeWindow(10), ("s",)),
    (CountWindow(1), ("k",)),
    (CountWindow(1, "s"), ("k",)),
)


def _plan(name: str, window: Window, keys: tuple[str, ...], config: Config) -> QueryPlan:
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
        probe_path(query, driver, order, lambda *_: "scan" if scan else "hash") for driver, order in orders.items()
    )
    return QueryPlan(query, tuple(paths), "fixed")
