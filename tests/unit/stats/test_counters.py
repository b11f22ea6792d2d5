"""Measurements of shards survive JSON and add up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dovetail.stats.counters import (
    JoinMetrics,
    MeasuredSpan,
    Measurements,
    NodeMetrics,
    PlanMetrics,
    QueryMetrics,
    StageMetrics,
    StreamMetrics,
)
from dovetail.stats.probes import ProbeOrderChange

CHANGE = ProbeOrderChange("a", ("b", "c"), ("c", "b"), 2.0, 1.0, batch=3)
NEW = StageMetrics("a", "new", 1, 4, 4, 0.5, timed=4)
PATH = (NEW, StageMetrics("b", "hash", 4, 6, 5, 1.5))
JOIN = JoinMetrics(4, 6, 5, {"a": PATH}, (CHANGE,))
WHOLE = Measurements(
    {"a": StreamMetrics(4, 1, 0, 2, lateness_needed=3.5, event_time=None, state_tuples=3, state_bytes=96)},
    {"q": QueryMetrics(4, 6, 5, {"a": PATH}, (CHANGE,), 5)},
    {"join:ab": JOIN},
    PlanMetrics(
        {"a": NodeMetrics(0.5, tuples=3, bytes=96)},
        {"q": NodeMetrics(2.0, probes=4, matches=5)},
        results={"q": NodeMetrics(0.25, results=5)},
        span=MeasuredSpan(10.0),
    ),
)


def test_measurements_survive_json() -> None:
    stored = json.loads(json.dumps(WHOLE.to_json()))
    assert Measurements.from_json({**stored, "shard": 0}) == WHOLE


def test_absent_counters_are_omitted_from_json() -> None:
    written = WHOLE.to_json()
    assert written["streams"]["a"]["event_time"] is None
    assert written["nodes"]["windows"] == {"a": {"ms": 0.5, "tuples": 3, "bytes": 96}}
    assert ["timed" in stage for stage in written["queries"]["q"]["paths"]["a"]] == [True, False]


def test_measurements_of_shards_add_up() -> None:
    stream = replace(WHOLE.streams["a"], lateness_needed=1.0, event_time=7)
    both = WHOLE + replace(WHOLE, streams={"a": stream, "b": stream}, nodes=PlanMetrics(span=MeasuredSpan(30.0)))
    assert both.streams["a"] == StreamMetrics(8, 2, 0, 4, 3.5, 7, 6, 192)
    assert both.streams["b"] == stream
    hot = replace(stream, hottest={"k": {"7": 30}})
    assert (stream + hot).hottest == {"k": {"7": 30}}
    assert (hot + replace(hot, hottest={"k": {"7": 1, "8": 5}, "j": {"x": 2}})).hottest == {
        "k": {"7": 31, "8": 5},
        "j": {"x": 2},
    }
    assert both.queries["q"].results == 10
    assert both.joins["join:ab"].changes == (CHANGE, CHANGE)
    assert both.joins["join:ab"].paths["a"][0] == StageMetrics("a", "new", 2, 8, 8, 1.0, timed=8)
    assert both.nodes == replace(WHOLE.nodes, span=MeasuredSpan(30.0))


@pytest.mark.parametrize("shards", [[PATH, PATH[::-1], PATH], [PATH[::-1], PATH, PATH]])
def test_a_path_with_different_orders_is_omitted(shards: list[tuple[StageMetrics, ...]]) -> None:
    first, *others = [replace(JOIN, paths={"a": path}) for path in shards]
    for other in others:
        first += other
    assert first.paths == {"a": ()}
    assert first.probes == 12
