"""The probe-order experiment: runs resume, reports cite every figure, unknown papers are refused."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dovetail.errors import ConfigError
from experiments import PAPERS, raghavan, raghavan_claims, raghavan_plots, raghavan_report, reproduce
from experiments.__main__ import app
from experiments.points import Points
from experiments.raghavan import ACYCLIC, METHODS, SHAPES, Grid, Point, random_graph, run

TINY = Grid(most=6, runs=6, range_counts=(4,), range_runs=4)


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Point, dict[str, Any]], Path]:
    out = tmp_path_factory.mktemp("raghavan")
    return run(quiet(), Points(out / "points", asdict(TINY)), TINY), out


def test_the_grid_matches_the_paper() -> None:
    points = [point for point in Grid().points() if point.is_papers]
    for shape in SHAPES:
        assert sum(point.runs for point in points if point.shape == shape) == 9000
    assert {point.count for point in points} == set(range(3, 21))


@pytest.mark.parametrize("shape", SHAPES)
def test_graphs_have_their_shape_and_are_reproducible(shape: str) -> None:
    for kind, (low, high) in raghavan.RANGES.items():
        point = Point(shape, 7, 1, kind)
        graph = random_graph(point, random.Random(5))
        assert graph.shape == shape or (shape == "acyclic" and graph.shape in ACYCLIC)
        assert graph == random_graph(point, random.Random(5))
        assert all(low <= value <= high for value in graph.selectivities.values())
        assert all(1 <= rate <= 100 for rate in graph.rates.values())


def test_a_run_resumes_where_it_stopped(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results, out = tiny
    points = Points(out / "points", asdict(TINY))
    computed = []

    def compute(point: Point, seed: int) -> Mapping[str, Any]:
        computed.append(point)
        return {**results[point], "seed": seed}

    monkeypatch.setattr(raghavan, "run_point", compute)
    assert run(quiet(), points, TINY) == results
    assert computed == []
    first = next(TINY.points())
    path = out / "points" / f"{first.name}.json"
    kept = path.read_text()
    path.write_text(kept[: len(kept) // 2])  # as after a disk crash: not valid JSON
    assert run(quiet(), points, TINY)[first]["seed"] == TINY.seed
    assert computed == [first]
    path.write_text(kept)


def test_points_of_another_grid_are_not_used(tmp_path: Path) -> None:
    Points(tmp_path, {"runs": 1}).write("point", {"value": 1})
    assert Points(tmp_path, {"runs": 1}).read("point") == {"value": 1}
    assert Points(tmp_path, {"runs": 2}).read("point") is None
    assert Points(tmp_path, {"runs": 1}).read("other") is None
    assert [path.name for path in tmp_path.iterdir()] == ["point.json"]


def test_results_agree_with_proven_optimality(tiny: Any) -> None:
    results, _ = tiny
    for point, result in results.items():
        for method in METHODS:
            assert len(result["ratios"][method]) == point.runs
            assert min(result["ratios"][method]) >= 1
        exact = {"weave"} if point.exact is None else set()
        exact |= {"treeopt"} if point.shape in ACYCLIC else set()
        exact |= {"f-greedy"} if point.shape == "star" and point.objective == "produced" else set()
        assert all(result["optimal"][method] == 1 for method in exact)


def test_tables_and_plots_are_written(tiny: Any) -> None:
    results, out = tiny
    raghavan_plots.require()
    raghavan_plots.draw(results, out)
    report = raghavan_report.write(results, TINY, out).read_text()
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results) * len(METHODS) == len(json.loads((out / "summary.json").read_text()))
    for name in ("optimal", "costs", "times"):
        assert f"(raghavan-{name}.png)" in report
        assert (out / f"raghavan-{name}.png").read_bytes().startswith(b"\x89PNG")
    stated = list(raghavan_claims.claims(results))
    assert sum(report.count(f"| {place} ") for place in {claim.place for claim in stated}) == len(stated)
    differing = [claim for claim in stated if not claim.holds]
    assert sum(report.count(f"\n- {place}") for place in {claim.place for claim in differing}) == len(differing)
    assert all(claim.because for claim in stated)


def test_every_claim_about_the_figures_is_reported(tiny: Any) -> None:
    places = {claim.place for claim in raghavan_claims.claims(tiny[0])}
    figures = ("4(a)", "4(b)", "4(c)", "4(d)", "7(a)", "7(b)", "7(c)", "9(a)", "9(b)", "10(a)", "10(b)")
    assert places == {"section 4", *(f"figure {figure}" for figure in figures)}


@pytest.mark.parametrize(
    ("says", "method", "kind", "values"),
    [
        ("F-Greedy is optimal on linear queries", "f-greedy", "optimal", (1.0, 0.9)),
        ("F-Greedy is optimal on stars, if comparisons", "f-greedy", "optimal", (1.0, 0.9)),
        ("TreeOpt is optimal on every acyclic graph", "treeopt", "optimal", (1.0, 0.8)),
        ("upper quartile on cyclic graphs is about 2.5", "treeopt", "ratios", (2.4, 9.0)),
        ("FAB costs at most 2 times the optimum on cyclic", "fab", "ratios", (1.9, 2.1)),
        ("F-Greedy outperforms TreeOpt on cyclic", "treeopt", "ratios", (1e6, 1.0)),
        ("TreeOpt plans acyclic graphs faster", "treeopt", "seconds", (1e-9, 1e9)),
        ("FAB plans faster than DMJoin", "fab", "seconds", (1e-9, 1e9)),
    ],
)
def test_verdicts_follow_from_the_results(
    tiny: Any, says: str, method: str, kind: str, values: tuple[float, float]
) -> None:
    for value, expected in zip(values, (True, False), strict=True):
        changed = copy.deepcopy(tiny[0])
        for point, result in changed.items():
            result[kind][method] = [value] * point.runs if kind == "ratios" else value
        (claim,) = [each for each in raghavan_claims.claims(changed) if says in each.says]
        assert claim.holds is expected, claim.measured


def test_exponential_growth_is_distinguished_from_noise(tiny: Any) -> None:
    for grows, expected in ((4.0, True), (1.01, False)):
        changed = copy.deepcopy(tiny[0])
        for point, result in changed.items():
            result["seconds"] = {**result["seconds"], "dmjoin": grows**point.count, "f-greedy": point.count**3}
        claim = next(raghavan_claims.claims(changed))
        assert (claim.place, claim.holds) == ("figure 4(a)", expected), claim.measured


def test_a_fraction_is_never_rounded_to_all_or_none() -> None:
    assert raghavan_report._percent(0.99999) == "99.9%"
    assert raghavan_report._percent(0.00001) == "0.1%"
    assert (raghavan_report._percent(1.0), raghavan_report._percent(0.0)) == ("100.0%", "0.0%")


def test_an_unknown_paper_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="the paper is 'codd'; allowed: 'alrahmani', 'golab', 'kwon', 'raghavan', 'valsomatzis', 'all'",
    ):
        reproduce("codd", quiet(), tmp_path)
    assert list(PAPERS) == ["alrahmani", "golab", "kwon", "raghavan", "valsomatzis"]


def test_the_command_line_names_the_allowed_papers(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["codd", "--out", str(tmp_path)])
    assert answer.exit_code == 1
    assert answer.output.startswith("reproduce: the paper is 'codd'; allowed: 'alrahmani', 'golab', ")


@pytest.mark.slow
def test_the_quick_run_ends_with_a_report(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["raghavan", "--quick", "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert f"Report: {tmp_path / 'report.md'}" in answer.output
    assert (tmp_path / "report.md").read_text().startswith("# Probe orders")


def test_missing_matplotlib_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'dovetail\[plots\]'"):
        raghavan_plots.require()
