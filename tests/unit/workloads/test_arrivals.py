"""Arrival patterns have the requested rate, spacing and bursts."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dovetail.workloads import (
    Arrivals,
    Stream,
    Uniform,
    Workload,
)
from dovetail.workloads.arrivals import PATTERNS, SECOND


def micros(table: pa.Table, start: int = 0) -> NDArray[np.int64]:
    found: NDArray[np.int64] = table["ts"].cast(pa.int64()).to_numpy() - start
    return found


def arriving(arrivals: Arrivals, seconds: float, seed: int = 1) -> NDArray[np.int64]:
    """Return the event times, in microseconds, of a stream without delays."""
    workload = Workload("w", (Stream("s", arrivals, {"k": Uniform(10)}),), seed=seed, start=0)
    return micros(workload.table("s", 0, seconds))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_has_the_requested_rate(pattern: str) -> None:
    times = arriving(Arrivals(500, pattern, period=10, turned=True), 200)
    expected = 500 * 200
    assert len(times) == pytest.approx(expected, abs=5 * sqrt(expected) if pattern == "poisson" else 2)
    assert (np.diff(times) >= 0).all()


def test_uniform_is_even_and_poisson_is_not() -> None:
    even = np.diff(arriving(Arrivals(400, "uniform"), 50))
    assert even.min() >= 2499
    assert even.max() <= 2501
    gaps = np.diff(arriving(Arrivals(400, "poisson"), 100))
    assert gaps.mean() == pytest.approx(2500, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # exponential
    counts = np.bincount(arriving(Arrivals(400, "poisson"), 500) // SECOND)
    assert counts.var() == pytest.approx(400, rel=0.25)


@pytest.mark.parametrize(("pattern", "fast_first"), [("fast-slow", True), ("slow-fast", False)])
def test_quarters_alternate(pattern: str, fast_first: bool) -> None:  # noqa: FBT001
    # A quarter of the tuples at twice the mean rate, then one at two thirds of it, and again.
    times = arriving(Arrivals(100, pattern, period=80), 80) / SECOND
    bounds = [0, 10, 40, 50, 80] if fast_first else [0, 30, 40, 70, 80]
    rates = [((times >= low) & (times < high)).sum() / (high - low) for low, high in pairwise(bounds)]
    expected = [200, 200 / 3] * 2 if fast_first else [200 / 3, 200] * 2
    assert rates == pytest.approx(expected, rel=0.01)


def test_a_sinusoid_goes_from_half_the_rate_to_one_and_a_half() -> None:
    times = arriving(Arrivals(1000, "sinusoid", period=64), 64 * 5) / SECOND % 64
    counts, _ = np.histogram(times, 64, (0, 64))
    assert counts.max() / 5000 == pytest.approx(1.5, rel=0.03)
    assert counts.min() / 5000 == pytest.approx(0.5, rel=0.03)
    assert np.argmax(counts) in (7, 8, 39, 40)  # a quarter into each of the two waves


@pytest.mark.parametrize("bias", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("turned", [False, True])
def test_a_b_model_has_its_bias_at_every_scale(bias: float, turned: bool) -> None:  # noqa: FBT001
    arrivals = Arrivals(100_000, "b-model", period=1.024, bias=bias, turned=turned)
    counts = np.histogram(arriving(arrivals, 4 * 1.024), 4 * 64, (0, 4 * 1.024 * SECOND))[0].astype(float)
    seen = set()
    for _ in range(6):
        halves = counts.reshape(-1, 2)
        full = halves[halves.sum(axis=1) > 2000]
        shares = full[:, 0] / full.sum(axis=1)
        seen |= set((shares > 0.5).tolist())
        wanted = np.where(shares > 0.5, max(bias, 1 - bias), min(bias, 1 - bias)) if turned else bias
        assert shares == pytest.approx(wanted, abs=0.02)
        counts = halves.sum(axis=1)
    assert counts == pytest.approx(102_400, rel=0.001)
    if bias != 0.5:
        assert seen == ({True, False} if turned else {bias > 0.5})
