"""One stage of a probe path: partial results in, longer partial results out.

A partial result is one row of an int64 matrix: a row number per alias (column = the alias's place in the query; columns of aliases
not yet joined hold nothing), then `low`, the latest event time in it, and `high`, the last time at which all its tuples are still in
their windows. A combination is inside its windows if and only if low <= high, and that can only become false as it grows, so
every stage tests it. This one test serves time windows (high = ts + window) and count windows (high = the instant before the tuple
was pushed out, which for one of several tuples of the same time may lie before its own) alike, and needs no order of arrival.

Each result belongs to its tuple with the largest insertion number. The bounds `limits` (exclusive) and `floors` (inclusive), a row
per alias, say which rows existed, and had not expired, when the driving tuple arrived. They have one column for all driving tuples, or
one for each.

The code to look for is `wanted[k]` for partial result k, or, when `source` is the column of an alias already joined, the code of its
row: `wanted[row - source_base]`. An empty `wanted` means that the stage has no equality.

Every kernel stops when `out` is full and returns where to go on: (rows written, partial, row, rows looked at).
"""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.index import GOLDEN


@kernel
def probe_hash(
    partial: Int64Array,
    count: int,
    at: int,
    cursor: int,
    wanted: UInt64Array,
    source: int,
    source_base: int,
    limits: Int64Array,
    floors: Int64Array,
    driver: int,
    first: int,
    target: int,
    window: int,
    bit: np.uint64,
    base: int,
    shift: np.uint64,
    head: Int64Array,
    following: Int64Array,
    code: UInt64Array,
    ts: Int64Array,
    prefix_max: Int64Array,
    last: Int64Array,
    flags: UInt64Array,
    out: Int64Array,
) -> tuple[int, int, int, int]:
    """Extend partial results by the rows of a hash chain whose code is the wanted one.

    Places are unsigned, which spares the test for a negative index, and a row is judged by one branch: few can be predicted.
    """
    width = partial.shape[1]
    capacity = out.shape[0]
    shared_bounds = limits.shape[1] == 1
    timed = window >= 0
    written = 0
    looked = 0
    for k in range(at, count):
        code_k = wanted[k] if source < 0 else wanted[np.uint64(partial[k, source] - source_base)]
        low = partial[k, width - 2]
        high = partial[k, width - 1]
        d = 0 if shared_bounds else partial[k, driver] - first
        top = limits[target, d]
        bottom = floors[target, d]
        row = cursor
        cursor = -1
        if row < 0:
            row = head[(code_k * GOLDEN) >> shift]
        while row >= bottom:
            place = np.uint64(row - base)
            if row < top:
                looked += 1
                t = ts[place]
                end = t + window if timed else last[place]
                inside = (end >= low) & (t <= end) & (t <= high)
                if inside & (code[place] == code_k) & ((flags[place] & bit) != np.uint64(0)):
                    if written == capacity:
                        return written, k, row, looked - 1
                    for column in range(width - 2):
                        out[written, column] = partial[k, column]
                    out[written, target] = row
                    out[written, width - 2] = max(low, t)
                    out[written, width - 1] = min(high, end)
                    written += 1
                elif timed and prefix_max[place] + window < low:
                    break
            row = following[place]
    return written, count, -1, looked


@kernel
def probe_scan(
    partial: Int64Array,
    count: int,
    at: int,
    cursor: int,
    wanted: UInt64Array,
    source: int,
    source_base: int,
    limits: Int64Array,
    floors: Int64Array,
    driver: int,
    first: int,
    target: int,
    window: int,
    bit: np.uint64,
    base: int,
    code: UInt64Array,
    ts: Int64Array,
    last: Int64Array,
    flags: UInt64Array,
    out: Int64Array,
) -> tuple[int, int, int, int]:
    """Extend partial results by scanning the window."""
    width = partial.shape[1]
    capacity = out.shape[0]
    shared_bounds = limits.shape[1] == 1
    keyed = len(wanted) > 0
    code_k = np.uint64(0)
    written = 0
    looked = 0
    for k in range(at, count):
        low = partial[k, width - 2]
        high = partial[k, width - 1]
        if keyed:
            code_k = wanted[k] if source < 0 else wanted[partial[k, source] - source_base]
        d = 0 if shared_bounds else partial[k, driver] - first
        begin = floors[target, d] if cursor < 0 else cursor
        cursor = -1
        for row in range(begin, limits[target, d]):
            place = row - base
            looked += 1
            if (keyed and code[place] != code_k) or (flags[place] & bit) == np.uint64(0):
                continue
            t = ts[place]
            end = t + window if window >= 0 else last[place]
            if end >= low and end >= t and t <= high:
                if written == capacity:
                    return written, k, row, looked - 1
                for column in range(width - 2):
                    out[written, column] = partial[k, column]
                out[written, target] = row
                out[written, width - 2] = max(low, t)
                out[written, width - 1] = min(high, end)
                written += 1
    return written, count, -1, looked


@kernel
def scan_new(
    partial: Int64Array,
    count: int,
    at: int,
    cursor: int,
    wanted: UInt64Array,
    source: int,
    source_base: int,
    joined: Int64Array,
    limits: Int64Array,
    floors: Int64Array,
    first: int,
    stop: int,
    target: int,
    window: int,
    bit: np.uint64,
    base: int,
    code: UInt64Array,
    ts: Int64Array,
    last: Int64Array,
    flags: UInt64Array,
    out: Int64Array,
) -> tuple[int, int, int, int]:
    """Extend partial results by the driving tuples, rows `first` to `stop`, wherever they stand in the order.

    Rows already joined (`joined`: their columns) must have been visible to the driving tuple.
    """
    width = partial.shape[1]
    capacity = out.shape[0]
    shared_bounds = limits.shape[1] == 1
    keyed = len(wanted) > 0
    code_k = np.uint64(0)
    written = 0
    looked = 0
    for k in range(at, count):
        low = partial[k, width - 2]
        high = partial[k, width - 1]
        if keyed:
            code_k = wanted[k] if source < 0 else wanted[partial[k, source] - source_base]
        begin = first if cursor < 0 else cursor
        cursor = -1
        for row in range(begin, stop):
            place = row - base
            looked += 1
            if (keyed and code[place] != code_k) or (flags[place] & bit) == np.uint64(0):
                continue
            t = ts[place]
            end = t + window if window >= 0 else last[place]
            if end < low or end < t or t > high:
                continue
            d = 0 if shared_bounds else row - first
            visible = True
            for column in joined:
                if partial[k, column] >= limits[column, d] or partial[k, column] < floors[column, d]:
                    visible = False
                    break
            if visible:
                if written == capacity:
                    return written, k, row, looked - 1
                for column in range(width - 2):
                    out[written, column] = partial[k, column]
                out[written, target] = row
                out[written, width - 2] = max(low, t)
                out[written, width - 1] = min(high, end)
                written += 1
    return written, count, -1, looked


@kernel
def gather_codes(partial: Int64Array, count: int, column: int, code: UInt64Array, base: int, out: UInt64Array) -> None:
    """Read the code of one joined alias for every partial result."""
    for k in range(count):
        out[k] = code[partial[k, column] - base]


@kernel
def keep_marked(partial: Int64Array, count: int, marks: Int64Array) -> int:
    """Drop, in place, partial results whose mark is zero; return how many are left."""
    kept = 0
    for k in range(count):
        if marks[k] != 0:
            partial[kept, :] = partial[k, :]
            kept += 1
    return kept
