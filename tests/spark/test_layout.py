"""What a checkpoint is bound to: what may differ at the next start, and what is refused in words that help."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pipeline import layout_of

from dovetail.errors import StateError
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.contract import WITHOUT_BOUNDS, frozen_json, thawed

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
STREAMS = tuple(StreamSchema(name, COLUMNS, "ts", 1_500_000) for name in "ab")
BRACKETS = "SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
BOUNDS = "SELECT a.k FROM a, b [RANGE 10 SECONDS] WHERE a.k = b.k AND b.ts <= a.ts + INTERVAL 1 MINUTE"


def test_texts_that_meant_other_windows_are_refused() -> None:
    for sql, refused in ((BRACKETS, False), (BOUNDS, True)):
        layout = layout_of(STREAMS, {"q": sql}, 2)
        stored = json.loads(frozen_json(layout))
        assert thawed(layout, json.dumps(stored)).stored
        before = json.dumps(stored | {"version": WITHOUT_BOUNDS})
        if refused:
            with pytest.raises(
                StateError, match="the windows of query 'q', then of brackets, now follow from its cond"
            ):
                thawed(layout, before)
        else:
            assert thawed(layout, before).stored == before


def test_lengths_of_time_are_in_words() -> None:
    before = frozen_json(layout_of(STREAMS, {"q": BRACKETS}, 2))
    changed = tuple(replace(stream, lateness=120_000_000, idle_after=3_600_000_000) for stream in STREAMS)
    with pytest.raises(
        StateError, match="lateness of stream 'a' was 1 second 500 milliseconds, is 2 minutes"
    ) as refusal:
        thawed(layout_of(changed, {"q": BRACKETS}, 2), before)
    assert "idle_after of stream 'b' was None, is 1 hour" in str(refusal.value)
