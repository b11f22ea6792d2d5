"""A numbered window finds rows by tuple number."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import HeapArena
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
