"""Progress of a stream: one function decides for both sessions what is late."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.engine.time.progress import ArrivalStats, StreamProgress
from dovetail.schema import StreamSchema

COLUMNS = pa.schema({"ts": pa.timestamp("us", tz="UTC")})


def _progress() -> StreamProgress:
    progress = StreamProgress(StreamSchema("s", COLUMNS, "ts", lateness=10))
    progress.advance(100)
    return progress


def test_a_tuple_is_late_below_the_watermark() -> None:
    stats = ArrivalStats()
    on_time = _progress().on_time(np.array([120, 90, 89, 50]), stats)
    assert on_time is not None
    assert on_time.tolist() == [True, True, False, False]
    assert (stats.late, stats.late_by) == (2, 50)
    assert _progress().on_time(np.array([90, 91]), stats) is None
    assert stats.late == 2


def test_only_leading_tuples_are_counted() -> None:
    """A tuple can have copies in several shards; one shard counts it."""
    stats = ArrivalStats()
    on_time = _progress().on_time(np.array([120, 80, 50]), stats, counted=2)
    assert on_time is not None
    assert on_time.tolist() == [True, False, False]
    assert (stats.late, stats.late_by) == (1, 20)


def test_progress_survives_json_and_rollback() -> None:
    progress = _progress()
    saved, stored = progress.save(), progress.to_json()
    progress.observe(ArrivalStats(3, late=1, max_event_time=200), now=None)
    assert (progress.max_event_time, progress.arrived, progress.late) == (200, 3, 1)
    progress.rollback(saved)
    assert progress.to_json() == stored
    again = StreamProgress(progress.schema)
    again.restore(stored)
    assert again == progress
