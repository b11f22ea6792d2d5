"""The paper's program: results of every policy against the engine, the order in which it takes tuples, and what it counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.valsomatzis import POLICIES, Grid, Point, drawn_batches, drive, run_compiled
from experiments.valsomatzis import _counted as counted_pieces
from experiments.valsomatzis_compiled import COUNTED, MJoin, buffers

GRID = Grid(keys=4, repeats=1, counted=1, batches=(5, 5), pieces=4)


def batch(**streams: list[tuple[int, int]]) -> Any:
    """A batch of (time, key)."""
    columns = [list(zip(*rows, strict=True)) or [(), ()] for rows in streams.values()]
    times, keys = zip(*columns, strict=True)
    return tuple(np.array(each, np.int64) for each in times), tuple(np.array(each, np.int64) for each in keys)


@pytest.mark.parametrize("dataset", ["III", "VI"])
def test_it_counts_what_the_engine_counts(dataset: str) -> None:
    batches = drawn_batches(Point(dataset, "1M", 0), GRID)
    engine = drive(batches, counted_pieces, GRID.pieces, 0)
    expected = sum(trace[-1][1] for trace in engine.traces["timestamp"])
    found = run_compiled(batches, GRID, 0, expected)["compiled"]["counts"]
    for policy in ("timestamp", "round-robin", "declared", "reversed", "output-rate"):
        for name in ("probes", "matches", "results", "s1", "s2", "s3"):
            assert found[policy][name] == engine.counts[policy][name], (policy, name)


@pytest.mark.parametrize(
    ("policy", "drivers"),
    [
        # Who comes last finds the result; all tuples have one key.
        ("timestamp", {"s1": 1, "s2": 0, "s3": 1}),
        ("round-robin", {"s1": 1, "s2": 0, "s3": 1}),
        ("declared", {"s1": 0, "s2": 0, "s3": 2}),
        ("reversed", {"s1": 2, "s2": 0, "s3": 0}),
        ("consumption-rate", {"s1": 0, "s2": 0, "s3": 2}),
        ("initial-output-size", {"s1": 0, "s2": 0, "s3": 2}),
    ],
)
def test_policies_take_tuples_in_their_order(policy: str, drivers: dict[str, int]) -> None:
    join = MJoin(policy, [2, 1, 1], 16)
    join.run(batch(s1=[(1, 7), (9, 7)], s2=[(2, 7)], s3=[(3, 7)]), 100)
    assert dict(zip(COUNTED, join.counts.tolist(), strict=True)) | drivers == dict(
        zip(COUNTED, join.counts.tolist(), strict=True)
    )
    assert join.counts[3] == 2


def test_the_initial_output_size_takes_the_buffer_with_most_results_first() -> None:
    first = batch(s1=[(1, 1)] * 2, s2=[(1, 1)] * 4, s3=[(1, 1)] * 8)
    later = batch(s1=[(2, 1)] * 3, s2=[(2, 1)] * 5, s3=[(2, 1)] * 9)
    join = MJoin("initial-output-size", [100, 100, 100], 16)
    join.run(first, 100)
    before = join.counts.copy()
    join.run(later, 100)  # 3·4·8 for s1; then 5·5·8 for s2 against 9·5·4 for s3
    assert (join.counts - before)[4:].tolist() == [3 * 4 * 8, 5 * 5 * 8, 9 * 5 * 9]


@pytest.mark.parametrize("policy", POLICIES)
def test_pieces_change_nothing(policy: str) -> None:
    batches = [buffers(each) for each in drawn_batches(Point("VI", "1M", 0), GRID)]
    sizes = [sum(len(keys[stream]) for _, keys in batches) for stream in range(3)]
    counts = []
    for rows in (7, 10**9):
        join = MJoin(policy, sizes, 16)
        traces = [join.run(each, rows) for each in batches]
        counts.append(join.counts.tolist())
        assert all(trace == sorted(trace, key=lambda entry: entry[2]) for trace in traces)
        assert sum(trace[-1][2] for trace in traces) == join.counts[3] == 4 * 1000
    assert counts[0] == counts[1]
