"""The driver-policy experiment: data match the paper, results are checked, differences must be significant."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from experiments import valsomatzis, valsomatzis_plots, valsomatzis_report
from experiments.__main__ import app
from experiments.points import Points
from experiments.significance import interval
from experiments.valsomatzis import (
    AXIS,
    DATASETS,
    PERIODS,
    POLICIES,
    STREAMS,
    Grid,
    Point,
    arrival_times,
    drawn_batches,
    run,
    summary,
)
from experiments.valsomatzis_claims import claims
from experiments.valsomatzis_measured import CELLS, counted, leaders, printed, values

TINY = Grid(keys=4, compiled_keys=4, repeats=1, counted=1, batches=(5, 5), pieces=4)


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Point, dict[str, Any]], Path]:
    out = tmp_path_factory.mktemp("valsomatzis")
    return run(quiet(), Points(out / "points", asdict(TINY)), TINY), out


def test_the_grid_matches_the_paper() -> None:
    points = list(Grid().points())
    assert {(point.dataset, point.period) for point in points} == {(d, p) for d in DATASETS for p in PERIODS}
    assert len(points) == 10 * len(CELLS)
    assert (Grid().length, Grid().batches) == (10_000_000, (100, 10))


# -- data ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", DATASETS)
def test_streams_meet_table_2(dataset: str) -> None:
    grid = Grid(keys=20, batches=(10, 5))
    batches = drawn_batches(Point(dataset, "0.1M", 0), grid)
    keys = [np.concatenate([batch[stream]["k"].to_numpy() for batch in batches]) for stream in STREAMS]
    sizes = [len(each) / grid.keys for each in keys]
    assert sizes == list(DATASETS[dataset].sizes)
    shares = [np.bincount(each[each < grid.keys], minlength=grid.keys) for each in keys]
    pairs = {
        (first, second): int(shares[first] @ shares[second]) for first in range(3) for second in range(first + 1, 3)
    }
    # At full size there are 1,000 keys; apart from rounding, pair selectivities do not depend on their number.
    scale = 1000 / grid.keys
    found = {pair: count / (len(keys[pair[0]]) * len(keys[pair[1]])) / scale for pair, count in pairs.items()}
    steady = dataset in ("I", "II", "III", "IV")
    wanted = (5e-9, 1e-6, 5e-6) if steady else (1e-5, 1e-5, 1e-5)
    assert found == pytest.approx(dict(zip(((0, 1), (0, 2), (1, 2)), wanted, strict=True)))
    results = int(np.sum(shares[0] * shares[1] * shares[2]))
    assert [results / len(each) for each in keys] == ([5, 5, 5] if steady else [100, 10, 1])  # σ_S
    unmatched = np.concatenate([each[each >= grid.keys] for each in keys])
    assert len(np.unique(unmatched)) == len(unmatched)


def test_batches_are_cut_by_time_and_reproducible() -> None:
    point = Point("IV", "1M", 3)
    batches = drawn_batches(point, TINY)
    for number, batch in enumerate(batches):
        for table in batch.values():
            times = table["ts"].cast(pa.int64()).to_numpy()
            assert (np.diff(times) >= 0).all()
            assert ((times >= number * TINY.length // 5) & (times < (number + 1) * TINY.length // 5)).all()
    assert batches == drawn_batches(point, TINY)
    assert batches != drawn_batches(Point("IV", "1M", 4), TINY)


@pytest.mark.parametrize(
    ("pattern", "shares"),
    [
        ("uniform", [1 / 8] * 8),
        ("fast-slow", [2 / 8, 1 / 12, 1 / 12, 1 / 12, 2 / 8, 1 / 12, 1 / 12, 1 / 12]),
        ("slow-fast", [1 / 12, 1 / 12, 1 / 12, 2 / 8, 1 / 12, 1 / 12, 1 / 12, 2 / 8]),
        ("20-80", [0.008, 0.032, 0.032, 0.128, 0.032, 0.128, 0.128, 0.512]),
        ("80-20", [0.512, 0.128, 0.128, 0.032, 0.128, 0.032, 0.032, 0.008]),
    ],
)
def test_arrivals_follow_their_pattern(pattern: str, shares: list[float]) -> None:
    times = arrival_times(pattern, 100_000, 800_000, np.random.default_rng(1))
    assert np.bincount(times // 100_000) / 100_000 == pytest.approx(shares, abs=1e-4)


def test_the_sinusoid_has_two_periods() -> None:
    times = arrival_times("sinusoid", 100_000, 800_000, np.random.default_rng(1))
    quarters = np.bincount(times // 200_000) / 25_000
    assert quarters == pytest.approx([1 + 1 / np.pi, 1 - 1 / np.pi] * 2, abs=1e-3)


# -- runs ---------------------------------------------------------------------------------------------------------------------------


def test_every_policy_gives_all_results(tiny: Any) -> None:
    results, _ = tiny
    for point, result in results.items():
        assert list(result) == ["seconds", "whole", "work", "compiled", "compiled work"], point
        for unit in result.values():
            assert list(unit["policies"]) == list(POLICIES)
            kept = {policy: unit["counts"][policy]["results"] for policy in POLICIES}
            assert len(set(kept.values())) == 1
            for policy in POLICIES:
                counts = unit["counts"][policy]
                assert sum(counts[stream] for stream in STREAMS) == counts["results"]
                # A tuple probes once, and so does an intermediate one.
                assert counts["matches"] - counts["results"] <= counts["probes"]


def test_a_wrong_number_of_results_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = drawn_batches(Point("V", "1M", 0), TINY)
    monkeypatch.setattr(valsomatzis, "drawn_batches", lambda *_: batches[1:])
    valsomatzis._warm_up()
    with pytest.raises(AssertionError, match=r"timestamp gave .* results; expected 4,000"):
        valsomatzis.run_point(Point("V", "1M", 0, compiled=True), TINY)
    with pytest.raises(AssertionError, match=r"timestamp gave .* results; expected 4,000"):
        valsomatzis.run_point(Point("V", "1M", 0), TINY)


def test_counted_work_is_reproducible(tiny: Any) -> None:
    results, _ = tiny
    point = Point("VI", "0.1M", 0)
    again = valsomatzis.run_point(point, TINY)
    assert again["work"]["policies"] == results[point]["work"]["policies"]
    assert again["seconds"]["counts"] == results[point]["seconds"]["counts"] == results[point]["work"]["counts"]


def test_a_run_resumes_where_it_stopped(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results, out = tiny
    computed: list[Point] = []

    def noted(point: Point, _: Grid) -> dict[str, Any]:
        computed.append(point)
        return dict(results[point])

    monkeypatch.setattr(valsomatzis, "run_point", noted)
    (out / "points" / "III-1M-0.json").unlink()
    assert run(quiet(), Points(out / "points", asdict(TINY)), TINY) == results
    assert computed == [Point("III", "1M", 0)]


# -- summaries ----------------------------------------------------------------------------------------------------------------------


def test_a_summary_omits_the_first_fifth_and_divides_by_the_timestamp_policy() -> None:
    slow = [[(2.0, 4), (4.0, 10)]] * 4
    traces = {"timestamp": [[(100.0, 1)], *slow], "other": [[(1.0, 1)], *([[(0.5, 6), (1.0, 10), (2.0, 10)]] * 4)]}
    found = summary(traces)
    assert [found["timestamp"][name] for name in ("total", "to60", "to100", "half", "own70")] == [1, 1, 1, 0.4, 0.4]
    assert [found["other"][name] for name in ("total", "to60", "to100", "half", "own70")] == [0.5, 0.125, 0.25, 1, 1]
    assert (found["other"]["cost"], found["other"]["totals"]) == (8, [0.5, 0.5])
    assert found["other"]["curves"][0][int(np.searchsorted(AXIS, 0.2))] == 0.6


def test_a_batch_without_results_has_no_fraction() -> None:
    found = summary({"timestamp": [[(1.0, 0)], [(1.0, 0)], [(1.0, 5)], [(1.0, 0)], [(1.0, 5)]]})
    assert (found["timestamp"]["total"], found["timestamp"]["half"]) == (1, 0)


def test_an_interval_is_a_sign_test() -> None:
    assert interval(np.arange(10.0)) == (4.5, 1, 8)
    assert interval(np.arange(5.0)) == (2, 0, 4)
    assert interval(np.arange(6.0)) == (2.5, 0, 5)
    assert interval(np.arange(20.0)) == (9.5, 5, 14)
    best = np.ones(10)
    twice = np.array([0.9] * 2 + [1.5] * 8)
    once = np.array([0.9] + [1.5] * 9)
    assert leaders({"once": once, "best": best, "twice": twice}) == ["best", "twice"]


# -- the report ---------------------------------------------------------------------------------------------------------------------


def test_the_papers_tables_are_complete() -> None:
    tables = printed()
    for field in ("total", "half"):
        assert set(tables[field]) == set(POLICIES) - {"declared", "reversed"}
        for policy, by_dataset in tables[field].items():
            assert list(by_dataset) == [*DATASETS, "average"]
            for place in range(2):
                known = [row[place] for name, row in by_dataset.items() if name != "average"]
                numbers = [number for number in known if number is not None]
                assert len(numbers) == (2 if policy == "consumption-rate" else 6)
                assert np.mean(numbers) == pytest.approx(by_dataset["average"][place], abs=0.006)


def test_the_report_has_tables_and_statements(tiny: Any) -> None:
    results, out = tiny
    text = valsomatzis_report.write(results, TINY, out).read_text(encoding="utf-8")
    for claim in claims(results):
        assert f"| {claim.place} | {claim.says} | {claim.about} | {claim.measured} | {claim.verdict} |" in text
        assert claim.because
    places = {"table 4", "table 5", "I-III", "IV", "V", "VI", "discussion"}
    assert {claim.place.split(",")[0] for claim in claims(results)} == places
    assert {claim.place.split(", ")[-1] for claim in claims(results)} == {"engine", "tuple at a time"}
    assert "(0.985)" in text  # round-robin, dataset I, 0.1M in table 4
    assert all(len(line) < 100 for line in text.splitlines() if not line.startswith(("|", "!")))
    with (out / "summary.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(results) * len(POLICIES)
    valsomatzis_report.show(quiet(), results)


def test_numbers_are_by_repeat(tiny: Any) -> None:
    results, _ = tiny
    for cell in CELLS:
        assert list(values(results, cell, "timestamp", "total")) == [1]
        assert len(values(results, cell, "declared", "half", "work")) == 1
        assert (counted(results, cell, "timestamp", "probes") > 0).all()


@pytest.mark.slow
def test_the_quick_run_ends_with_a_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = CliRunner().invoke(app, ["valsomatzis", "--quick", "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert f"Report: {tmp_path / 'report.md'}" in answer.output
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Whose tuples come first")
    for name in (
        "arrivals",
        "totals",
        "steady",
        "bursty",
        "work",
        "compiled-totals",
        "compiled-steady",
        "compiled-bursty",
    ):
        assert f"(valsomatzis-{name}.png)" in text
        assert (tmp_path / f"valsomatzis-{name}.png").read_bytes().startswith(b"\x89PNG")
    valsomatzis_plots.require()
