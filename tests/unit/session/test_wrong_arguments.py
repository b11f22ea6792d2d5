"""Wrong arguments and calls of something else: each is refused, or warned of once, with a hint that works."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError, DovetailWarning, QueryError, SchemaError

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("s", pa.string())])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = pa.table([[NOON], [1], ["x"]], schema=SCHEMA)
BATCH = {"a": ROWS, "b": ROWS}
SQL = "SELECT x.k, y.s FROM a x [RANGE 1 HOUR], b y [RANGE 1 HOUR] WHERE x.k = y.k"
MILLIS = 1_767_268_800_000


def ready(**options: Any) -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, SCHEMA, event_time="ts", **options)
    session.query("q", SQL)
    return session


def any_type(value: Any) -> Any:
    """Return a value that type checkers do not check."""
    return value


def frame(**columns: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"k": [1], "s": ["x"], **columns})


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str, str]] = {
    "option in another case": (
        lambda: dt.Config(ordering=any_type("Weave")),
        ConfigError,
        "Config(ordering=...) is 'Weave'; allowed: 'f-greedy'",
        "did you mean 'weave'?",
    ),
    "misspelt policy": (
        lambda: dt.Shedding(policy=any_type("randm"), max_tuples=10),
        ConfigError,
        "Shedding(policy=...) is 'randm'",
        "did you mean 'random'?",
    ),
    "memory as text": (
        lambda: dt.Budget(memory_bytes=any_type("2GB")),
        ConfigError,
        "Budget(memory_bytes='2GB'): allowed are numbers above zero",
        "write memory_bytes=2 << 30",
    ),
    "a Spark master": (
        lambda: dt.LocalSession(any_type("local[2]")),
        ConfigError,
        "LocalSession(budget=...) is a str",
        "a LocalSession needs no Spark: write dt.LocalSession(), or dt.Session(spark)",
    ),
    "config as dict": (
        lambda: dt.LocalSession(config=any_type({"ordering": "weave"})),
        ConfigError,
        "LocalSession(config=...) is a dict; expected a dovetail.Config",
        'write config=dt.Config(ordering="weave")',
    ),
    "configuration in the place of the budget": (
        lambda: dt.LocalSession(any_type(dt.Config())),
        ConfigError,
        "LocalSession(budget=...) is a Config; expected a dovetail.Budget",
        "write config=...",
    ),
    "event time as a column of pandas": (
        lambda: dt.LocalSession().stream("c", SCHEMA, any_type(frame(ts=[NOON])["ts"])),
        SchemaError,
        "stream 'c': event_time is a Series; expected the name of a column",
        "write event_time='ts'",
    ),
    "progress by a field": (
        lambda: dt.LocalSession().stream("c", SCHEMA, "ts", progress_by=any_type(SCHEMA.field("k"))),
        SchemaError,
        "stream 'c': progress_by is a Field; expected the name of a column",
        "write progress_by='k'",
    ),
    "schema is a path": (
        lambda: dt.LocalSession().stream("c", "in/c.csv", "ts"),
        ConfigError,
        "stream 'c': got a str as schema",
        "read the file first: write pyarrow.csv.read_csv(path); first: import pyarrow.csv",
    ),
    "progress by the event time": (
        lambda: dt.LocalSession().stream("c", SCHEMA, "ts", progress_by="ts"),
        SchemaError,
        "stream 'c': progress_by='ts' is the event time",
        "leave progress_by out",
    ),
    "query without name": (
        lambda: dt.LocalSession().query(SQL),  # type: ignore[call-arg]
        ConfigError,
        "LocalSession.query() needs the argument 'sql'",
        'write sql="SELECT ..."',
    ),
    "name and SQL exchanged": (
        lambda: ready().query(SQL, "r"),
        QueryError,
        "a query starts with SELECT, not 'r'",
        "write query(name, sql): the name comes first",
    ),
    "too many arguments": (
        lambda: ready().query("r", SQL, None, True),  # type: ignore[call-arg]
        ConfigError,
        "LocalSession.query() takes at most 3 arguments without a name, 'name', 'sql', 'probe_orders'; got 4",
        "write backfill=...",
    ),
    "format of explain": (
        lambda: ready().explain("mermaid"),  # type: ignore[call-arg]
        ConfigError,
        "LocalSession.explain() takes no arguments; got 1",
        "explain().mermaid() for a diagram",
    ),
    "drop in another case": (
        lambda: ready().drop_query("Q"),
        ConfigError,
        "there is no query 'Q'; registered: 'q'",
        "did you mean 'q'?",
    ),
    "restore into a session": (
        lambda: ready().restore(ready().snapshot()),
        ConfigError,
        "restore() returns another session and would leave this one as it is",
        "write session = dt.LocalSession.restore(blob)",
    ),
    "advance of one time": (
        lambda: ready().advance(any_type(NOON)),
        ConfigError,
        "advance got a datetime",
        "write advance({'a': time})",
    ),
    "clock as number": (
        lambda: ready().push(BATCH, now=any_type(1.5)),
        ConfigError,
        "push(now=...) is 1.5",
        "write datetime.now(UTC); first: from datetime import UTC, datetime",
    ),
    "column twice": (
        lambda: ready().push({"a": pa.table([[NOON], [1], [2], ["x"]], names=["ts", "k", "k", "s"])}),
        SchemaError,
        "stream 'a': a column occurs twice in 'ts', 'k', 'k', 's'",
        "keep the first of each: table.select([0, 1, 3])",
    ),
    "column of pandas twice": (
        lambda: ready().push({"a": pd.DataFrame([[NOON, 1, 1, "x"]], columns=["ts", "k", "k", "s"])}),
        SchemaError,
        "stream 'a': a column occurs twice in 'ts', 'k', 'k', 's'",
        "df = df.loc[:, ~df.columns.duplicated()]",
    ),
    "times in the index": (
        lambda: ready().push({"a": frame().set_index(pd.DatetimeIndex([NOON]))}),
        SchemaError,
        "stream 'a': missing 'ts'; the frame has an index of times without a name",
        "write df = df.reset_index(names='ts')",
    ),
    "one column of pandas": (
        lambda: ready().push({"a": frame()["k"]}),
        SchemaError,
        "stream 'a': got Series",
        "series.to_frame()",
    ),
    "rows as tuples": (
        lambda: ready().push({"a": [(NOON, 1, "x")]}),
        SchemaError,
        "stream 'a': got list",
        "push pa.Table.from_pylist([dict(zip(schema.names, row)) for row in rows], schema=schema)",
    ),
    "rows of NumPy": (
        lambda: ready().push({"a": np.zeros((3, 3))}),
        SchemaError,
        "stream 'a': got ndarray",
        "dict(zip(schema.names, row))",
    ),
    "results as an attribute": (
        lambda: ready().results,
        AttributeError,
        "no attribute 'results'",
        'push(batch)["query"]',
    ),
    "streams as an attribute": (lambda: ready().streams, AttributeError, "no attribute 'streams'", "explain() shows"),
    "watermark as an attribute": (lambda: ready().watermark, AttributeError, "'watermark'", "metrics() has them"),
    "one batch for the oracle": (
        lambda: dt.testing.expected(ready(), any_type(BATCH)),
        ConfigError,
        "expected() got one batch; expected a list of batches",
        "write expected(session, [batch])",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_refused(mistake: str) -> None:
    call, kind, message, hint = REFUSED[mistake]
    with pytest.raises(kind, match=re.escape(message)) as error:
        call()
    assert hint in str(error.value).partition("\nHint: ")[2]
    assert isinstance(error.value, DovetailError | AttributeError)


def test_hints_for_data_work() -> None:
    rows, times = [(NOON, 1, "x")], frame().set_index(pd.DatetimeIndex([NOON]))
    twice = pd.DataFrame([[NOON, 1, 1, "x"]], columns=["ts", "k", "k", "s"])
    table = pa.table([[NOON], [1], [2], ["x"]], names=["ts", "k", "k", "s"])
    for data in (
        pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA),
        times.reset_index(names="ts"),
        twice.loc[:, ~twice.columns.duplicated()],
        table.select([0, 1, 3]),
    ):
        assert ready().push({"a": data, "b": ROWS})["q"].num_rows == 1


def test_restored_sessions_are_made_by_the_class() -> None:
    session = ready()
    session.push({"a": ROWS})
    assert dt.LocalSession.restore(session.snapshot()).push({"b": ROWS})["q"].num_rows == 1


@pytest.mark.parametrize(
    ("time", "date"), [(MILLIS, "1970-01-21"), (MILLIS // 1000, "1970-01-01"), (MILLIS * 10**6, "the year")]
)
def test_advance_in_another_unit(time: int, date: str) -> None:
    session = ready()
    session.push(BATCH)
    with pytest.warns(
        DovetailWarning, match=f"advance got {date}.* for stream 'a', and tuples of stream 'a' are at 2026-01-01"
    ) as caught:
        session.advance({"a": time})
    assert str(caught[0].message).endswith("Hint: advance takes microseconds since 1970, or a datetime")


def test_times_of_pandas_are_named_as_datetimes() -> None:
    with pytest.warns(DovetailWarning, match="without a time zone") as caught:
        ready().advance({"a": pd.Timestamp("2026-01-01")})
    assert "write datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.UTC); first: import datetime" in str(
        caught[0].message
    )


def test_max_ahead_that_drops_everything() -> None:
    session, two = ready(max_ahead="1 hour"), pa.concat_tables([ROWS, ROWS])
    now = datetime(2020, 1, 1, tzinfo=UTC)
    with pytest.warns(
        DovetailWarning, match="stream 'a': all 2 tuples were dropped, because they are further ahead"
    ) as caught:
        session.push({"a": two}, now=now)
    assert "max_ahead='1 h'\nHint: mind the clock" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.push({"a": two}, now=now)
        ready(max_ahead="1 hour").push(
            {"a": pa.concat_tables([ROWS, ROWS.set_column(0, "ts", [[NOON.replace(year=2126)]])])}, now=NOON
        )
