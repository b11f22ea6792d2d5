"""The sample of a join counts the results of an unshed join exactly, or estimates them, or says that it cannot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dovetail.engine.kernels.join_sample import BUCKETS, HOT, ROWS, followed
from dovetail.engine.kernels.tuple_table import TupleBatch
from dovetail.engine.shedding import join_sample
from dovetail.engine.shedding.join_sample import JoinSample, SampleInput
from dovetail.engine.shedding.layout import WindowReader
from dovetail.errors import StateError
from dovetail.stats.recall import LossEstimate

Tuples = list[tuple[int, int, int]]
"""Window, event time and key."""


def inputs(spans: Sequence[int], windows: Sequence[int], lateness: int) -> tuple[SampleInput, ...]:
    """Return the inputs of a join; those with the same window are readers of it."""
    positions = [list(windows[:number]).count(window) for number, window in enumerate(windows)]
    return tuple(
        SampleInput(WindowReader(f"s{window}", "j", f"i{number}", 0, span, 0, number, ()), position, window, lateness)
        for number, (span, window, position) in enumerate(zip(spans, windows, positions, strict=True))
    )


def incoming(tuples: Tuples, readers: int) -> TupleBatch:
    window, ts, key = (np.array(column, np.int64) for column in zip(*tuples, strict=True))
    codes = np.repeat(key.astype(np.uint64)[:, None], readers, axis=1)
    return TupleBatch(
        window,
        np.arange(len(tuples)),
        ts,
        codes,
        np.full(len(tuples), (1 << readers) - 1),
        np.ones(len(tuples), np.int32),
    )


def joined(tuples: Tuples, spans: Sequence[int], windows: Sequence[int]) -> int:
    """Count the results by definition."""
    count = 0
    by_input = [[entry for entry in tuples if entry[0] == window] for window in windows]
    for combination in itertools.product(*by_input):
        latest = max(ts for _, ts, _ in combination)
        same_key = len({key for _, _, key in combination}) == 1
        count += same_key and all(ts >= latest - span for (_, ts, _), span in zip(combination, spans, strict=True))
    return count


def joined_fast(tuples: Tuples, span: int) -> int:
    """Count the results of two inputs with equal windows."""
    left, right = ([entry for entry in tuples if entry[0] == window] for window in (0, 1))
    return sum(key == other and abs(ts - other_ts) <= span for _, ts, key in left for _, other_ts, other in right)


@pytest.mark.parametrize("seed", range(30))
def test_all_lost_results_are_counted_while_all_keys_fit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_sample, "MIN_LOG", 5)
    rng = np.random.default_rng(seed)
    windows = ((0, 1), (0, 1, 2), (0, 0), (0, 1, 1))[seed % 4]
    spans, lateness = [int(span) for span in rng.integers(1, 12, len(windows))], 4
    times = np.sort(rng.integers(0, 40, 60))
    late = [int(ts) - int(rng.integers(0, lateness + 1)) for ts in times]
    tuples = [(int(rng.integers(0, max(windows) + 1)), ts, int(rng.integers(0, 3))) for ts in late]
    sample = JoinSample(inputs(spans, windows, lateness), 1 << 16, seed)
    batches = [tuples[first : first + 7] for first in range(0, len(tuples), 7)]
    sample.begin([incoming(batches[0], 2)])
    max_event_times: dict[str, int] = {}
    for number, batch in enumerate(batches):
        if number:
            sample.add_tuples(incoming(batch, 2))
        for window, ts, _ in batch:
            max_event_times[f"s{window}"] = max(max_event_times.get(f"s{window}", ts), ts)
        sample.advance(max_event_times)
        arrived = [entry for earlier in batches[: number + 1] for entry in earlier]
        expected = joined(arrived, spans, windows) - joined(batches[0], spans, windows)
        assert sample.estimate(max_event_times) == LossEstimate(expected)
    again = JoinSample(sample.inputs, 1 << 16, seed)
    again.restore(sample.to_arrays())
    assert again.estimate(max_event_times) == sample.estimate(max_event_times)
    assert all((again.to_arrays()[name] == array).all() for name, array in sample.to_arrays().items())


def test_given_results_are_not_lost() -> None:
    sample = JoinSample(inputs((9, 9), (0, 1), 0), 200, 0)
    sample.add_tuples(incoming([(0, 1, 7), (1, 2, 7), (1, 3, 7)], 1))
    sample.count_given(np.array([7], np.uint64))
    assert sample.estimate({"s0": 3, "s1": 3}) == LossEstimate(1.0)


@pytest.mark.parametrize(("keys", "known"), [(500, True), (3, False)])
def test_a_loss_that_few_keys_decide_is_unknown(keys: int, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setattr(join_sample, "MIN_LOG", 100)
    rng, sample = np.random.default_rng(0), JoinSample(inputs((4000, 4000), (0, 1), 0), 200, 0)
    sample.begin([incoming([(0, 0, 1 << 40)], 1)])
    all_tuples: Tuples = []
    for batch in range(20):
        times = np.sort(rng.integers(1000 * batch, 1000 * (batch + 1), 200))
        tuples = [(int(rng.integers(0, 2)), int(ts), int(rng.integers(0, keys))) for ts in times]
        sample.add_tuples(incoming(tuples, 1))
        sample.advance({"s0": int(times[-1]), "s1": int(times[-1])})
        all_tuples += tuples
    assert sample.state.level > 0
    assert len(sample.state.tuples) <= 200
    loss = sample.estimate({"s0": 20_000, "s1": 20_000})
    assert isinstance(loss, LossEstimate) == known
    if isinstance(loss, LossEstimate):
        expected = joined_fast(all_tuples, 4000)
        assert loss.middle - loss.below <= expected <= loss.middle + loss.above


def arrive(sample: JoinSample, tuples: Tuples, per_batch: int) -> None:
    """Push tuples in batches, in order of event time."""
    for first in range(0, len(tuples), per_batch):
        batch = tuples[first : first + per_batch]
        sample.add_tuples(incoming(batch, 1))
        sample.advance({"s0": batch[-1][1], "s1": batch[-1][1]})


@pytest.mark.parametrize("seed", range(5))
def test_results_of_hot_keys_have_bounds_when_event_times_are_rounded(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_sample, "MIN_LOG", 50)
    rng, sample = np.random.default_rng(seed), JoinSample(inputs((40_000, 40_000), (0, 1), 0), 400, 0)
    sample.begin([incoming([(side, 0, key) for side in (0, 1) for key in (0, 1, 2) for _ in range(20)], 1)])
    times = 50_000 + np.sort(rng.integers(0, 300_000, 6000))
    tuples = [(int(rng.integers(0, 2)), int(ts), int(rng.integers(0, 3))) for ts in times]
    arrive(sample, tuples, 100)
    assert sample.state.grain > 1
    assert len(sample.state.tuples) <= 400
    loss = sample.estimate({"s0": tuples[-1][1], "s1": tuples[-1][1]})
    expected = joined_fast(tuples, 40_000)
    assert isinstance(loss, LossEstimate)
    assert loss.middle - loss.below <= expected <= loss.middle + loss.above
    assert loss.below + loss.above < 0.2 * expected
    again = JoinSample(sample.inputs, 400, 0)
    again.restore(sample.to_arrays())
    assert again.estimate({"s0": 1, "s1": 1}) == sample.estimate({"s0": 1, "s1": 1})


def test_a_key_that_is_hot_but_not_followed_makes_the_loss_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_sample, "MIN_LOG", 50)
    rng = np.random.default_rng(0)
    for hot_key in (False, True):
        sample = JoinSample(inputs((4000, 4000), (0, 1), 0), 300, 0)
        sample.begin([incoming([(0, 0, 1 << 40)], 1)])
        times = np.sort(rng.integers(10_000, 40_000, 10_000))
        arrive(sample, [(int(rng.integers(0, 2)), int(ts), int(rng.integers(0, 2000))) for ts in times], 200)
        assert sample.state.level > 0
        codes = np.arange(2000, dtype=np.uint64)
        sample.count_given(np.repeat(codes, 5))
        not_followed = codes[~followed(codes, np.uint64(0), sample.hot, sample.state.level)][:1]
        sample.count_given(np.repeat(not_followed, 5000 * hot_key))
        loss = sample.estimate({"s0": 40_000, "s1": 40_000})
        assert isinstance(loss, LossEstimate) != hot_key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inputs", np.array([0, 2], np.int16)),
        ("inputs", np.array([0, -1], np.int16)),
        ("codes", np.zeros(1, np.uint64)),
        ("ts", np.array([5, 4])),
        ("ts", np.array([5.0, 6.0])),
        ("hot", np.array([2, 1], np.uint64)),
        ("whole", np.zeros((3, 3))),
        ("kept", np.full((ROWS, BUCKETS), np.nan)),
        ("numbers", np.array([3, 0, 0, 0, 1])),
        ("numbers", np.array([2, 0, 0, HOT + 2, 1])),
        ("numbers", np.array([2, 0, 0, 0, 0])),
        ("weights", np.zeros(2, np.int32)),
    ],
)
def test_a_damaged_sample_is_refused(name: str, value: Any) -> None:
    sample = JoinSample(inputs((9, 9), (0, 1), 0), 200, 0)
    good = sample.to_arrays() | {
        "ts": np.array([4, 5]),
        "codes": np.zeros(2, np.uint64),
        "inputs": np.array([0, 1], np.int16),
        "weights": np.ones(2, np.int32),
        "numbers": np.array([2, 0, 0, 0, 1]),
    }
    sample.restore(good)
    with pytest.raises(StateError, match="the sample of a join"):
        sample.restore({**good, name: value})
