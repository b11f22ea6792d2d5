"""A numbered window finds rows by tuple number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import HeapArena
from dovetail.engine.storage.columns import BytesColumn
from dovetail.engine.storage.rows import SMALLEST_CAPACITY, Rows
from dovetail.engine.storage.window import WindowStore
from dovetail.errors import StateError


def test_rows_are_found_by_tuple_number() -> None:
    store, empty = (WindowStore(HeapArena(), name, numbered=True) for name in ("w", "e"))
    store.append(NewRows(np.array([1, 2, 3]), {}, {}, {}, [], numbers=np.array([30, 10, 20])))
    assert store.rows_of(np.array([10, 30])).tolist() == [1, 0]
    assert store.numbers_of(np.array([1, 0])).tolist() == [10, 30]
    assert empty.rows_of(np.zeros(0, np.int64)).tolist() == []
    for window, number in ((store, 11), (store, 99), (store, 1), (empty, 3)):
        with pytest.raises(StateError, match="does not contain all tuples"):
            window.rows_of(np.array([number]))


def test_tight_arrays_have_room_for_half_as_many_rows_more() -> None:
    """They grow and shrink in small steps, and rows and texts stay the same."""
    rows = Rows(HeapArena(), "a")
    rows.add("ts", np.int64)
    column = BytesColumn(rows, "s", pa.string())
    rows.is_tight = True
    texts = [f"{number}" * 5 for number in range(20_000)]
    for first in range(0, len(texts), 1000):
        at = rows.extend(1000) - rows.base
        rows["ts"][at : at + 1000] = np.arange(first, first + 1000)
        column.append(pa.array(texts[first : first + 1000]), at, at + 1000)
    assert 20_000 <= rows.capacity <= 30_720 + SMALLEST_CAPACITY
    heap = 1 << 14
    assert column.allocated <= heap + 1.5 * sum(map(len, texts))
    alive = np.arange(20_000) % 4 == 0
    column.before_compact(alive)
    rows.compact(alive)
    assert rows.capacity == 8192
    assert column.allocated <= heap + 1.5 * sum(map(len, texts[::4]))
    assert rows["ts"][:5000].tolist() == list(range(0, 20_000, 4))
    assert column.take(np.arange(5000)).to_pylist() == texts[::4]
    rows.tail += 4500
    for _ in range(20):
        rows.tail += 500
        rows.extend(500)
    assert rows.capacity <= 2 * SMALLEST_CAPACITY, "moving to the front shrinks arrays, too"
