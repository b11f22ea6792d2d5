"""A job that is stopped, changed and started again with its checkpoint: what the log holds is used, and all is said."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_late_queries import BASE, COLUMNS, DECLARED, OTHER_SHARDS, Live, bounds

import dovetail as dt
from dovetail.errors import DovetailWarning, StateError
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle, assert_same_rows

BATCHES = 4
"""Before the change, and as many after it."""


@dataclass(frozen=True)
class Kind:
    """A change: the queries and streams of the second start, and what is said of it."""

    queries: dict[str, str]
    said: str
    streams: Callable[[dict[str, StreamSchema]], dict[str, StreamSchema]] = lambda streams: streams


KINDS = {
    "a query more": Kind({"base": BASE, "more": OTHER_SHARDS}, "query 'more' is new: it sees tuples from now on"),
    "a query less": Kind({"other": OTHER_SHARDS}, "query 'base' is dropped"),
    "a wider window": Kind(
        {"base": BASE.replace("8 s", "20 s"), "other": OTHER_SHARDS},
        "query 'base' is changed: new tuples are joined with those in the log",
    ),
    "a narrower window": Kind({"base": BASE.replace("8 s", "1 s"), "other": OTHER_SHARDS}, "query 'base' is changed"),
    "another select list": Kind(
        {"base": BASE.replace("a.ts AS a_ts", "a.k AS key"), "other": OTHER_SHARDS}, "query 'base' is changed"
    ),
    "a filter": Kind({"base": f"{BASE} AND a.k > 1", "other": OTHER_SHARDS}, "query 'base' is changed"),
    "a column that was not read": Kind(
        {"base": f"{BASE} AND a.v > 0", "other": OTHER_SHARDS}, "column 'v' of stream 'a' is stored from now on"
    ),
    "another key": Kind(
        {"base": BASE.replace("a.k = b.k", "a.j = b.j"), "other": OTHER_SHARDS},
        "query 'base' is changed: its tuples are partitioned differently; it starts with empty windows",
    ),
    "more lateness": Kind(
        {"base": BASE, "other": OTHER_SHARDS},
        "lateness of stream 'a' was 0 s, is 5 s",
        lambda streams: {**streams, "a": replace(streams["a"], lateness=5_000_000)},
    ),
    "a count window": Kind(
        {"base": BASE.replace("a [RANGE 8 s]", "a [ROWS 2]"), "other": OTHER_SHARDS},
        "query 'base' is changed: its count windows start empty",
    ),
}


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Live:
    """A checkpoint with data in its windows."""
    live = Live(spark, tmp_path_factory.mktemp("job"), seed=7)
    live.start(base=BASE, other=OTHER_SHARDS)
    live.run(BATCHES)
    live.running.stop()
    return live


def session_of(live: Live, streams: dict[str, StreamSchema], queries: dict[str, str], shards: int = 2) -> dt.Session:
    session = dt.Session(live.spark, shards=shards)
    for name, stream in streams.items():
        session.stream(name, live.source.frame(name, COLUMNS), "ts", lateness=stream.lateness / 1e6)
    for name, sql in queries.items():
        session.query(name, sql)
    return session


@pytest.fixture
def files(stopped: Live) -> Iterator[None]:
    """Let the next test find the input as it was."""
    before = set((stopped.folder / "in").rglob("*"))
    yield
    for added in set((stopped.folder / "in").rglob("*")) - before:
        added.unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_job_goes_on(
    spark: SparkSession, stopped: Live, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    change, before = KINDS[kind], {"base": BASE, "other": OTHER_SHARDS}
    place = tmp_path / "checkpoint"
    shutil.copytree(stopped.folder / "checkpoint", place)
    live = Live(spark, tmp_path, seed=8)
    live.source, live.batches = stopped.source, stopped.batches  # Spark's checkpoint knows the paths
    streams = change.streams(dict(DECLARED))
    session = session_of(live, streams, change.queries)
    assert change.said in str(session.compare(place))
    sinks: dict[str, Any] = {name: dt.sinks.memory() for name in change.queries}
    with pytest.warns(DovetailWarning, match="continues with a changed job") as said:
        live.running = session.start(sinks, place)
    assert any(change.said in str(warning.message) for warning in said)
    changes = live.running.changes
    assert changes is not None

    request.addfinalizer(live.running.stop)
    live.oracle = definition(stopped.pushed, before, change, streams)
    earlier = {name: live.oracle.results_table(name) for name in change.queries if name in before}
    live.run(BATCHES)
    for name, sql in change.queries.items():
        wanted = live.oracle.results_table(name)
        if name in changes.kept:  # those of before are where they were written
            found = pa.concat_tables([earlier[name], *tables(sinks[name], wanted.schema)])
        else:
            found = pa.concat_tables([wanted.slice(0, 0), *tables(sinks[name], wanted.schema)])
        assert_same_rows(found, wanted, f"{kind}: {sql}")


def tables(sink: Any, schema: pa.Schema) -> list[pa.Table]:
    found = sink.table()
    return [] if found is None else [found.cast(schema)]


def definition(
    pushed: list[dict[str, pa.Table]], before: dict[str, str], change: Kind, streams: dict[str, StreamSchema]
) -> Oracle:
    """What is promised: queries that mean the same go on, others meet what the log holds if it does."""
    oracle = Oracle(DECLARED.values())
    bound = {name: parse_query(name, sql, DECLARED) for name, sql in before.items()}
    for query in bound.values():
        oracle.add_query(query)
    for push in pushed:
        oracle.push(push)
    for name, sql in before.items():
        if change.queries.get(name) != sql:
            oracle.drop_query(name)
    for name, sql in change.queries.items():
        if sql != before.get(name):
            holds = name in before and "a.j = b.j" not in sql and "ROWS" not in sql
            # Both queries have other shards, so the log of one does not follow from the other's windows.
            held = bounds(oracle, [bound[name]]) if holds else {}
            if "a.v" in sql:
                del held["a"]
            oracle.add_query(parse_query(name, sql, streams), dict(held))
    for name, stream in streams.items():
        oracle._streams[name].schema = stream
    return oracle


@pytest.mark.slow
def test_what_cannot_go_on_is_refused_and_nothing_is_touched(stopped: Live, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    shutil.copytree(stopped.folder / "checkpoint", place)
    with pytest.raises(StateError, match="new holds no checkpoint: it is empty or does not exist"):
        session_of(stopped, dict(DECLARED), {"base": BASE}).compare(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    files = sorted(str(path) for path in place.rglob("*") if path.is_file() and path.name != "_lock")
    some = {name: DECLARED[name] for name in "ab"}
    for session, message in (
        (session_of(stopped, dict(DECLARED), {"base": BASE}, shards=3), "it has 2 shards, this session 3"),
        (session_of(stopped, some, {"base": BASE}), "it also has stream 'c'"),
    ):
        for call in (lambda: session.compare(place), lambda: session.start({"base": dt.sinks.memory()}, place)):  # noqa: B023
            with pytest.raises(StateError, match=message):
                call()
    assert sorted(str(path) for path in place.rglob("*") if path.is_file() and path.name != "_lock") == files
