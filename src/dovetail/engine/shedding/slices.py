"""Split a batch into slices that follow each other in event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.storage.append import NewRows


def split_batch(incoming: Mapping[str, NewRows], size: int, *, per_stream: bool) -> Iterator[Mapping[str, NewRows]]:
    """Yield slices of about `size` tuples, or, if `per_stream`, of at most `size` units in each stream.

    Tuples of one event time stay together if they fit.
    """
    sizes = [int(_cumulative_units(arrived, size)[-1]) if per_stream else len(arrived) for arrived in incoming.values()]
    if (max(sizes, default=0) if per_stream else sum(sizes)) <= size:
        yield incoming
        return
    times = [arrived.ts for arrived in incoming.values()]
    if per_stream:
        bounds = np.concatenate([_slice_times(arrived, size) for arrived in incoming.values()])
    else:
        bounds = np.sort(np.concatenate(times))[size::size]
    bounds = np.unique(bounds)
    positions = {
        stream: [0, *np.searchsorted(arrived.ts, bounds), len(arrived)] for stream, arrived in incoming.items()
    }
    for position in range(len(bounds) + 1):
        batch_slice = {
            stream: arrived.slice(int(positions[stream][position]), int(positions[stream][position + 1]))
            for stream, arrived in incoming.items()
        }
        yield from filter(None, _split_event_time(batch_slice, size) if per_stream else (without_empty(batch_slice),))


def split_at_counts(incoming: Mapping[str, NewRows], counts: Mapping[str, int]) -> tuple[dict[str, NewRows], ...]:
    """Return the first tuples of each stream, as many as `counts` says, and the rest."""
    positions = {stream: counts.get(stream, 0) for stream in incoming}
    first = {stream: arrived.slice(0, positions[stream]) for stream, arrived in incoming.items()}
    rest = {stream: arrived.slice(positions[stream], len(arrived)) for stream, arrived in incoming.items()}
    return without_empty(first), without_empty(rest)


def _split_event_time(batch_slice: Mapping[str, NewRows], size: int) -> Iterator[Mapping[str, NewRows]]:
    """Split one event time with more tuples than fit, in arrival order."""
    bounds = {stream: [*_slice_starts(arrived, size), len(arrived)] for stream, arrived in batch_slice.items()}
    for position in range(max(map(len, bounds.values())) - 1):
        yield without_empty(
            {
                stream: arrived.slice(*bounds[stream][position : position + 2])
                for stream, arrived in batch_slice.items()
                if position + 1 < len(bounds[stream])
            }
        )


def _slice_times(arrived: NewRows, size: int) -> Int64Array:
    """Return the event times at which slices begin; a slice has at most `size` units, or a single event time."""
    ts, units, bounds, start = arrived.ts, _cumulative_units(arrived, size), list[int](), 0
    while start < len(ts):
        stop = int(np.searchsorted(units, units[start] + size, "right")) - 1
        if stop == len(ts):
            break
        first = int(np.searchsorted(ts, ts[stop]))
        if first > start:
            start = first
            bounds.append(int(ts[start]))
        else:  # one event time has more tuples than fit: it is a slice of its own
            bounds += [int(ts[start]), int(ts[start]) + 1]
            start = int(np.searchsorted(ts, ts[start], "right"))
    return np.array(bounds, np.int64)


def _slice_starts(arrived: NewRows, size: int) -> list[int]:
    """Return the first tuples of consecutive slices of at most `size` units."""
    units, starts = _cumulative_units(arrived, size), [0]
    while (stop := int(np.searchsorted(units, units[starts[-1]] + size, "right")) - 1) < len(arrived):
        starts.append(stop)
    return starts


def _cumulative_units(arrived: NewRows, size: int) -> Int64Array:
    """Return the units of all tuples before each one; a tuple that never fits counts as `size`."""
    units = np.ones(len(arrived), np.int64) if arrived.units is None else np.minimum(arrived.units, size)
    return np.concatenate(([0], np.cumsum(units, dtype=np.int64)))


def without_empty(batch_slice: Mapping[str, NewRows]) -> dict[str, NewRows]:
    """Return the streams that have tuples."""
    return {stream: arrived for stream, arrived in batch_slice.items() if len(arrived)}


def split_unseen(
    unseen: Mapping[str, Int64Array], batch_slice: Mapping[str, NewRows], *, is_last: bool
) -> tuple[dict[str, Int64Array], dict[str, Int64Array]]:
    """Split the event times of unseen tuples by stream at the end of a slice.

    Those after the last slice belong to it.
    """
    end = max((int(arrived.ts[-1]) for arrived in batch_slice.values() if len(arrived)), default=LONG_AGO)
    counts = {
        stream: len(times) if is_last else int(np.searchsorted(times, end, "right")) for stream, times in unseen.items()
    }
    passed = {stream: unseen[stream][:count] for stream, count in counts.items()}
    return passed, {stream: unseen[stream][count:] for stream, count in counts.items()}
