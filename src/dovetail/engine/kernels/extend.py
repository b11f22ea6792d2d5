"""Run one stage of a probe path: extend each partial result by the matching rows of one window.

A partial result is one row of an int64 matrix: a row number per alias (column = the alias's position in the query; columns of aliases
not yet joined are undefined), then `low`, the latest event time in it, and `high`, the last instant at which all its tuples are still
in their windows. A combination is inside its windows if and only if low <= high. As a combination grows, this can only change from
true to false, so every stage tests it. The test covers time windows (high = ts + window) and count windows (high = the instant before
the tuple was pushed out, which may precede its own time if several tuples have the same time), and needs no order of arrival.

Exactly one of a result's new tuples drives it. The bounds, a row per alias, give the rows that a driving tuple may see: rows before
`limits`, which were there before it, from `floors` on, which have not expired for it. They have one column for all driving tuples,
or column i for the driving row `first + i`. Expired rows need not be unlinked from their chains: a probe stops below the floor. Rows
that have left their window but have not been dropped fail the test `low <= high`.

Kernels that run a stage start at partial result `at` of `count`, there at row `cursor` (-1: at the beginning), stop when `out` is
full, and return (rows written, next partial result, next row, rows read).

Arguments that belong together are a named tuple, on one line of a signature. Callers unpack it, which lets a type checker count the
arguments: Numba accepts whole tuples, but unboxing them costs more than probing for ten partial results.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel, prefetch
from dovetail.engine.kernels.index import AHEAD, GOLDEN, follow_link, tag


class WindowArrays(NamedTuple):
    """The rows of the probed window."""

    base: int
    """Row number at index 0 of the arrays."""
    code: UInt64Array
    ts: Int64Array
    ends: Int64Array
    """Last instant of each row, if it is stored."""
    flags: UInt64Array


class TargetAlias(NamedTuple):
    """The alias that extends the partial results."""

    column: int
    span: int
    """Microseconds of its time window; -1 when the ends of its rows are stored."""
    mask: np.uint64
    """Selects the flag of its view in a word of flags."""


class LookupCodes(NamedTuple):
    """The codes to look up."""

    codes: UInt64Array
    """A code for each partial result, or for each row of the source window; empty if the stage has no equality."""
    source: int
    """Column of the alias whose rows have the codes; -1 if there is a code for each partial result."""
    base: int
    """Row number of the first code in the source window."""


@kernel
def probe_hash(
    partial: Int64Array, count: int, at: int, cursor: int,
    base: int, code: UInt64Array, ts: Int64Array, ends: Int64Array, flags: UInt64Array,
    target: int, span: int, mask: np.uint64,
    heads: Int64Array, links: Int64Array, shift: np.uint64, prefix_max: Int64Array,
    lookup: UInt64Array, source: int, lookup_base: int,
    limits: Int64Array, floors: Int64Array, first: int, driver: int,
    out: Int64Array,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Extend partial results by the rows of their hash chain that have the code to look up.

    Indices are unsigned, which saves the check for a negative index. One branch accepts or rejects a row, because separate branches
    would be mispredicted. Chain heads are prefetched first, then the rows that they link to: this pays for small windows too.
    """
    width = partial.shape[1]
    capacity = out.shape[0]
    shared_bounds = limits.shape[1] == 1
    timed = span >= 0
    written = 0
    rows_read = 0
    for k in range(at, count):
        if k + 2 * AHEAD < count:
            far, near = k + 2 * AHEAD, k + AHEAD
            later = lookup[far] if source < 0 else lookup[np.uint64(partial[far, source] - lookup_base)]
            prefetch(heads, int((later * GOLDEN) >> shift))
            later = lookup[near] if source < 0 else lookup[np.uint64(partial[near, source] - lookup_base)]
            row = follow_link(heads[(later * GOLDEN) >> shift], tag(later * GOLDEN, shift))
            if row >= base:
                prefetch(code, row - base)
                prefetch(ts, row - base)
                prefetch(flags, row - base)
                prefetch(links, row - base)
        code_k = lookup[k] if source < 0 else lookup[np.uint64(partial[k, source] - lookup_base)]
        low = partial[k, width - 2]
        high = partial[k, width - 1]
        d = 0 if shared_bounds else partial[k, driver] - first
        top = limits[target, d]
        bottom = floors[target, d]
        hashed = code_k * GOLDEN
        key_tag = tag(hashed, shift)
        row = cursor
        cursor = -1
        if row < 0:
            row = follow_link(heads[hashed >> shift], key_tag)
        while row >= bottom:
            index = np.uint64(row - base)
            if row < top:
                rows_read += 1
                t = ts[index]
                end = t + span if timed else ends[index]
                inside = (end >= low) & (t <= end) & (t <= high)
                if inside & (code[index] == code_k) & ((flags[index] & mask) != np.uint64(0)):
                    if written == capacity:
                        return written, k, row, rows_read - 1
                    for column in range(width - 2):
                        out[written, column] = partial[k, column]
                    out[written, target] = row
                    out[written, width - 2] = max(low, t)
                    out[written, width - 1] = min(high, end)
                    written += 1
                elif timed and prefix_max[index] + span < low:
                    break
            row = follow_link(links[index], key_tag)
    return written, count, -1, rows_read


@kernel
def probe_scan(
    partial: Int64Array, count: int, at: int, cursor: int,
    base: int, code: UInt64Array, ts: Int64Array, ends: Int64Array, flags: UInt64Array,
    target: int, span: int, mask: np.uint64,
    lookup: UInt64Array, source: int, lookup_base: int,
    limits: Int64Array, floors: Int64Array, first: int, driver: int,
    stop: int, joined: Int64Array,
    out: Int64Array,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Extend partial results by scanning the window.

    If the driving tuples themselves are scanned, they are rows `first` to `stop`, and the rows already joined (in the columns
    `joined`) must be visible to them. Otherwise `stop` is -1 and `joined` is empty.
    """
    width = partial.shape[1]
    capacity = out.shape[0]
    shared_bounds = limits.shape[1] == 1
    keyed = len(lookup) > 0
    code_k = np.uint64(0)
    written = 0
    rows_read = 0
    for k in range(at, count):
        low = partial[k, width - 2]
        high = partial[k, width - 1]
        if keyed:
            code_k = lookup[k] if source < 0 else lookup[partial[k, source] - lookup_base]
        begin, end_row = first, stop
        if stop < 0:
            d = 0 if shared_bounds else partial[k, driver] - first
            begin, end_row = floors[target, d], limits[target, d]
        if cursor >= 0:
            begin = cursor
        cursor = -1
        for row in range(begin, end_row):
            index = row - base
            rows_read += 1
            if (keyed and code[index] != code_k) or (flags[index] & mask) == np.uint64(0):
                continue
            t = ts[index]
            end = t + span if span >= 0 else ends[index]
            if end < low or end < t or t > high:
                continue
            visible = True
            for column in joined:
                d = 0 if shared_bounds else row - first
                if partial[k, column] >= limits[column, d] or partial[k, column] < floors[column, d]:
                    visible = False
                    break
            if visible:
                if written == capacity:
                    return written, k, row, rows_read - 1
                for column in range(width - 2):
                    out[written, column] = partial[k, column]
                out[written, target] = row
                out[written, width - 2] = max(low, t)
                out[written, width - 1] = min(high, end)
                written += 1
    return written, count, -1, rows_read


@kernel
def gather_codes(partial: Int64Array, count: int, column: int, code: UInt64Array, base: int, out: UInt64Array) -> None:
    """Write the code of one joined alias for every partial result."""
    for k in range(count):
        out[k] = code[partial[k, column] - base]


@kernel
def transpose(partial: Int64Array, count: int, out: Int64Array, at: int) -> None:
    """Write the row numbers of `count` complete results to the columns of `out` from `at` on."""
    for column in range(out.shape[0]):
        for k in range(count):
            out[column, at + k] = partial[k, column]
