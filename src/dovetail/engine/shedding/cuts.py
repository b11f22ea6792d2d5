"""A batch in parts that follow each other in event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dovetail.engine.storage.append import NewRows


def cut(incoming: Mapping[str, NewRows], size: int, *, each: bool) -> Iterator[Mapping[str, NewRows]]:
    """Parts of about `size` tuples, or, for `each` stream, of at most as many. Tuples of one event time stay together if they can."""
    sizes = [len(arrived) for arrived in incoming.values()]
    if (max(sizes, default=0) if each else sum(sizes)) <= size:
        yield incoming
        return
    times = [arrived.ts for arrived in incoming.values()]
    bounds = np.concatenate([ts[size::size] for ts in times]) if each else np.sort(np.concatenate(times))[size::size]
    bounds = np.unique(bounds)
    places = {stream: [0, *np.searchsorted(arrived.ts, bounds), len(arrived)] for stream, arrived in incoming.items()}
    for number in range(len(bounds) + 1):
        part = {
            stream: arrived.slice(int(places[stream][number]), int(places[stream][number + 1]))
            for stream, arrived in incoming.items()
        }
        yield from _pieces(part, size) if each else (_some(part),)


def divided(incoming: Mapping[str, NewRows], counts: Mapping[str, int]) -> tuple[dict[str, NewRows], ...]:
    """The first tuples of each stream, so many as `counts` says, and the others."""
    places = {stream: counts.get(stream, 0) for stream in incoming}
    first = {stream: arrived.slice(0, places[stream]) for stream, arrived in incoming.items()}
    others = {stream: arrived.slice(places[stream], len(arrived)) for stream, arrived in incoming.items()}
    return _some(first), _some(others)


def _pieces(part: Mapping[str, NewRows], size: int) -> Iterator[Mapping[str, NewRows]]:
    """More tuples of one event time than may come at once: in order of arrival."""
    for first in range(0, max(len(arrived) for arrived in part.values()), size):
        yield _some(
            {s: arrived.slice(min(first, len(arrived)), min(first + size, len(arrived))) for s, arrived in part.items()}
        )


def _some(part: Mapping[str, NewRows]) -> dict[str, NewRows]:
    return {stream: arrived for stream, arrived in part.items() if len(arrived)}
