"""A batch in parts that follow each other in event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.storage.append import NewRows


def cut(incoming: Mapping[str, NewRows], size: int, *, each: bool) -> Iterator[Mapping[str, NewRows]]:
    """Parts of about `size` tuples, or, for `each` stream, of at most as many units.

    Tuples of one event time stay together if they can.
    """
    sizes = [int(_units(arrived, size)[-1]) if each else len(arrived) for arrived in incoming.values()]
    if (max(sizes, default=0) if each else sum(sizes)) <= size:
        yield incoming
        return
    times = [arrived.ts for arrived in incoming.values()]
    if each:
        bounds = np.concatenate([_bounds(arrived, size) for arrived in incoming.values()])
    else:
        bounds = np.sort(np.concatenate(times))[size::size]
    bounds = np.unique(bounds)
    places = {stream: [0, *np.searchsorted(arrived.ts, bounds), len(arrived)] for stream, arrived in incoming.items()}
    for number in range(len(bounds) + 1):
        part = {
            stream: arrived.slice(int(places[stream][number]), int(places[stream][number + 1]))
            for stream, arrived in incoming.items()
        }
        yield from filter(None, _pieces(part, size) if each else (_some(part),))


def divided(incoming: Mapping[str, NewRows], counts: Mapping[str, int]) -> tuple[dict[str, NewRows], ...]:
    """The first tuples of each stream, so many as `counts` says, and the others."""
    places = {stream: counts.get(stream, 0) for stream in incoming}
    first = {stream: arrived.slice(0, places[stream]) for stream, arrived in incoming.items()}
    others = {stream: arrived.slice(places[stream], len(arrived)) for stream, arrived in incoming.items()}
    return _some(first), _some(others)


def _pieces(part: Mapping[str, NewRows], size: int) -> Iterator[Mapping[str, NewRows]]:
    """More tuples of one event time than may come at once: in order of arrival."""
    bounds = {stream: [*_starts(arrived, size), len(arrived)] for stream, arrived in part.items()}
    for number in range(max(map(len, bounds.values())) - 1):
        yield _some(
            {
                stream: arrived.slice(*bounds[stream][number : number + 2])
                for stream, arrived in part.items()
                if number + 1 < len(bounds[stream])
            }
        )


def _bounds(arrived: NewRows, size: int) -> Int64Array:
    """The event times at which parts begin, for parts of at most `size` units, or of one event time."""
    ts, units, bounds, start = arrived.ts, _units(arrived, size), list[int](), 0
    while start < len(ts):
        stop = int(np.searchsorted(units, units[start] + size, "right")) - 1
        if stop == len(ts):
            break
        first = int(np.searchsorted(ts, ts[stop]))
        if first > start:
            start = first
            bounds.append(int(ts[start]))
        else:  # more tuples of one event time than fit: they are a part of their own
            bounds += [int(ts[start]), int(ts[start]) + 1]
            start = int(np.searchsorted(ts, ts[start], "right"))
    return np.array(bounds, np.int64)


def _starts(arrived: NewRows, size: int) -> list[int]:
    """The first tuple of each of the parts, which follow each other, of at most `size` units."""
    units, starts = _units(arrived, size), [0]
    while (stop := int(np.searchsorted(units, units[starts[-1]] + size, "right")) - 1) < len(arrived):
        starts.append(stop)
    return starts


def _units(arrived: NewRows, size: int) -> Int64Array:
    """How much of the cap the tuples before each one take; a tuple that never fits counts as `size`."""
    units = np.ones(len(arrived), np.int64) if arrived.units is None else np.minimum(arrived.units, size)
    return np.concatenate(([0], np.cumsum(units, dtype=np.int64)))


def _some(part: Mapping[str, NewRows]) -> dict[str, NewRows]:
    return {stream: arrived for stream, arrived in part.items() if len(arrived)}
