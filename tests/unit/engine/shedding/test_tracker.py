"""The example of Kwon et al.: existence patterns (figure 2), priorities (figure 3), the shed tuple (figure 4).

The captions of figures 2 and 4 determine part of the windows; the rest is ours. Values are their own hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracker_readers import SECOND, readers

from dovetail.config import Shedding
from dovetail.engine.kernels.batches import interleave
from dovetail.engine.kernels.levels import LEVELS, WORDS, level_of
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    FIFO,
    FREQUENCY,
    FREQUENCY_OWN,
    NONE,
    OUTPUT,
    RANDOM,
    USED_TUPLES,
    TupleBatch,
    TupleTable,
)
from dovetail.engine.shedding.auto import PolicySelector
from dovetail.engine.shedding.caps import ShedCaps
from dovetail.engine.shedding.layout import KeyTable, TableLayout, WindowReader
from dovetail.engine.shedding.tracker import Tracker

FIGURE_3 = (
    {"100": (8, 10), "101": (6, 10), "110": (8, 20), "111": (10, 10)},
    {"010": (12, 30), "011": (8, 10), "110": (2, 20), "111": (7, 7)},
    {"001": (8, 10), "011": (4, 10), "101": (1, 10), "111": (5, 5)},
)
"""By window: r and n of each pattern."""
PRIORITIES = (
    {"100": 0.8, "101": 0.6, "110": 0.4, "111": 0.0},
    {"010": 0.4, "011": 0.8, "110": 0.1, "111": 0.0},
    {"001": 0.8, "011": 0.4, "101": 0.1, "111": 0.0},
)
FIGURE_4 = ((2, 5), (1, 4), (0, 1), (1, 1), (0, 2), (1, 5), (1, 2), (0, 4), (0, 5))
"""Arrivals, each a window and a value: in W1 t1 to t4, with values 1, 2, 4, 5; in W2 t5 to t8, with 4, 1, 5, 2; W3 has 5, first."""


class Windows:
    """Windows that receive tuples one by one, one second apart."""

    def __init__(self, policy: int, windows: int = 3, cap: int = 4, seed: int = 0) -> None:
        self.tracker = Tracker(readers(windows, cap), policy, seed, patterns=True, may_change=True)
        self.count = windows
        self.values: list[tuple[int, int]] = []

    def push(self, arrivals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Push tuples and return the window and value of each shed tuple."""
        first = len(self.values)
        self.values += arrivals
        windows, values = (np.array(column, np.int64) for column in zip(*arrivals, strict=True))
        rows = np.arange(first, first + len(arrivals))
        codes, seen = values.astype(np.uint64)[:, None], np.ones(len(arrivals), np.int64)
        shed = self.tracker.add_tuples(
            TupleBatch(windows, rows, rows * SECOND, codes, seen, np.ones(len(rows), np.int32)),
            np.ones(self.count, np.int64),
        )
        return [self.values[row] for row in shed.row]

    def pattern(self, row: int) -> str:
        """Return the pattern of a tuple, with the bit of the first window first."""
        table = self.tracker.table
        bits = int(table.memberships.pattern[np.flatnonzero(table.tuples.row == row)[0], 0])
        return "".join(str(bits >> window & 1) for window in range(self.count))

    def set_pattern_counts(self, pattern_tables: Sequence[Mapping[str, tuple[int, int]]]) -> None:
        """Set the results and tuples of each pattern."""
        table = self.tracker.table
        for window, pattern_table in enumerate(pattern_tables):
            for pattern, (results, tuples) in pattern_table.items():
                bits = sum(int(bit) << place for place, bit in enumerate(pattern))
                table.pattern_results[window, bits], table.pattern_tuples[window, bits] = results, tuples
        self.tracker.change_policy(ARRIVAL_ORDER)

    def priority(self, row: int) -> float:
        table = self.tracker.table
        index = np.flatnonzero(table.tuples.row == row)[0]
        start = table.ranking.start[table.readers.pool[table.tuples.window[index]]]
        return float(table.ranking.heap.worth[start + table.ranking.queues.position[table.links.queue[index]]])


def test_existence_patterns_of_figure_2() -> None:
    windows = Windows(ARRIVAL_ORDER)
    windows.push([(0, 4), (0, 1), (1, 3), (1, 1), (2, 3), (2, 2)])
    windows.push([(0, 5)])
    assert windows.pattern(6) == "100"
    windows.push([(2, 4)])
    assert windows.pattern(7) == "101"


def test_priorities_of_figure_3() -> None:
    windows = Windows(ARRIVAL_ORDER, cap=100)
    # One key per order of reaching three windows covers every pattern of every window.
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    windows.push([(window, key) for key, order in enumerate(orders) for window in order])
    windows.set_pattern_counts(FIGURE_3)
    patterns: list[set[str]] = [set(), set(), set()]
    for row, (window, _) in enumerate(windows.values):
        patterns[window].add(windows.pattern(row))
        assert windows.priority(row) == pytest.approx(PRIORITIES[window][windows.pattern(row)], abs=1e-12)
    assert patterns == [set(pattern_table) for pattern_table in FIGURE_3]


def test_tuples_are_shed_by_the_priorities_of_figure_3() -> None:
    windows = Windows(ARRIVAL_ORDER)
    windows.push([(1, 1), (2, 1), (2, 2), (1, 3), (0, 1), (0, 2), (0, 3), (0, 4)])  # 111, 101, 110, 100
    windows.set_pattern_counts(FIGURE_3)
    gone = windows.push([(0, key) for key in (91, 92, 93)])  # pattern 100, and younger than 4
    assert gone == [(0, 1), (0, 3), (0, 2)]
    assert windows.push([(0, 94)]) == [(0, 4)]


def test_patterns_of_figure_4() -> None:
    windows = Windows(ARRIVAL_ORDER)
    assert windows.push(FIGURE_4) == []
    rows = {name: FIGURE_4.index(arrival) for name, arrival in zip(
        ("t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"),
        ((0, 1), (0, 2), (0, 4), (0, 5), (1, 4), (1, 1), (1, 5), (1, 2)),
        strict=True,
    )}  # fmt: skip
    patterns = {name: windows.pattern(row) for name, row in rows.items()}
    assert patterns == {
        "t1": "100", "t2": "100", "t3": "110", "t4": "111", "t5": "010", "t6": "110", "t7": "011", "t8": "110",
    }  # fmt: skip
    assert windows.tracker.table.results.tolist() == [1.0]


def test_case_1_of_figure_4() -> None:
    windows = Windows(ARRIVAL_ORDER)
    windows.push(FIGURE_4)
    assert windows.push([(0, 9)]) == [(0, 5)], "t4 has given its result"
    windows = Windows(ARRIVAL_ORDER)
    windows.push(FIGURE_4)
    windows.set_pattern_counts(FIGURE_3)
    assert windows.push([(0, 8), (0, 9)]) == [(0, 5), (0, 4)], "after t4 goes t3: 110 promises less than 100"


@pytest.mark.parametrize("policy", [FREQUENCY, OUTPUT])
def test_value_based_policies_keep_t4_in_case_1(policy: int) -> None:
    windows = Windows(policy)
    windows.push(FIGURE_4)
    (gone,) = windows.push([(0, 9)])
    assert gone in {(0, 1), (0, 2), (0, 4)}, "one of t1, t2, t3, which they cannot tell apart"


def test_case_2_of_figure_4() -> None:
    lowest_010 = (FIGURE_3[0], {**FIGURE_3[1], "010": (1, 30)}, FIGURE_3[2])
    windows = Windows(ARRIVAL_ORDER)
    windows.push(FIGURE_4)
    windows.set_pattern_counts(lowest_010)
    assert windows.push([(1, 9)]) == [(1, 4)], "t5"
    windows = Windows(ARRIVAL_ORDER)
    windows.push(FIGURE_4)
    windows.set_pattern_counts(FIGURE_3)
    assert windows.push([(1, 9)]) == [(1, 1)], "with the table of figure 3 it would be t6: 110 has 0.1, 010 has 0.4"


def test_results_are_credited_to_every_tuple_in_them() -> None:
    windows = Windows(ARRIVAL_ORDER, cap=100)
    windows.push([(0, 7), (0, 7), (1, 7), (2, 7), (2, 7)])
    table = windows.tracker.table
    assert table.results.tolist() == [4.0]
    # The first two of W1 found no match on arrival and each is in two results; that of W2 matched W1 and is in four.
    assert table.pattern_results[0, 0b001] == 4
    assert table.pattern_tuples[0, 0b001] == 2
    assert table.pattern_results[1, 0b011] == 4
    assert table.pattern_results[2, 0b111] == 4


def test_a_pattern_bit_is_cleared_with_the_last_tuple_of_its_key() -> None:
    windows = Windows(ARRIVAL_ORDER, cap=100)
    windows.push([(0, 7), (0, 7), (1, 7)])
    assert windows.pattern(2) == "110"
    table = windows.tracker.table
    passed = Windows(ARRIVAL_ORDER, cap=100)
    passed.push([(0, 7), *[(2, 1000 + number) for number in range(100)], (1, 7)])
    assert passed.pattern(101) == "010", "101 seconds later W1 has nothing of the key"
    assert table.counts[int(table.memberships.key[0, 0])].tolist() == [2, 1, 0]


def test_fifo_drops_the_oldest() -> None:
    windows = Windows(FIFO)
    assert windows.push([(0, key) for key in range(7)]) == [(0, 0), (0, 1), (0, 2)]


def test_frequency_drops_the_rarest_key_of_all_windows() -> None:
    windows = Windows(FREQUENCY)
    windows.push([(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 4)])
    assert windows.push([(0, 9)]) == [(0, 3)]


def test_frequency_own_drops_the_rarest_key_of_the_window() -> None:
    windows = Windows(FREQUENCY_OWN)
    windows.push([(0, 1), (0, 1), (0, 3), (0, 3), (1, 3)])
    assert windows.push([(0, 9)]) == [(0, 1)]
    windows = Windows(FREQUENCY_OWN)
    windows.push([(0, 1), (0, 3), (0, 3), (0, 3), (1, 1), (1, 1), (2, 1)])
    assert windows.push([(0, 9)]) == [(0, 1)]


def test_output_drops_the_tuple_with_fewest_results() -> None:
    windows = Windows(OUTPUT, windows=2)
    windows.push([(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 3), (1, 4)])
    assert windows.push([(0, 9)]) == [(0, 2)]


def test_random_drops_every_tuple_equally_often() -> None:
    gone = [0] * 4
    for seed in range(400):
        windows = Windows(RANDOM, seed=seed)
        windows.push([(0, key) for key in range(4)])
        ((_, value),) = windows.push([(0, 9)])
        gone[value] += 1
    assert min(gone) > 70
    assert max(gone) < 130


def test_expired_tuples_are_removed_before_any_is_shed() -> None:
    windows = Windows(FREQUENCY)
    windows.push([(0, 1), (0, 2), (0, 3), (0, 4)])
    windows.push([(1 + second % 2, 50) for second in range(102)])
    assert windows.push([(0, 8), (0, 9)]) == []


def test_tuples_held_for_a_silent_stream_are_shed_first() -> None:
    windows = Windows(FREQUENCY)
    windows.push([(0, 1), (0, 1), (0, 1), (0, 4)])
    windows.push([(1, 50)] * 102)  # W3 is behind: its tuples may still match those of W1
    assert windows.push([(0, 8), (0, 9)]) == [(0, 1), (0, 1)]


@pytest.mark.parametrize("policy", [ARRIVAL_ORDER, FREQUENCY, FREQUENCY_OWN, OUTPUT, RANDOM, FIFO])
def test_queues_and_chains_stay_consistent(policy: int) -> None:
    rng = np.random.default_rng(policy)
    windows = Windows(policy, cap=40)
    for _ in range(30):
        windows.push(list(zip(rng.integers(0, 3, 200).tolist(), rng.integers(0, 60, 200).tolist(), strict=True)))
        table = windows.tracker.table
        tuples, key = table.tuples, table.memberships.key[:, 0]
        indexes = np.flatnonzero(tuples.row[: table.counters[USED_TUPLES]] >= 0)
        assert len(indexes) == table.used_units.sum()
        assert table.used_units.max() <= 40
        counted = np.zeros_like(table.counts)
        inside = indexes[key[indexes] >= 0]
        np.add.at(counted, (key[inside], tuples.window[inside]), 1)
        used = np.unique(key[inside])
        assert (counted[used] == table.counts[used]).all()
        for pool in range(3 if policy <= OUTPUT else 0):
            own = inside[tuples.window[inside] == pool]
            queues = _in_heap(table, pool) if policy == ARRIVAL_ORDER else _by_level(table, pool, policy)
            assert sorted(queues) == np.unique(table.links.queue[own]).tolist()
        assert (table.readers.key_table != NONE).all()


def _in_heap(table: TupleTable, pool: int) -> list[int]:
    start, size = table.ranking.start[pool], table.ranking.size[pool]
    entries: Any = table.ranking.heap[start : start + size]
    assert (table.ranking.queues.position[entries.queue] == np.arange(size)).all()
    assert (entries.worth[(np.arange(1, size) - 1) // 2] <= entries.worth[1:]).all()
    return [int(queue) for queue in entries.queue]


def _by_level(table: TupleTable, pool: int, policy: int) -> list[int]:
    """Return the queues of all levels; check that none is above its priority and that bits mark the non-empty levels."""
    queues, ranking = list[int](), table.ranking
    for level in range(LEVELS):
        queue, before = int(ranking.levels.first[pool * LEVELS + level]), NONE
        assert (queue >= 0) == bool(int(ranking.nonempty[pool * WORDS + level // 64]) >> level % 64 & 1)
        while queue >= 0:
            key = int(ranking.terms.term[queue, 0]) >> ranking.term_bits
            worth = {
                FREQUENCY: table.keys.total[key],
                FREQUENCY_OWN: table.counts[key, pool],
                OUTPUT: table.key_results[key],
            }[policy]
            assert ranking.queues.position[queue] == level <= level_of(float(worth))
            assert ranking.queues.before[queue] == before
            queues.append(queue)
            queue, before = int(ranking.queues.after[queue]), queue
        assert ranking.levels.last[pool * LEVELS + level] == before
    return queues


def test_levels_are_exact_for_small_priorities_and_monotonic() -> None:
    worths = [*range(1000), *(2.0**power * share for power in range(10, 60) for share in (1, 1.1, 1.5, 1.9))]
    levels = [level_of(float(int(worth))) for worth in worths]
    assert levels[:128] == list(range(128))
    assert levels == sorted(levels)
    assert max(levels) < LEVELS
    assert level_of(1000.0) < level_of(1016.0)


@pytest.mark.parametrize("policy", [FREQUENCY, FREQUENCY_OWN, OUTPUT])
def test_ties_between_keys_shed_the_oldest(policy: int) -> None:
    windows = Windows(policy)
    assert windows.push([(0, key) for key in range(7)]) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("policy", [ARRIVAL_ORDER, FREQUENCY, OUTPUT, RANDOM, FIFO])
@pytest.mark.parametrize("then", [ARRIVAL_ORDER, FREQUENCY, RANDOM, FIFO])
def test_tracker_state_survives_every_change_of_policy(policy: int, then: int) -> None:
    rng = np.random.default_rng(policy)
    windows = Windows(policy, cap=40)
    arrivals = list(zip(rng.integers(0, 3, 400).tolist(), rng.integers(0, 60, 400).tolist(), strict=True))
    windows.push(arrivals[:300])
    windows.tracker.change_policy(then)
    again = Windows(then, cap=40)
    again.tracker.restore(windows.tracker.to_arrays())
    again.values = list(windows.values)
    assert again.push(arrivals[300:]) == windows.push(arrivals[300:])


@given(st.lists(st.lists(st.integers(0, 9)), max_size=5))
def test_streams_are_merged_by_time_then_declared_order(parts: list[list[int]]) -> None:
    times = np.array([time for part in parts for time in sorted(part)], np.int64)
    starts = np.cumsum([0, *map(len, parts)])
    rows = np.arange(len(times))
    whole = TupleBatch(rows, rows, times, rows[:, None].astype(np.uint64), rows, rows.astype(np.int32))
    columns: Any = (np.empty_like(values) for values in whole)
    merged = TupleBatch(*columns)
    interleave(whole, starts, merged)
    order = np.argsort(times, kind="stable")
    pairs: Any = zip(merged, whole, strict=True)
    for values, expected in pairs:
        assert values.tolist() == expected[order].tolist()


def selector(cap: int = 100) -> PolicySelector:
    """Return `auto` for a join of two windows, each with its own cap."""
    span = 10_000 * SECOND
    both = tuple(WindowReader(name, "q", name, 0, span, 0, slot, ()) for slot, name in enumerate("ab"))
    layout = TableLayout(("a", "b"), both, (KeyTable("q", covers_join=True),), ((0, span, 2), (1, span, 1)), (0, 0))
    return PolicySelector(layout, ShedCaps((0, 1), (cap, cap), cap), Shedding(max_tuples=cap))


def begun(keys: Sequence[int]) -> int:
    """Return the first policy of `auto` when windows hold tuples of these keys, alternating between windows."""
    policy_selector, count = selector(), len(keys)
    rows, codes = np.arange(count), np.array(keys, np.uint64)[:, None]
    policy_selector.start(
        [TupleBatch(rows % 2, rows, rows * SECOND, codes, np.ones(count, np.int64), np.ones(count, np.int32))],
        np.ones(2, np.int64),
    )
    return policy_selector.policy


def test_auto_starts_with_frequency_without_evidence() -> None:
    assert begun(range(200)) == FREQUENCY


def test_auto_starts_with_fifo_when_partners_arrive_soon() -> None:
    """Every policy keeps all these pairs in half the memory; few such pairs are no evidence."""
    assert begun([row // 2 for row in range(200)]) == FIFO
    assert begun([row // 2 if row < 60 else row for row in range(200)]) == FREQUENCY


def test_auto_starts_with_the_policy_of_highest_recall() -> None:
    """One key is frequent in one window and arrives late in the other."""
    late = [0 if (row < 40 and row % 2 == 0) or (row >= 160 and row % 2) else row for row in range(200)]
    assert begun(late) == FREQUENCY


@pytest.mark.parametrize(
    ("own", "other", "then"),
    [(0, 1, FIFO), (1, 3, FIFO), (0, 2, OUTPUT), (100, 110, FIFO), (100, 120, OUTPUT), (10**6, 1.01e6, FIFO), (10**6, 1.03e6, OUTPUT)],
)  # fmt: skip
def test_auto_switches_to_a_significantly_better_policy(own: float, other: float, then: int) -> None:
    policy_selector = selector()
    for policy, tracker in policy_selector.trackers.items():
        tracker.table.results[0] = other if policy == OUTPUT else own
    assert (policy_selector.reevaluate() is None) == (then == FIFO)
    assert policy_selector.policy == then
