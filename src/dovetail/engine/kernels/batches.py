"""Batch helpers of shedding: merge tuples by event time, hash their keys."""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, kernel
from dovetail.engine.kernels.index import spread
from dovetail.engine.kernels.tuple_table import TupleBatch

_NEVER = (1 << 63) - 1


@kernel
def interleave(parts: TupleBatch, starts: Int64Array, merged: TupleBatch) -> None:
    """Merge sorted parts by event time; part `i` begins at `starts[i]`, and ties keep the order of parts."""
    ts, cursors, ends = parts.ts, starts[:-1].copy(), starts[1:]
    next_ts = np.array([ts[cursors[part]] if cursors[part] < ends[part] else _NEVER for part in range(len(cursors))])
    for target in range(len(ts)):
        first = 0
        for part in range(1, len(cursors)):
            if next_ts[part] < next_ts[first]:
                first = part
        source = cursors[first]
        merged.window[target], merged.row[target], merged.ts[target] = (
            parts.window[source],
            parts.row[source],
            ts[source],
        )
        merged.seen[target], merged.units[target] = parts.seen[source], parts.units[source]
        for local in range(parts.codes.shape[1]):
            merged.codes[target, local] = parts.codes[source, local]
        cursors[first] += 1
        next_ts[first] = ts[source + 1] if source + 1 < ends[first] else _NEVER


@borrowing
def smallest_hashes(codes: UInt64Array, seen: Int64Array, seed: np.uint64, min_hashes: UInt64Array) -> None:
    """Write the smallest hash of each tuple's codes over the readers that see it, or the largest uint64."""
    for i in range(len(seen)):
        smallest = np.uint64(0xFFFFFFFFFFFFFFFF)
        for local in range(codes.shape[1]):
            if seen[i] >> local & 1:
                smallest = min(smallest, spread(codes[i, local], seed))
        min_hashes[i] = smallest
