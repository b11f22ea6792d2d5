"""The paper's program, simulated: against the engine, against a program in plain Python, and its two rules for equal tuples."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pyarrow as pa
import pytest

from experiments import kwon
from experiments.kwon import SECOND, Grid, Point, cut, drawn, driven
from experiments.kwon_simulator import (
    EP,
    FIFO,
    FREQUENCY,
    NOTHING,
    OUTPUT,
    OWN,
    TIMED,
    arrivals,
    count_results,
    decisions,
    kept_up,
    simulate,
    timed_results,
)

GRID = Grid(tuples=600)
SPAN = 100 * SECOND
UNIQUE = Point("5", 60, 0, streams=3, memory=60, orders=6)
REPEATED = Point("10", 25, 0, streams=3, memory=20, variance=25.0)


def counted(streams: Mapping[str, pa.Table], memory: int, policy: int, *, span: int = SPAN) -> int:
    stream, key, moment = arrivals(streams)
    return int(count_results(stream, key, moment, len(streams), int(key.max()) + 1, memory, span, policy, False, 0))


@pytest.mark.parametrize("point", [UNIQUE, REPEATED], ids=["unique", "repeated"])
def test_results_equal_those_of_the_engine(point: Point) -> None:
    streams = drawn(point, GRID)
    span = (10 if point.variance else 100) * SECOND
    batches = cut(streams, 5)
    assert counted(streams, 1 << 40, NOTHING, span=span) == driven(point, batches, None, dead_keys_first=False)[0] > 10
    assert counted(streams, point.memory, FIFO, span=span) == driven(point, batches, "fifo", dead_keys_first=False)[0]


@pytest.mark.parametrize("policy", TIMED.values(), ids=TIMED)
def test_both_programs_count_the_same(policy: int) -> None:
    for orders in (0, 6):
        streams = drawn(Point("5", 60, 1, streams=4, memory=60, orders=orders), GRID)
        stream, key, moment = arrivals(streams)
        found = timed_results(stream, key, moment, 4, int(key.max()) + 1, 60, SPAN, policy)
        assert found == counted(streams, 60, policy) > 0


def slow(streams: Mapping[str, pa.Table], memory: int, policy: int, span: int) -> float:
    """The same with lists, for `EP` and the policies by value."""
    count, total = len(streams), 0
    windows: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    seen: dict[int, int] = {}
    given: dict[int, int] = {}
    tuples: dict[tuple[int, int], float] = {}
    results: dict[tuple[int, int], float] = {}
    for own, key, now in zip(*(each.tolist() for each in arrivals(streams)), strict=True):
        windows = [[each for each in window if each[1] >= now - span] for window in windows]

        def worth(
            each: tuple[int, int, int], own: int = own, windows: list[list[tuple[int, int, int]]] = windows
        ) -> float:
            value, _, bits = each
            if policy == EP:
                return -1 if bits == (1 << count) - 1 else results.get((own, bits), 0) / tuples[own, bits]
            if policy == OUTPUT:
                return given.get(value, 0)
            chosen = windows if policy == FREQUENCY else [windows[own]]
            return sum(other[0] == value for window in chosen for other in window)

        if len(windows[own]) >= memory:
            windows[own].remove(min(windows[own], key=worth))
        seen[key] = seen.get(key, 0) | 1 << own
        windows[own].append((key, now, seen[key]))
        tuples[own, seen[key]] = tuples.get((own, seen[key]), 0) + 1
        partners = [[each for each in window if each[0] == key] for window in windows]
        found = prod(len(each) for number, each in enumerate(partners) if number != own)
        total += found
        given[key] = given.get(key, 0) + found
        for number, each in enumerate(partners if found else []):
            for _, _, bits in each if number != own else [(key, now, seen[key])]:
                part = found / (1 if number == own else len(each))
                results[number, bits] = results.get((number, bits), 0) + part
    return total


@pytest.mark.parametrize("policy", [EP, FREQUENCY, OWN, OUTPUT], ids=["ep", "frequency", "own", "output"])
@pytest.mark.parametrize("point", [UNIQUE, REPEATED], ids=["unique", "repeated"])
def test_policies_shed_what_they_should(point: Point, policy: int) -> None:
    streams = drawn(point, Grid(tuples=300))
    span = (10 if point.variance else 100) * SECOND
    assert counted(streams, point.memory // 2, policy, span=span) == slow(streams, point.memory // 2, policy, span) > 0


def test_with_random_ties_frequency_over_its_own_window_is_random() -> None:
    shares = []
    for seed in range(4):
        found = simulate(drawn(Point("5", 300, seed, memory=300), Grid(tuples=3000)), 300, SPAN, seed, None)["policies"]
        assert found["frequency-own"] == found["fifo"]
        shares.append(found["frequency-own, random ties"]["results"] / found["random"]["results"])
    assert np.mean(shares) == pytest.approx(1, abs=0.1)


def test_a_program_that_falls_behind_loses_what_finds_no_room() -> None:
    stream, key = np.zeros(1000, np.int64), np.arange(1000)
    moment = np.arange(1000) * SECOND // 10  # ten per second
    assert len(kept_up(stream, key, moment, 10.0, 5)[0]) == 1000
    kept = kept_up(stream, key, moment, 5.0, 5)[1]
    assert len(kept) == pytest.approx(500, abs=10)
    assert list(kept[:5]) == [0, 1, 2, 3, 4]
    assert np.diff(kept).max() <= 3


def test_decisions_are_timed() -> None:
    found = decisions(drawn(UNIQUE, GRID), 60, SPAN)
    assert set(found["policies"]) == set(TIMED)
    assert all(each["nanoseconds"] > 0 for each in found["policies"].values())
    assert kwon.SPANS["10"] == 10
