"""Unique keys that appear in several streams, in Zipf-distributed orders (Kwon, Lee, Kim, section 5).

A key appears in an ordered, non-empty subset of the streams, once in each: five streams have 325 such orders. Each appearance follows
the one before after an exponential gap. The probabilities of the orders decide which tuples are worth keeping.
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
    """Return every ordered, non-empty subset of this many streams.

    >>> [len(all_orders(streams)) for streams in (2, 3, 5)]
    [4, 15, 325]
    """
    return [order for size in range(1, streams + 1) for order in permutations(range(streams), size)]


def stream_positions(orders: Sequence[Order], streams: int) -> Integers:
    """Return the position of each stream (column) in each order (row), -1 if the order lacks it.

    >>> stream_positions([(1,), (2, 0)], 3).tolist()
    [[-1, 0, -1], [1, -1, 0]]
    """
    positions = np.full((len(orders), streams), -1)
    for row, order in enumerate(orders):
        positions[row, list(order)] = range(len(order))
    return positions


@dataclass(frozen=True)
class Orders:
    """Distribution of the orders in which keys appear in streams."""

    streams: tuple[str, ...]
    orders: tuple[Order, ...]
    """Orders from the most likely to the least, as indices of `streams`."""
    keys: Arrivals
    """Arrival process of the first appearances of keys."""
    skew: float = 1.0
    """Zipf's exponent of the orders; with 0 all are equally likely."""
    gap: float = 5.0
    """Mean time between two appearances of a key, in seconds."""

    def __post_init__(self) -> None:
        checks.within("orders: skew", self.skew, 0)
        checks.above("orders: gap", self.gap)
        indices = range(len(self.streams))
        wrong = [order for order in self.orders if not order or len({*order} & {*indices}) != len(order)]
        if wrong or not self.orders:
            problem = f"has {listed(wrong)}" if wrong else "is empty"
            raise ConfigError(f"orders {problem}; each must name some of the places {listed(indices)}, once")

    def with_rate(self, arrivals: Arrivals) -> Orders:
        """Return the same orders with enough keys for the rate of `arrivals`, in the mean over streams."""
        appearances_per_key = float(self.chances @ np.array([len(order) for order in self.orders]))
        return replace(self, keys=replace(arrivals, rate=arrivals.rate * len(self.streams) / appearances_per_key))

    @property
    def chances(self) -> NDArray[np.float64]:
        """Probability of each order."""
        return zipf_chances(len(self.orders), self.skew)

    def fraction(self, stream: str) -> float:
        """Return the fraction of keys that appear in a stream."""
        has_stream = stream_positions(self.orders, len(self.streams))[:, self.streams.index(stream)] >= 0
        return float(self.chances @ has_stream)

    @property
    def reach(self) -> int:
        """Longest time from a key's first appearance to its last, in microseconds."""
        return (len(self.streams) - 1) * longest_lag(self.gap)

    def appearances(self, rng: np.random.Generator, starts: Integers) -> tuple[Integers, Integers]:
        """Draw orders and times for keys that first appear at `starts`; both results have one row per key.

        The first has each stream's position in the key's order, -1 where the key does not appear; the second has the time of each
        position.
        """
        chosen = rng.choice(len(self.orders), len(starts), p=self.chances)
        gaps = lags(rng, self.gap, (len(starts), len(self.streams)))
        gaps[:, 0] = 0
        return stream_positions(self.orders, len(self.streams))[chosen], starts[:, None] + np.cumsum(gaps, axis=1)
