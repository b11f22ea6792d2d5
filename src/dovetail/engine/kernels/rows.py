"""Loops over the rows of a window: order, expiry, and the ends of count windows."""

from __future__ import annotations

import numpy as np

from dovetail._typing import ByteArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.index import GOLDEN

FOREVER = np.int64(1 << 62)
"""A time after every event: the end of a count window that no later tuple has closed."""


@kernel
def survey(ts: Int64Array, watermark: int) -> tuple[int, bool, int, int]:
    """How many times lie below `watermark`, whether they are in order, the smallest and the largest (of at least one)."""
    late = 0
    in_order = True
    smallest = largest = previous = ts[0]
    for t in ts:
        late += t < watermark
        in_order &= t >= previous
        smallest = min(smallest, t)
        largest = max(largest, t)
        previous = t
    return late, in_order, smallest, largest


@kernel
def extend_prefix_max(ts: Int64Array, prefix_max: Int64Array, first: int, last: int, largest: int) -> None:
    """Write the running maximum of `ts` for places `first` to `last`, starting from `largest`."""
    for place in range(first, last):
        largest = max(largest, ts[place])
        prefix_max[place] = largest


@kernel
def first_at_or_after(ts: Int64Array, first: int, last: int, bound: int) -> int:
    """The first place from `first` on whose event time is not below `bound`; `last` if there is none."""
    for place in range(first, last):
        if ts[place] >= bound:
            return place
    return last


@kernel
def close_row_windows(ts: Int64Array, last: Int64Array, first: int, stop: int, oldest: int, rows: int) -> None:
    """`[ROWS n]`: each new place ends the window of the n-th place before it, one microsecond before its own time."""
    for place in range(first, stop):
        last[place] = FOREVER
        if place - rows >= oldest:
            last[place - rows] = ts[place] - 1


@kernel
def close_partition_windows(
    ts: Int64Array,
    last: Int64Array,
    code: UInt64Array,
    null: Int64Array,
    starts: Int64Array,
    lengths: Int64Array,
    data: ByteArray,
    data_shift: int,
    head: Int64Array,
    following: Int64Array,
    oldest_inside: Int64Array,
    later: Int64Array,
    filled: Int64Array,
    first: int,
    stop: int,
    oldest: int,
    base: int,
    shift: np.uint64,
    rows: int,
) -> None:
    """`[PARTITION BY c ROWS n]`, rows `first` to `stop` (row numbers), NULL being one partition.

    `later` links a row to the next of its partition, `oldest_inside` to the oldest still in the window when it arrived, and
    `filled` counts the window's rows then, so that each new row finds the one it pushes out in constant time. Where `data` is
    not empty, codes are hashes and the values themselves decide.
    """
    for row in range(first, stop):
        place = row - base
        last[place] = FOREVER
        slot = np.int64((code[place] * GOLDEN) >> shift)
        previous = head[slot]
        while previous >= oldest:
            other = previous - base
            same = code[other] == code[place] and null[other] == null[place]
            if same and len(data) > 0 and null[place] == 0:
                same = lengths[other] == lengths[place]
                offset = 0
                while same and offset < lengths[place]:
                    same = data[starts[other] - data_shift + offset] == data[starts[place] - data_shift + offset]
                    offset += 1
            if same:
                break
            previous = following[other]
        following[place] = head[slot]
        head[slot] = row
        later[place] = -1
        if previous < oldest:
            oldest_inside[place] = row
            filled[place] = 1
        else:
            before = previous - base
            later[before] = row
            oldest_inside[place] = oldest_inside[before]
            filled[place] = filled[before] + 1
        if filled[place] > rows:
            pushed_out = oldest_inside[place] - base
            last[pushed_out] = ts[place] - 1
            oldest_inside[place] = later[pushed_out]
            filled[place] = rows
