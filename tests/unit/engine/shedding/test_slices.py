"""Batches that are joined in parts."""

from __future__ import annotations

import numpy as np

from dovetail.engine.shedding.slices import split_batch
from dovetail.engine.storage.append import NewRows


def rows(times: list[int], units: list[int]) -> NewRows:
    return NewRows(np.array(times, np.int64), {}, {}, {}, [], units=np.array(units, np.int32))


def test_parts_follow_each_other_in_event_time() -> None:
    """Even where the tuples of one event time, which are cut as well, are more than may come at once."""
    incoming = {"a": rows([1, 2, 4], [1, 1, 1]), "b": rows([1, 1, 1, 3, 4], [9, 9, 9, 1, 1])}
    parts = list(split_batch(incoming, 10, per_stream=True))
    assert [{stream: part.ts.tolist() for stream, part in parts_of.items()} for parts_of in parts] == [
        {"a": [1], "b": [1]},
        {"b": [1]},
        {"b": [1]},
        {"a": [2, 4], "b": [3, 4]},
    ]
    assert all(part.total_units <= 10 for parts_of in parts for part in parts_of.values())
