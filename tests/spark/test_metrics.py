"""`metrics()` of a running session has the shape of a local session's, before the first batch and after it."""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pipeline import Pipeline, layout_of
from typed_dicts import assert_typed

import dovetail as dt
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.session.metrics import RunningMetrics, SessionMetrics
from dovetail.session.monitor import Monitor
from dovetail.spark.driver.failures import state_text
from dovetail.spark.driver.job import RunningJob
from dovetail.spark.driver.reports import ShardReports
from dovetail.spark.running import RunningSession

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
STREAMS = tuple(StreamSchema(name, COLUMNS, "ts", 1_000_000) for name in "ab")
SQL = {"q": "SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k AND a.ts < b.ts"}
COUNTS = ("arrivals", "late", "ahead", "refused", "shed", "max_event_time", "watermark")


DECLARING = {"stream", "query", "selectivity", "explain"}
FIELDS = {kind: {field.name for field in fields(kind)} for kind in (dt.Comparison, dt.Config, dt.Budget)}
PUBLIC: dict[type, set[str]] = {
    dt.LocalSession: DECLARING
    | {"add_query", "drop_query", "push", "push_iter", "advance", "metrics", "snapshot", "restore", "windows", "why"},
    dt.Session: DECLARING | {"start", "compare", "dataframe"},
    dt.RunningSession: {
        "add_query",
        "drop_query",
        "await_termination",
        "stop",
        "watch",
        "monitor",
        "why",
        "metrics",
        "explain",
        "has_ended",
    },
    dt.Comparison: {name for name in FIELDS[dt.Comparison] if hasattr(dt.Comparison, name)} | {"is_same"},
    dt.Config: {name for name in FIELDS[dt.Config] if hasattr(dt.Config, name)},
    dt.Budget: {name for name in FIELDS[dt.Budget] if hasattr(dt.Budget, name)},
}


def tables() -> list[dict[str, pa.Table]]:
    rng = random.Random(1)

    def table(start: int) -> pa.Table:
        times = sorted(rng.randrange(start, start + 5_000_000) for _ in range(100))
        return pa.table([pa.array(times, TIMESTAMP), pa.array([rng.randrange(50) for _ in times])], schema=COLUMNS)

    return [{"a": table(start), "b": table(start)} for start in (0, 5_000_000)]


@pytest.mark.parametrize("shedding", [None, dt.Shedding("fifo", max_tuples=40)], ids=["exact", "shedding"])
def test_the_shape_is_the_same_from_the_start_and_in_both_sessions(
    tmp_path: Path, shedding: dt.Shedding | None
) -> None:
    config = dt.Config(shedding=shedding, driver_policy="declared")
    local = dt.LocalSession(config=config)
    for stream in STREAMS:
        local.stream(stream.name, COLUMNS, "ts", 1.0)
    local.query("q", SQL["q"])
    layout = layout_of(STREAMS, SQL, 4, config)
    pipeline = Pipeline(layout, tmp_path, random.Random(1))
    running = RunningSession(
        cast("Any", None), RunningJob(layout.job, layout, (), {}, cast("Any", None), {}, {}), "run"
    )
    running.query = cast("Any", SimpleNamespace(isActive=True))
    before: Any = running.metrics()
    for batch in tables():
        local.push(batch)
        pipeline.run(batch)
    running._reports._shards = pipeline.metrics
    after: Any = running.metrics()
    expected: Any = local.metrics()
    for metrics in (before, after):
        assert_typed(metrics, RunningMetrics)
        assert metrics.keys() - expected.keys() == {"shards", "rebuilt_shards", "log_bytes"}
        assert expected.keys() <= metrics.keys()
        for kind in ("streams", "queries"):
            shapes = [{name: entry.keys() for name, entry in of[kind].items()} for of in (metrics, expected)]
            assert shapes[0] == shapes[1]
    assert_typed(expected, SessionMetrics)
    counts = {name: {key: stream[key] for key in COUNTS} for name, stream in after["streams"].items()}
    if shedding is None:
        assert counts == {name: {key: stream[key] for key in COUNTS} for name, stream in expected["streams"].items()}
        assert after["queries"]["q"]["matches"] == expected["queries"]["q"]["matches"] > 0
        assert after["nodes"]["joins"]["q"]["matches"] == after["queries"]["q"]["matches"]
    else:
        assert counts["a"]["shed"] > 0
        assert after["queries"]["q"]["recall"]["given"] > 0
    assert "batches 0, migrations 0, breaches 0, rebuilt shards 0" in repr(after).splitlines()
    assert "4 shards, no batch yet; runs&gt;" in running._repr_html_()
    assert "a.ts &lt; b.ts" in running._repr_html_()


def test_a_comparison_is_shown_as_text_and_as_a_table() -> None:
    comparison = dt.Comparison(kept=("q",), changed={"c": "its windows start empty"}, new=("<new>",))
    assert repr(comparison) == (
        "query 'q' is kept\nquery 'c' is changed: its windows start empty\nquery '<new>' is new: it sees tuples from now on"
    )
    html = comparison._repr_html_().replace(' style="text-align:left"', "")
    assert "<tr><td>q</td><td>kept</td><td></td></tr>" in html
    assert "<tr><td>&lt;new&gt;</td><td>new</td><td>it sees tuples from now on</td></tr>" in html
    assert repr(dt.Comparison()) == "<Comparison of jobs without queries>"
    assert "Comparison of jobs" in dt.Comparison()._repr_html_()


def test_the_state_of_a_job_is_shown_whatever_happened() -> None:
    query: Any = SimpleNamespace(exception=lambda: None)
    assert state_text(query, None, has_ended=False) == "runs"
    assert state_text(query, None, has_ended=True) == "has ended"
    assert state_text(query, dt.StateError("the sink\nis gone", "make room"), has_ended=True) == "has failed: the sink"
    assert state_text(query, KeyError(), has_ended=True) == "has failed: KeyError"
    query.exception = lambda: ValueError("x" * 9999)
    assert 0 < len(state_text(query, None, has_ended=True)) < 300
    query.exception = lambda: 1 / 0  # Spark has gone
    assert state_text(query, None, has_ended=True) == "has ended"


@pytest.mark.parametrize("kind", [dt.LocalSession, dt.Session, dt.RunningSession, dt.Comparison, dt.Config, dt.Budget])
def test_public_objects_have_no_methods_that_are_not_for_users(kind: type) -> None:
    assert set(dir(kind)) - set(dir(object)) - {name for name in dir(kind) if name.startswith("_")} == PUBLIC[kind]


def test_metrics_while_a_batch_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """`metrics()` used to fail when a sink added its results meanwhile, and to count a batch twice between two steps."""
    monkeypatch.setattr("dovetail.spark.driver.reports.collect_results", lambda _: [])
    names = [f"q{number}" for number in range(10)]
    reports = ShardReports(layout_of(STREAMS, dict.fromkeys(names, SQL["q"]), 1))
    monitor, stopped = Monitor(None), threading.Event()

    def run_batches() -> None:
        batch_id = 0
        while not stopped.is_set():
            reports.collect(cast("Any", None), batch_id)
            for name in names:
                reports.add_results(name, 1)
            batch_id += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer = threading.Thread(target=run_batches)
    writer.start()
    try:
        for _ in range(100):
            metrics = reports.metrics(monitor)
            totals = {metrics["queries"][name]["results"] for name in names}
            assert totals <= {metrics["batches"] - 1, metrics["batches"]}
            assert metrics["last_batch"]["batch"] in {None, metrics["batches"] - 1}
            assert reports.summary
    finally:
        stopped.set()
        writer.join()
        sys.setswitchinterval(interval)


def test_results_of_a_replayed_batch_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.spark.driver.reports.collect_results", lambda _: [])
    reports = ShardReports(layout_of(STREAMS, SQL, 1))
    for batch_id, results in ((0, 3), (1, 5), (1, 7)):
        reports.collect(cast("Any", None), batch_id)
        reports.add_results("q", results)
    metrics = reports.metrics(Monitor(None))
    assert (metrics["queries"]["q"]["results"], metrics["batches"]) == (10, 2)
    assert (metrics["last_batch"]["queries"]["q"], metrics["last_batch"]["batch"]) == ({"results": 7}, 1)
    assert reports.summary == "1 shard, 2 batches, 10 results"
