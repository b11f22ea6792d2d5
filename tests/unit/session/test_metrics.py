"""`metrics()` has a documented shape from the start; `repr` and notebooks show it, and the session, as tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typed_dicts import assert_typed

import dovetail as dt
from dovetail.engine.change.savepoint import IRREVERSIBLE
from dovetail.session.metrics import SessionMetrics

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
PAIRS = "SELECT a.k, b.ts FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k"
TRIPLES = "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.k = b.k AND b.k = c.k AND a.ts < c.ts"
CONFIGS = [
    dt.Config(),
    dt.Config(strategy="bjtree"),
    dt.Config(shedding=dt.Shedding("fifo", max_tuples=100)),
]


def session_of(config: dt.Config, budget: dt.Budget | None = None) -> dt.LocalSession:
    session = dt.LocalSession(budget, config)
    for name in "abc":
        session.stream(name, SCHEMA, event_time="ts", lateness="2 s")
    session.query("pairs", PAIRS)
    session.query("triples", TRIPLES)
    return session


def fill(session: dt.LocalSession, batches: int = 6) -> None:
    rng = np.random.default_rng(1)
    for batch in range(batches):
        times = np.sort(rng.integers(0, 1_000_000, 2000)) + batch * 1_000_000
        keys = np.where(rng.random(2000) < 0.3, 7, rng.integers(0, 5000, 2000))
        table = pa.table([pa.array(times).cast(SCHEMA.field("ts").type), pa.array(keys)], schema=SCHEMA)
        session.push(dict.fromkeys("ab", table) | {"c": table.slice(0, 20)})


@pytest.mark.parametrize("config", CONFIGS, ids=["default", "materialized", "shedding"])
def test_the_shape_is_the_same_from_the_start(config: dt.Config) -> None:
    session = session_of(config, dt.Budget(cpu_ms_per_second=1e9) if config.strategy != "auto" else None)
    before: Any = session.metrics()
    fill(session)
    after: Any = session.metrics()
    for metrics in (before, after):
        assert_typed(metrics, SessionMetrics)
        assert list(metrics["streams"]) == ["a", "b", "c"]
        assert list(metrics["queries"]) == ["pairs", "triples"]
        assert json.loads(json.dumps(metrics)).keys() == metrics.keys()
    assert {name: stream.keys() for name, stream in before["streams"].items()} == {
        name: stream.keys() for name, stream in after["streams"].items()
    }
    assert [metrics["streams"]["a"]["arrivals"] for metrics in (before, after)] == [0, 12_000]
    assert (after["batches"], before["batches"]) == (6, 0)
    sheds = config.shedding is not None
    assert [(query["recall"] is not None) for query in after["queries"].values()] == [sheds, sheds]
    assert (after["streams"]["a"]["shed"] > 0) == sheds
    assert sheds or after["streams"]["a"]["hottest"]["k"].keys() == {"7"}


def test_a_query_that_is_added_is_there_at_once() -> None:
    session = session_of(dt.Config())
    fill(session, 1)
    session.query("again", PAIRS)
    assert session.metrics()["queries"]["again"]["results"] == 0
    session.drop_query("again")
    assert "again" not in session.metrics()["queries"]


def test_times_are_texts_and_the_lag_is_that_of_the_clock_given_to_push() -> None:
    session = session_of(dt.Config())
    times = pa.array([10_000_000, 12_500_000], SCHEMA.field("ts").type)
    table = pa.table([times, pa.array([1, 2])], schema=SCHEMA)
    session.push({"a": table}, now=datetime.fromtimestamp(20, UTC))
    streams: Any = session.metrics()["streams"]
    assert streams["a"]["max_event_time"] == "1970-01-01T00:00:12.500000Z"
    assert streams["a"]["watermark"] == "1970-01-01T00:00:10.500000Z"
    assert streams["a"]["lag_seconds"] == 7.5
    assert [streams["b"][time] for time in ("max_event_time", "watermark", "lag_seconds")] == [None] * 3


def test_a_year_that_datetime_lacks_is_shown() -> None:
    session = session_of(dt.Config())
    session.advance({"a": 1 << 60})
    shown: Any = session.metrics()
    assert shown["streams"]["a"]["max_event_time"] == "38504-08-17T21:30:06.846976Z"
    assert "38504-08-17 21:30:06" in repr(shown)


def test_the_last_batch_is_counted_apart() -> None:
    session = session_of(dt.Config())
    assert session.metrics()["last_batch"]["batch"] is None
    fill(session, 3)
    before: Any = session.metrics()
    fill(session, 1)  # these are late
    after: Any = session.metrics()
    last = after["last_batch"]
    assert last["batch"] == 3
    assert last["streams"]["a"] == {"arrivals": 2000, "late": after["streams"]["a"]["late"]} | dict.fromkeys(
        ("ahead", "refused", "shed"), 0
    )
    assert 0 < last["streams"]["a"]["late"] <= 2000
    assert before["last_batch"]["streams"]["a"]["late"] == before["streams"]["a"]["late"] == 0
    given = [metrics["queries"]["pairs"]["results"] for metrics in (before, after)]
    assert last["queries"]["pairs"]["results"] == given[1] - given[0]
    assert before["last_batch"]["queries"]["pairs"]["results"] < given[0]


def test_metrics_are_shown_as_tables() -> None:
    session = session_of(dt.Config(), dt.Budget(memory_bytes=1e9))
    assert repr(session.metrics()) == (
        "stream  arrivals  late  in windows  state  event time  watermark  lag\n"
        "a              0     0           0    0 B\n"
        "b              0     0           0    0 B\n"
        "c              0     0           0    0 B\n"
        "\n"
        "query    results  in last batch  probes  matches\n"
        "pairs          0              0       0        0\n"
        "triples        0              0       0        0\n"
        "\n"
        "budget        used          limit\n"
        "memory_bytes        1,000,000,000\n"
        "\n"
        "batches 0, migrations 0, breaches 0"
    )
    shown: Any = session.metrics()
    assert '<td style="text-align:left">triples</td><td>0</td>' in shown._repr_html_()
    assert "<pre>batches 0, " in shown._repr_html_()


def test_with_several_shards_a_note_says_that_copies_count() -> None:
    shown: Any = session_of(dt.Config()).metrics()
    assert "copies" not in repr(shown)
    shown["shards"] = {0: {}, 1: {}}
    note = "in windows, state: copies included, where several shards hold a tuple"
    assert repr(shown).splitlines()[-1] == note
    assert shown._repr_html_().endswith(f"<pre>{note}</pre>")


def test_metrics_that_their_owner_changed_are_shown_nevertheless() -> None:
    shown: Any = session_of(dt.Config()).metrics()
    del shown["streams"]
    assert "queries" in repr(shown)
    assert "queries" in shown._repr_html_()


def test_a_table_shows_the_estimated_recall() -> None:
    session = session_of(dt.Config(shedding=dt.Shedding("fifo", max_tuples=100)))
    fill(session)
    metrics: Any = session.metrics()
    estimate = metrics["queries"]["pairs"]["recall"]["estimate"]
    (line,) = [line for line in repr(metrics).splitlines() if line.startswith("pairs")]
    assert line.endswith(f"  {estimate:.4g}")
    assert 0 < estimate < 1


def test_notebooks_show_a_session_with_its_streams_and_queries() -> None:
    text = session_of(dt.Config())._repr_html_()
    assert "LocalSession: streams a, b, c; queries pairs, triples; 0 batches, 0 results" in text
    assert "<td>2 s</td>" in text.replace(' style="text-align:left"', "")
    assert "a.ts &lt; c.ts</td>" in text
    assert "a.ts < c.ts" not in text


def test_a_session_is_a_line_of_text() -> None:
    assert repr(dt.LocalSession()) == "<LocalSession: no streams, no queries; 0 batches, 0 results>"
    session = session_of(dt.Config())
    fill(session, 2)
    results = sum(query["results"] for query in session.metrics()["queries"].values())
    assert repr(session) == f"<LocalSession: streams a, b, c; queries pairs, triples; 2 batches, {results:,} results>"
    for number in range(9):
        session.stream(f"s{number}", SCHEMA, event_time="ts")
    assert "streams a, b, c, s0 and 8 more; queries" in repr(session)


def test_notebooks_show_metrics_once_there_are_some() -> None:
    session = session_of(dt.Config())
    assert "in last batch" not in session._repr_html_()
    fill(session, 1)
    assert "in last batch" in session._repr_html_()


def test_a_session_that_is_in_use_or_beyond_repair_is_shown() -> None:
    session = session_of(dt.Config())
    fill(session, 1)
    table = pa.table([pa.array([5_000_000], SCHEMA.field("ts").type), pa.array([1])], schema=SCHEMA)
    pieces: Any = session.push_iter({"a": table, "b": table})
    next(pieces)
    assert "LocalSession: " in session._repr_html_()
    pieces.close()
    session._engine.open_savepoint = IRREVERSIBLE
    assert "LocalSession: " in session._repr_html_()
    assert "LocalSession: " in repr(session)
