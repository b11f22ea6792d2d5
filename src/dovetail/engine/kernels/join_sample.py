"""Kernels of the sample from which recall is estimated: select followed tuples, and count the results of an unshed join."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail._typing import BoolArray, Float64Array, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import inlined, kernel
from dovetail.engine.kernels.index import GOLDEN, spread
from dovetail.engine.kernels.tuple_table import TupleBatch

BUCKETS = 32
"""Random groups of the followed keys, whose differences give the interval."""
HOT = 31
"""Row of the counters for hot keys; the rows before it are for the other keys, by the level of their hash."""
ROWS = HOT + 2
"""The last row is for the error of hot keys."""


@inlined
def _row_of(code: np.uint64, hashed: np.uint64, hot: UInt64Array) -> int:
    """Return the row of a key in the counters: `HOT`, or the number of leading zeros of its hash."""
    begin, end = 0, len(hot)
    while begin < end:
        middle = (begin + end) >> 1
        if hot[middle] < code:
            begin = middle + 1
        else:
            end = middle
    if begin < len(hot) and hot[begin] == code:
        return HOT
    level = 0
    while level < HOT - 1 and not hashed >> np.uint64(63 - level):
        level += 1
    return level


@kernel
def followed(codes: UInt64Array, seed: np.uint64, hot: UInt64Array, level: int) -> BoolArray:
    """Return which codes are followed: those of hot keys, and those whose hash has at least `level` leading zeros."""
    mask = np.empty(len(codes), np.bool_)
    for i in range(len(codes)):
        mask[i] = _row_of(codes[i], spread(codes[i], seed), hot) >= level
    return mask


@kernel
def select(
    incoming: TupleBatch, window: int, local: int, seed: np.uint64, hot: UInt64Array, level: int, rows: Int64Array
) -> int:
    """Write the positions of the followed tuples that one reader of a window sees; return their number."""
    count = 0
    for i in range(len(incoming.ts)):
        if incoming.window[i] == window and incoming.row[i] >= 0 and incoming.seen[i] >> local & 1:
            code = incoming.codes[i, local]
            if level == 0 or _row_of(code, spread(code, seed), hot) >= level:
                rows[count] = i
                count += 1
    return count


@kernel
def count_keys(codes: UInt64Array, seed: np.uint64, hot: UInt64Array, level: int, counters: Float64Array) -> None:
    """Count the results of followed keys; `codes` has the key of each result."""
    for code in codes:
        hashed = spread(code, seed)
        row = _row_of(code, hashed, hot)
        if row >= level:
            counters[row, np.int64(hashed % np.uint64(BUCKETS))] += 1.0


@kernel
def count_results(
    ts: Int64Array,
    codes: UInt64Array,
    inputs: NDArray[np.int16],
    weights: NDArray[np.int32],
    spans: Int64Array,
    seed: np.uint64,
    hot: UInt64Array,
    begin: int,
    end: int,
    settled: Float64Array,
    unsettled: Float64Array,
) -> None:
    """Count the results of a join over tuples sorted by event time, each at its latest tuple.

    The latest tuple of a result meets the earlier ones of the other inputs that are inside their windows at its event time; of tuples
    with equal event times the last in the arrays is the latest. A tuple stands for as many as its weight. Results are counted in
    `settled` if their latest tuple is from [begin, end), and in `unsettled` if it is later.
    """
    count, width = len(ts), len(spans)
    bits = 4
    while 1 << bits < 2 * count:
        bits += 1
    mask = (1 << bits) - 1
    table = np.full(1 << bits, -1, np.int64)
    keys = np.empty(count, np.int64)
    for i in range(count):
        slot = np.int64((codes[i] * GOLDEN) >> np.uint64(64 - bits))
        while table[slot] >= 0 and codes[table[slot]] != codes[i]:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = i
        keys[i] = table[slot]  # the first tuple of a key stands for it
    inside = np.zeros((count, width), np.int64)
    oldest = np.zeros(width, np.int64)
    for i in range(count):
        for input_ in range(width):
            while ts[oldest[input_]] + spans[input_] < ts[i]:
                if inputs[oldest[input_]] == input_:
                    inside[keys[oldest[input_]], input_] -= weights[oldest[input_]]
                oldest[input_] += 1
        results = float(weights[i])
        for input_ in range(width):
            if input_ != inputs[i]:
                results *= inside[keys[i], input_]
        inside[keys[i], inputs[i]] += weights[i]
        if results > 0.0 and ts[i] >= begin:
            hashed = spread(codes[i], seed)
            counters = settled if ts[i] < end else unsettled
            counters[_row_of(codes[i], hashed, hot), np.int64(hashed % np.uint64(BUCKETS))] += results
