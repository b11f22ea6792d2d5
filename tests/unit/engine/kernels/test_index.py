"""Hash index chains: a walk along tags misses no row and seldom touches one of another key."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail._typing import Int64Array
from dovetail.engine.kernels.index import GOLDEN, follow_link, insert, tag

SHIFT = np.uint64(64 - 6)


def walked(head: Int64Array, links: Int64Array, wanted: np.uint64, oldest: int) -> list[int]:
    """Return the rows touched while looking for a code."""
    with np.errstate(over="ignore"):
        hashed = wanted * GOLDEN
    own, rows = tag(hashed, SHIFT), []
    row = follow_link(head[int(hashed >> SHIFT)], own)
    while row >= oldest:
        rows.append(int(row))
        row = follow_link(links[row], own)
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_every_unexpired_row_of_a_key_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    code = rng.integers(0, 200, 1000).astype(np.uint64)
    head, links = np.zeros(64, np.int64), np.zeros(1000, np.int64)
    at = oldest = 0
    while at < len(code):
        stop = min(len(code), at + int(rng.integers(1, 40)))
        insert(head, links, SHIFT, code, 0, oldest, at, stop)
        at, oldest = stop, max(oldest, stop - int(rng.integers(1, 120)))
        for wanted in rng.integers(0, 250, 20).astype(np.uint64):
            touched = walked(head, links, wanted, oldest)
            living = np.flatnonzero(code[oldest:at] == wanted) + oldest
            assert set(living.tolist()) <= set(touched)
            assert touched == sorted(touched, reverse=True)


def test_an_absent_key_touches_few_rows() -> None:
    rng = np.random.default_rng(1)
    code = rng.integers(0, 1 << 60, 64).astype(np.uint64)
    head, links = np.zeros(64, np.int64), np.zeros(64, np.int64)
    insert(head, links, SHIFT, code, 0, 0, 0, 64)
    absent = rng.integers(1 << 61, 1 << 62, 2000).astype(np.uint64)
    touched = sum(len(walked(head, links, wanted, 0)) for wanted in absent)
    assert touched < 0.15 * len(absent)  # one row per chain: without tags each would be touched


def test_tags_of_expired_rows_are_dropped_with_their_chain() -> None:
    code = np.arange(1000, 1400, dtype=np.uint64)
    head, links = np.zeros(64, np.int64), np.zeros(400, np.int64)
    for row in range(400):
        insert(head, links, SHIFT, code, 0, row, row, row + 1)  # all earlier rows have expired
    assert all((int(link) >> 47).bit_count() <= 1 for link in head)
