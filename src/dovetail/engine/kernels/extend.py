"""One stage of a probe path: partial results in, longer partial results out.

A partial result is one row of an int64 matrix: a row number per alias (column = the alias's place in the query; columns of aliases
not yet joined hold nothing), then `low`, the latest event time in it, and `high`, the last time at which all its tuples are still in
their windows. A combination is inside its windows if and only if low <= high, and that can only become false as it grows, so
every stage tests it. This one test serves time windows (high = ts + window) and count windows (high = the instant before the tuple
was pushed out, which for one of several tuples of the same time may lie before its own) alike, and needs no order of arrival.

Each result belongs to its tuple with the largest insertion number. The bounds `limits` (exclusive) and `floors` (inclusive), a row
per alias, say which rows existed, and had not expired, when the driving tuple arrived. They have one column for all driving tuples,
whose rows begin at `first`, or one for each.

Every kernel goes on at partial result `at` of `count`, there at row `cursor` (-1: at the beginning), stops when `out` is full and
returns where to go on: (rows written, partial, row, rows looked at).

Arguments that are made together are a group with names, a line of a signature. Groups are spread where a kernel is called, so that a
checker counts them: Numba would take them whole, but opening them costs more than probing for ten partial results.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel, prefetch
from dovetail.engine.kernels.index import AHEAD, GOLDEN, led_to, tag


class WindowArrays(NamedTuple):
    """The rows that partial results meet."""

    base: int
    """The row number of place 0 of the arrays."""
    code: UInt64Array
    ts: Int64Array
    ends: Int64Array
    """The last instant of each row, if it is stored."""
    flags: UInt64Array


class Added(NamedTuple):
    """The alias that partial results are extended by."""

    column: int
    span: int
    """Microseconds of its time window; -1 when the ends of its rows are stored."""
    bit: np.uint64
    """Its flag."""


class Wanted(NamedTuple):
    """The codes to look for."""

    codes: UInt64Array
    """One for each partial result, or for each row of the window they come from; none: the stage has no equality."""
    source: int
    """The column of the alias whose rows the codes are of; -1: they are of partial results."""
    base: int
    """The row number of the first of these rows."""


@kernel
def probe_hash(
    partial: Int64Array, count: int, at: int, cursor: int,
    base: int, code: UInt64Array, ts: Int64Array, ends: Int64Array, flags: UInt64Array,
    added: int, span: int, bit: np.uint64,
    head: Int64Array, links: Int64Array, shift: np.uint64, prefix_max: Int64Array,
    wanted: UInt64Array, source: int, wanted_base: int,
    limits: Int64Array, floors: Int64Array, first: int, driver: int,
    out: Int64Array,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Extend partial results by the rows of a hash chain whose code is the wanted one.

    Places are unsigned, which spares the test for a negative index, and a row is judged by one branch: few can be predicted. Heads
    of chains are fetched ahead, and then the rows that they lead to: that pays for small windows too.
    """
    width = partial.shape[1]
    capacity = out.shape[0]
    shared_bounds = limits.shape[1] == 1
    timed = span >= 0
    written = 0
    looked = 0
    for k in range(at, count):
        if k + 2 * AHEAD < count:
            far, near = k + 2 * AHEAD, k + AHEAD
            later = wanted[far] if source < 0 else wanted[np.uint64(partial[far, source] - wanted_base)]
            prefetch(head, int((later * GOLDEN) >> shift))
            later = wanted[near] if source < 0 else wanted[np.uint64(partial[near, source] - wanted_base)]
            row = led_to(head[(later * GOLDEN) >> shift], tag(later * GOLDEN, shift))
            if row >= base:
                prefetch(code, row - base)
                prefetch(ts, row - base)
                prefetch(flags, row - base)
                prefetch(links, row - base)
        code_k = wanted[k] if source < 0 else wanted[np.uint64(partial[k, source] - wanted_base)]
        low = partial[k, width - 2]
        high = partial[k, width - 1]
        d = 0 if shared_bounds else partial[k, driver] - first
        top = limits[added, d]
        bottom = floors[added, d]
        hashed = code_k * GOLDEN
        own = tag(hashed, shift)
        row = cursor
        cursor = -1
        if row < 0:
            row = led_to(head[hashed >> shift], own)
        while row >= bottom:
            place = np.uint64(row - base)
            if row < top:
                looked += 1
                t = ts[place]
                end = t + span if timed else ends[place]
                inside = (end >= low) & (t <= end) & (t <= high)
                if inside & (code[place] == code_k) & ((flags[place] & bit) != np.uint64(0)):
                    if written == capacity:
                        return written, k, row, looked - 1
                    for column in range(width - 2):
                        out[written, column] = partial[k, column]
                    out[written, added] = row
                    out[written, width - 2] = max(low, t)
                    out[written, width - 1] = min(high, end)
                    written += 1
                elif timed and prefix_max[place] + span < low:
                    break
            row = led_to(links[place], own)
    return written, count, -1, looked


@kernel
def probe_scan(
    partial: Int64Array, count: int, at: int, cursor: int,
    base: int, code: UInt64Array, ts: Int64Array, ends: Int64Array, flags: UInt64Array,
    added: int, span: int, bit: np.uint64,
    wanted: UInt64Array, source: int, wanted_base: int,
    limits: Int64Array, floors: Int64Array, first: int, driver: int,
    stop: int, joined: Int64Array,
    out: Int64Array,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Extend partial results by scanning the window.

    Where the driving tuples themselves are scanned, they are rows `first` to `stop`, and rows already joined (`joined`: their
    columns) must have been visible to them. Elsewhere `stop` is -1 and `joined` empty.
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
            code_k = wanted[k] if source < 0 else wanted[partial[k, source] - wanted_base]
        begin, end_row = first, stop
        if stop < 0:
            d = 0 if shared_bounds else partial[k, driver] - first
            begin, end_row = floors[added, d], limits[added, d]
        if cursor >= 0:
            begin = cursor
        cursor = -1
        for row in range(begin, end_row):
            place = row - base
            looked += 1
            if (keyed and code[place] != code_k) or (flags[place] & bit) == np.uint64(0):
                continue
            t = ts[place]
            end = t + span if span >= 0 else ends[place]
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
                    return written, k, row, looked - 1
                for column in range(width - 2):
                    out[written, column] = partial[k, column]
                out[written, added] = row
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
def transpose(partial: Int64Array, count: int, out: Int64Array, at: int) -> None:
    """Write the row numbers of `count` partial results, now complete, from column `at` of `out` on."""
    for column in range(out.shape[0]):
        for k in range(count):
            out[column, at + k] = partial[k, column]
