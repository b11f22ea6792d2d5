"""Cost of a sliding-window nested-loop join, in attribute comparisons per unit time.

These are the equations of Golab and Özsu, "Processing Sliding Window Multi-Joins in Continuous Queries over Data Streams"
(CS-2003-01): sections 3.1-3.3 (position of the new tuples), 5.3 (hash buckets) and appendices A and B. All streams
are joined by equality on one common attribute, values are uniform, and a stream with fewer distinct values draws them from those
of a stream with more ("containment of value sets").

One equation covers all of theirs. An order names every stream, outermost loop first; the new tuples may be at any position. One
execution makes

    sum over loops k = 2..n of   size(joined in loops 1..k-1) * scanned(loop k)

comparisons: each partial result scans the next loop. The outermost scan is not charged, because it compares nothing. The new tuples
count as one tuple under eager evaluation, executed `rate` times per unit time, and as `rate * tau` tuples under lazy evaluation,
executed every `tau`; any other window holds `rate * window` tuples, or `rate * (window + tau)` when expiry is as lazy as evaluation.

============  =====================================================  ==============  =============
algorithm     order used for new tuples of stream i                  eager           lazy
============  =====================================================  ==============  =============
multi-way     i, then the others in one global order (3.2, 3.3)      `C_i`           `L_i`
naive         one global order, new tuples at i's place in it (3.1)  `G_i`           `H_i`
general       any order, another for each i (3.3)                    `G_i`           `H_i`
============  =====================================================  ==============  =============

Where the paper is loose:

- Appendix A derives four streams in one order. Here are any number and any order.
- `H_3` charges `λ4 T4` in the text and `λ4 (T4 + τ)` in the equation; the equation is meant.
- Section 5.3 discounts the window by its bucket count. Only the scan gets shorter: the number of matches does not depend on the
  access path. (Discounting the sizes too would contradict the section's own claim that equal bucket counts do not change the choice
  of order.) New tuples that are not outermost are found through their buckets as well.
- As `tau` goes to zero, lazy multi-way costs converge to the eager ones. Lazy naive costs do not: they grow without bound, because
  each of ever more executions rescans the outer windows whether or not anything arrived.
- "Naive is never cheaper than multi-way" (4.3) needs windows that hold each of their distinct values at least once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TypeAlias

from dovetail.errors import ConfigError, PlanError, listed

Streams: TypeAlias = "Mapping[str, StreamStatistics]"


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """Statistics of one stream, as the equations use them.

    >>> StreamStatistics(rate=10, window=100, distinct=500).tuples()
    1000.0
    """

    rate: float
    """Tuples per unit time (λ)."""
    window: float
    """Time size of its window (T)."""
    distinct: float
    """Distinct join values in its window (v)."""
    buckets: int = 1
    """Buckets of the hash index on its window (b); 1 is a nested-loop scan."""
    expense: float = 1.0
    """Price of one comparison with its tuples (section 5.4's expensive predicates)."""

    def __post_init__(self) -> None:
        for name in ("rate", "window", "distinct", "buckets", "expense"):
            value = getattr(self, name)
            low = 0 if name in ("rate", "window", "expense") else 1
            if not (isfinite(value) and value >= low and value > 0):
                bound = "above 0" if low == 0 else "at least 1"
                raise ConfigError(f"StreamStatistics({name}={value!r}): it must be finite and {bound}")

    def tuples(self, tau: float = 0.0) -> float:
        """Return the tuples in the window when expiry runs every `tau`."""
        return float(self.rate * (self.window + tau))


def origin_cost(streams: Streams, origin: str, order: Sequence[str], tau: float | None = None) -> float:
    """Return the cost of joining the new tuples of `origin` in loops nested by `order`.

    Parameters
    ----------
    streams
        Statistics by name.
    origin
        The stream whose new tuples are joined.
    order
        Every name of `streams` once, outermost loop first; `origin` may be anywhere.
    tau
        Time between executions, expiry included; None for eager evaluation.

    >>> streams = {"a": StreamStatistics(10, 100, 500), "b": StreamStatistics(1, 100, 50), "c": StreamStatistics(1, 200, 40)}
    >>> origin_cost(streams, "c", ("c", "a", "b"))
    1200.0
    >>> origin_cost(streams, "c", ("a", "b", "c"))
    100200.0
    """
    _check_order(streams, order)
    if origin not in streams:
        raise PlanError(f"origin {origin!r} is not one of the streams: {listed(streams)}")
    if tau is not None and not (isfinite(tau) and tau > 0):
        raise ConfigError(f"tau is {tau!r}; it must be finite and above 0, or None for eager evaluation")
    new, executions = (1.0, streams[origin].rate) if tau is None else (streams[origin].rate * tau, 1 / tau)
    comparisons, size, distinct = 0.0, 1.0, inf
    for loop, name in enumerate(order):
        stream = streams[name]
        entering = new if name == origin else stream.tuples(tau or 0.0)
        if loop > 0:
            comparisons += size * entering / stream.buckets * stream.expense
        size, distinct = join_size(size, distinct, stream, entering)
    return comparisons * executions


def multi_way_cost(streams: Streams, order: Sequence[str], tau: float | None = None) -> dict[str, float]:
    """Return the cost by origin when new tuples are always outermost: C_i, or with `tau` L_i.

    >>> streams = {"a": StreamStatistics(10, 100, 500), "b": StreamStatistics(1, 100, 50)}
    >>> multi_way_cost(streams, ("a", "b"))
    {'a': 1000.0, 'b': 1000.0}
    """
    first = {origin: (origin, *(name for name in order if name != origin)) for origin in order}
    return general_cost(streams, first, tau)


def naive_cost(streams: Streams, order: Sequence[str], tau: float | None = None) -> dict[str, float]:
    """Return the cost by origin when all origins use the same global order: G_i, or with `tau` H_i.

    >>> streams = {"a": StreamStatistics(1, 100, 50), "b": StreamStatistics(1, 100, 50), "c": StreamStatistics(1, 100, 50)}
    >>> naive_cost(streams, ("a", "b", "c"))
    {'a': 300.0, 'b': 300.0, 'c': 10200.0}
    """
    return general_cost(streams, dict.fromkeys(order, tuple(order)), tau)


def general_cost(streams: Streams, orders: Mapping[str, Sequence[str]], tau: float | None = None) -> dict[str, float]:
    """Return the cost by origin when each origin has its own order: G_i, or with `tau` H_i.

    >>> streams = {"a": StreamStatistics(1, 100, 50), "b": StreamStatistics(1, 100, 50)}
    >>> general_cost(streams, {"a": ("a", "b"), "b": ("a", "b")}, tau=10)
    {'a': 110.0, 'b': 110.0}
    """
    _check_order(streams, tuple(orders))
    return {origin: origin_cost(streams, origin, order, tau) for origin, order in orders.items()}


def join_size(size: float, distinct: float, stream: StreamStatistics, entering: float) -> tuple[float, float]:
    """Return the size and distinct count of a join with `entering` tuples of `stream` added (appendix A).

    An infinite distinct count marks the empty join: all tuples of the first stream match.
    """
    matched = size * entering / (1 if distinct == inf else max(distinct, stream.distinct))
    return matched, min(distinct, stream.distinct)


def _check_order(streams: Streams, order: Sequence[str]) -> None:
    if len(order) != len(streams) or set(order) != set(streams):
        raise PlanError(f"the order is {listed(order)}; it must name each of the streams once: {listed(streams)}")
