"""Unique keys that appear in several streams, in orders that follow Zipf's law (Kwon, Lee, Kim, section 5).

A key appears in an ordered, non-empty subset of the streams, in each of these once: there are 325 such orders of five streams. Each
next appearance follows after an exponential gap. Which orders are likely decides which tuples are worth keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import ConfigError, listed
from dovetail.workloads import checks
from dovetail.workloads.arrivals import Arrivals, Integers
from dovetail.workloads.columns import zipf_chances
from dovetail.workloads.delays import lags, longest_lag

Order: TypeAlias = tuple[int, ...]


def all_orders(streams: int) -> list[Order]:
    """Every ordered, non-empty subset of so many streams.

    >>> [len(all_orders(streams)) for streams in (2, 3, 5)]
    [4, 15, 325]
    """
    return [order for size in range(1, streams + 1) for order in permutations(range(streams), size)]


def places_of(orders: Sequence[Order], streams: int) -> Integers:
    """Give for each order and stream at which place of the order the stream is; -1 if it is not there.

    >>> places_of([(1,), (2, 0)], 3).tolist()
    [[-1, 0, -1], [1, -1, 0]]
    """
    places = np.full((len(orders), streams), -1)
    for number, order in enumerate(orders):
        places[number, list(order)] = range(len(order))
    return places


@dataclass(frozen=True)
class Orders:
    """How keys appear in streams."""

    streams: tuple[str, ...]
    orders: tuple[Order, ...]
    """From the likeliest on, as places in `streams`."""
    keys: Arrivals
    """When keys appear for the first time."""
    skew: float = 1.0
    """Zipf's exponent over the orders; 0: all are equally likely."""
    gap: float = 5.0
    """Seconds between two appearances of a key, in the mean."""

    def __post_init__(self) -> None:
        checks.within("orders: skew", self.skew, 0)
        checks.above("orders: gap", self.gap)
        places = range(len(self.streams))
        wrong = [order for order in self.orders if not order or len({*order} & {*places}) != len(order)]
        if wrong or not self.orders:
            found = f"has {listed(wrong)}" if wrong else "is empty"
            raise ConfigError(f"orders {found}; each must name some of the places {listed(places)}, once")

    def rated(self, arrivals: Arrivals) -> Orders:
        """Give as many keys as it takes for streams to have the rate of `arrivals`, in the mean over streams."""
        each = float(self.chances @ np.array([len(order) for order in self.orders]))
        return replace(self, keys=replace(arrivals, rate=arrivals.rate * len(self.streams) / each))

    @property
    def chances(self) -> NDArray[np.float64]:
        """How likely each order is."""
        return zipf_chances(len(self.orders), self.skew)

    def share(self, stream: str) -> float:
        """Which share of the keys appears in a stream."""
        there = places_of(self.orders, len(self.streams))[:, self.streams.index(stream)] >= 0
        return float(self.chances @ there)

    @property
    def reach(self) -> int:
        """Microseconds from a key's first appearance to its last, at most."""
        return (len(self.streams) - 1) * longest_lag(self.gap)

    def appearances(self, rng: np.random.Generator, starts: Integers) -> tuple[Integers, Integers]:
        """Draw, for keys that first appear at `starts`, at which place of its order each stream is, and when it would be.

        Both have a row for each key: the first a column for each stream, -1 where the key does not appear; the second one for each
        place.
        """
        chosen = rng.choice(len(self.orders), len(starts), p=self.chances)
        gaps = lags(rng, self.gap, (len(starts), len(self.streams)))
        gaps[:, 0] = 0
        return places_of(self.orders, len(self.streams))[chosen], starts[:, None] + np.cumsum(gaps, axis=1)
