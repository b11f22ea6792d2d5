"""What a checkpoint is bound to: what may differ at the next start, and what is refused in words that help."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pipeline import layout_of

from dovetail.config import Config
from dovetail.errors import StateError
from dovetail.optimizer.planner import plan_query
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.session.registered_query import QueryStart, RegisteredQuery
from dovetail.spark.checkpoint.compatibility import VERSION_WITHOUT_INFERRED_WINDOWS, pinned_json
from dovetail.spark.driver.job_diff import reconcile_layouts, with_query, without_query

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
STREAMS = tuple(StreamSchema(name, COLUMNS, "ts", 1_500_000) for name in "ab")
BRACKETS = "SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
BOUNDS = "SELECT a.k FROM a, b [RANGE 10 SECONDS] WHERE a.k = b.k AND b.ts <= a.ts + INTERVAL 1 MINUTE"


def test_texts_that_meant_other_windows_are_refused() -> None:
    for sql, refused in ((BRACKETS, False), (BOUNDS, True)):
        layout = layout_of(STREAMS, {"q": sql}, 2)
        stored = json.loads(pinned_json(layout))
        assert reconcile_layouts(layout, json.dumps(stored), "first")[0].pinned_json == "first"
        before = json.dumps(stored | {"version": VERSION_WITHOUT_INFERRED_WINDOWS})
        if refused:
            with pytest.raises(
                StateError, match="query 'q' took its windows from brackets when the checkpoint was written"
            ):
                reconcile_layouts(layout, before, before)
        else:
            bound, changes = reconcile_layouts(layout, before, before)
            assert (bound.pinned_json, changes) == (before, None)


def test_options_of_streams_may_change_and_are_said_in_words() -> None:
    before = pinned_json(layout_of(STREAMS, {"q": BRACKETS}, 2))
    changed = tuple(replace(stream, lateness=120_000_000, idle_after=3_600_000_000) for stream in STREAMS)
    _, changes = reconcile_layouts(layout_of(changed, {"q": BRACKETS}, 2), before, before)
    assert changes is not None
    assert changes.kept == ("q",)
    lateness = "lateness of stream 'a' was 1500 ms, is 2 min"
    assert (
        f"{lateness}: tuples accepted by the new lateness may miss matches that have already expired" in changes.streams
    )
    assert "idle_after of stream 'b' was None, is 1 h" in str(changes)


def test_what_a_checkpoint_cannot_go_on_with() -> None:
    before = pinned_json(layout_of(STREAMS, {"q": BRACKETS}, 2))
    text = (STREAMS[0], replace(STREAMS[1], columns=pa.schema([("ts", TIMESTAMP), ("k", pa.string())])))
    times = (STREAMS[0], replace(STREAMS[1], progress_by="k"))
    more = (*STREAMS, replace(STREAMS[0], name="c"))
    for streams, sql, shards, message in (
        (STREAMS, BRACKETS, 3, "it has 2 shards, this session 3"),
        (
            text,
            BRACKETS.replace("a.k = b.k", "cast(a.k AS string) = b.k"),
            2,
            "column 'k' of stream 'b' was int64, is string",
        ),
        (times, BRACKETS, 2, "progress_by of stream 'b' was None, is 'k'"),
        (more, BRACKETS.replace("b [", "c [").replace("b.k", "c.k"), 2, "it lacks stream 'c'"),
        (
            (STREAMS[0],),
            "SELECT x.k FROM a x [RANGE 1 s], a y [RANGE 1 s] WHERE x.k = y.k",
            2,
            "it also has stream 'b'",
        ),
    ):
        with pytest.raises(StateError, match=message) as refusal:
            reconcile_layouts(layout_of(streams, {"q": sql}, shards), before, before)
        assert "start with a new checkpoint directory and new sinks" in str(refusal.value)


def test_what_becomes_of_queries() -> None:
    before = pinned_json(
        layout_of(STREAMS, {"same": BRACKETS, "wider": BRACKETS, "moved": BRACKETS, "gone": BRACKETS}, 2)
    )
    queries = {
        "same": BRACKETS.lower().replace("range", "RANGE"),
        "wider": BRACKETS.replace("10", "20"),
        "moved": BRACKETS.replace("a.k = b.k", "a.k + 1 = b.k"),
        "new": BRACKETS,
    }
    old, changes = reconcile_layouts(layout_of(STREAMS, queries, 2), before, before)
    assert changes is not None
    assert list(old.job.queries) == ["same", "wider", "moved", "gone"]
    assert str(changes) == (
        "query 'same' is kept\n"
        "query 'wider' is changed: new tuples are joined with those in the log\n"
        "query 'moved' is changed: its tuples are partitioned differently; it starts with empty windows\n"
        "query 'new' is new: it sees tuples from now on\n"
        "query 'gone' is dropped"
    )


def test_a_dropped_name_is_placed_anew() -> None:
    """A query that takes the name of a dropped one gets shards of its own: its tuples are placed by other keys."""
    layout = layout_of(STREAMS, {"q": BRACKETS, "r": BRACKETS.replace("a.k = b.k", "a.k + 1 = b.k")}, 2)
    assert [group.first_shard for group in layout.placement.groups] == [0, 2]
    other = parse_query("r", BRACKETS.replace("a.k = b.k", "a.k + 2 = b.k"), layout.job.streams)
    added = RegisteredQuery(plan_query(other, layout.job.streams, Config()), start=QueryStart(3))
    again = with_query(without_query(layout, "r"), added, layout.job.streams)
    assert [(group.first_shard, group.queries[0].name) for group in again.placement.groups] == [(0, "q"), (4, "r")]
    assert again.for_workers("", layout.for_workers(""), 3).retired == (2, 3)


def test_queries_that_share_shards_have_copies_of_their_own() -> None:
    streams = (*STREAMS, replace(STREAMS[0], name="c"))
    other = BRACKETS.replace("b.", "c.").replace("b [", "c [")
    placement = layout_of(streams, {"q": BRACKETS, "r": other}, 2).placement
    assert placement.describe() == "shards 0 to 1: q, r\n  a.k = b.k in 2 parts"
    assert {copies for _, copies in placement.window_copies.values()} == {1.0}
