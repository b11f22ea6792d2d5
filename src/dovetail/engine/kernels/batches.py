"""A batch on its way to a roster and back: tuples in order of event time, their hashes, and what was shed by window."""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, kernel
from dovetail.engine.kernels.roster import Incoming, Shed, spread

_NEVER = (1 << 63) - 1


@kernel
def interleave(parts: Incoming, starts: Int64Array, merged: Incoming) -> None:
    """Write tuples in order of event time; `parts` has them part by part, each in order, from `starts` on.

    Of one time earlier parts come first.
    """
    ts, at, ends = parts.ts, starts[:-1].copy(), starts[1:]
    next_ts = np.array([ts[at[part]] if at[part] < ends[part] else _NEVER for part in range(len(at))])
    for number in range(len(ts)):
        first = 0
        for part in range(1, len(at)):
            if next_ts[part] < next_ts[first]:
                first = part
        place = at[first]
        merged.window[number], merged.row[number], merged.ts[number] = parts.window[place], parts.row[place], ts[place]
        merged.seen[number] = parts.seen[place]
        for use in range(parts.codes.shape[1]):
            merged.codes[number, use] = parts.codes[place, use]
        at[first] += 1
        next_ts[first] = ts[place + 1] if place + 1 < ends[first] else _NEVER


@kernel
def by_window(shed: Shed, divided: Shed, ends: Int64Array) -> None:
    """Write what was shed window by window, and where each one's tuples end."""
    ends[:] = 0
    for window in shed.window:
        ends[window] += 1
    ends[:] = np.cumsum(ends) - ends
    for number in range(len(shed.window)):
        window = shed.window[number]
        place = ends[window]
        divided.window[place], divided.row[place], divided.end[place] = window, shed.row[number], shed.end[number]
        ends[window] += 1


@borrowing
def least_hashes(codes: UInt64Array, seen: Int64Array, seed: np.uint64, least: UInt64Array) -> None:
    """Write the smallest hash of those codes of each tuple that somebody sees; the largest number if nobody does."""
    for number in range(len(seen)):
        smallest = np.uint64(0xFFFFFFFFFFFFFFFF)
        for local in range(codes.shape[1]):
            if seen[number] >> local & 1:
                smallest = min(smallest, spread(codes[number, local], seed))
        least[number] = smallest
