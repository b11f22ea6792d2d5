"""The many-query experiment: random draws match the thesis, limits are kept, the report cites every figure."""

from __future__ import annotations

import copy
import csv
import io
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import dovetail as dt
from experiments import PAPERS, alrahmani, alrahmani_plots, alrahmani_report
from experiments.__main__ import app
from experiments.alrahmani import ORDERS, SCENARIOS, STRATEGIES, Grid, Point, run
from experiments.alrahmani_claims import claims, compared, points
from experiments.alrahmani_printed import PRINTED
from experiments.points import Points

TINY = Grid(draws=2, predicates=(3,), delays=(2,))


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Point, list[dict[str, Any]]], Path]:
    out = tmp_path_factory.mktemp("alrahmani")
    return run(quiet(), Points(out / "points", asdict(TINY)), TINY), out


def test_the_grid_matches_the_thesis() -> None:
    found = list(Grid().points())
    assert found[0] == Point("orders", "both", 5, 5)
    assert {(point.scenario, point.predicates) for point in found if point.experiment == "strategies"} == {
        (scenario, count) for scenario in SCENARIOS for count in (3, 5, 7, 9)
    }
    assert [point.predicates for point in points({each: [] for each in found}, "delay")] == [2, 4, 8, 16]
    assert Grid().draws == 30


def test_the_appendix_is_complete() -> None:
    parts = alrahmani.appendix()
    assert len(parts) == 17
    assert [len(part["rates"]) for part in parts] == [12] + [20] * 16
    assert all(len(part["selectivities"]) == len(part["rates"]) - 1 for part in parts)  # a tree over all streams


@pytest.mark.parametrize("point", list(Grid().points())[:-1], ids=lambda point: point.name)
def test_queries_have_the_sharing_ratio(point: Point) -> None:
    rng = random.Random(3)
    known = alrahmani.statistics(point, rng)
    queries = alrahmani.drawn_queries(known, point, rng)
    assert len(queries) == point.queries
    assert all(len(graph.selectivities) == point.predicates for graph in queries.values())
    assert all(graph.shape in ("linear", "star", "acyclic") for graph in queries.values())
    # p predicates of round(p / 0.6), or of all 19.
    wanted = point.predicates / min(round(point.predicates / 0.6), len(known.selectivities))
    assert alrahmani.sharing_ratio(queries) == pytest.approx(wanted)
    assert point.predicates == 16 or abs(wanted - 0.6) < 0.07


def test_limits_are_kept(tiny: Any) -> None:
    results, _ = tiny
    for point, draws in list(results.items())[:-1]:
        finite = point.experiment == "printed"
        methods = {"orders": ORDERS, "printed": (*STRATEGIES, *PRINTED)}.get(point.experiment, STRATEGIES)
        for draw in draws:
            assert list(draw["plans"]) == list(methods)
            assert (draw["limits"]["cpu"] is not None) == (finite or point.scenario in ("cpu", "both"))
            assert (draw["limits"]["memory"] is not None) == (finite or point.scenario in ("memory", "both"))
            # As printed, a plan may exceed the limits: an allocation is not checked against what is left.
            for plan in (plan for name, plan in draw["plans"].items() if plan and name not in PRINTED):
                for resource, limit in draw["limits"].items():
                    assert limit is None or plan[resource] <= limit * (1 + 1e-6)
                assert plan["cpu"] >= draw["unavoidable"] * (1 - 1e-9)
            if point.experiment not in ("orders", "tight", "printed"):
                assert draw["plans"]["naive"] is not None
                assert draw["plans"]["exchange"]["cpu"] <= draw["plans"]["naive"]["cpu"]


def test_tight_limits_lie_between_mjoin_and_bjtree(tiny: Any) -> None:
    results, _ = tiny
    for point in points(results, "tight"):
        for draw in results[point]:
            for resource, limit in draw["limits"].items():
                both = sorted(draw["shared"][name][resource] for name in ("mjoin", "bjtree"))
                assert limit is None or both[0] <= limit <= both[1]


def test_naive_has_windows_for_each_query() -> None:
    point = Point("strategies", "none", 3, 10)
    rng = random.Random(3)
    queries = alrahmani.drawn_queries(alrahmani.statistics(point, rng), point, rng)
    found = alrahmani.timed_plan(queries, dt.Budget(), "naive")
    assert found is not None
    assert found["memory"] == pytest.approx(
        sum(rate * 10 for graph in queries.values() for rate in graph.rates.values())
    )


def changed(results: Any, methods: tuple[str, ...], field: str, factor: float) -> dict[Point, list[dict[str, Any]]]:
    """Return results in which some methods have other costs."""
    copied: dict[Point, list[dict[str, Any]]] = copy.deepcopy(results)
    for draws in copied.values():
        for draw in draws:
            for method in methods:
                if draw["plans"].get(method):
                    draw["plans"][method][field] *= factor
    return copied


@pytest.mark.parametrize(
    ("figure", "methods", "field"),
    [
        ("figure 4-1", ("shared-predicate",), "cpu"),
        ("figure 4-2", ("shared-predicate",), "memory"),
        ("figure 4-3", ("shared",), "cpu"),
        ("figure 4-6", ("shared",), "memory"),
        ("figure 4-9", ("shared",), "cpu"),
        ("figure 4-10", ("shared",), "memory"),
    ],
)
def test_verdicts_follow_from_the_results(tiny: Any, figure: str, methods: tuple[str, ...], field: str) -> None:
    results, _ = tiny
    for factor, expected in ((1e-12, True), (1e12, False)):
        found = [claim.holds for claim in claims(changed(results, methods, field, factor)) if claim.place == figure]
        assert found == [expected] * len(found)
        assert found


def test_an_insignificant_difference_does_not_count(tiny: Any) -> None:
    results, _ = tiny
    (point,) = points(results, "orders")
    same = {"cpu": 1.0, "memory": 1.0, "states": 0, "shared": 0, "seconds": 1.0}
    drawn = results[point][0]
    for less, expected in ((16, None), (25, True)):
        # Much less in slightly more than half of 30 draws; then less in most.
        draws = [
            {
                **drawn,
                "plans": {
                    **dict.fromkeys(ORDERS, same),
                    "shared-predicate": {**same, "cpu": 0.1 if number < less else 1.01},
                },
            }
            for number in range(30)
        ]
        (claim,) = [each for each in claims({**results, point: draws}) if each.place == "figure 4-1"]
        assert claim.holds is expected, claim.measured


def test_a_run_resumes_where_it_stopped(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results, out = tiny
    computed: list[Point] = []

    def noted(point: Point, _: Grid) -> list[dict[str, Any]]:
        computed.append(point)
        return []

    monkeypatch.setattr(alrahmani, "run_point", noted)
    (out / "points" / "strategies-none-03.json").rename(out / "kept")
    again = run(quiet(), Points(out / "points", asdict(TINY)), TINY)
    (out / "kept").rename(out / "points" / "strategies-none-03.json")
    assert [point.name for point in computed] == ["strategies-none-03"]
    assert again[Point("orders", "both", 5, 5)] == results[Point("orders", "both", 5, 5)]


def test_the_report_compares_with_every_figure(tiny: Any) -> None:
    results, out = tiny
    text = alrahmani_report.write(results, TINY, out).read_text(encoding="utf-8")
    places = {claim.place for claim in claims(results)}
    for number in (1, 2, 3, 4, 5, 6, 8, 9, 10, 11):
        assert any(f"4-{number}" in place for place in places)
    for claim in claims(results):
        assert f"| {claim.place} | {claim.says} | {claim.about} | {claim.measured} | {claim.verdict} |" in text
    assert all(len(line) < 100 for line in text.splitlines() if not line.startswith(("|", "!")))
    with (out / "summary.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    printed = sum(point.experiment == "printed" for point in results)
    assert len(found) == len(ORDERS) + (len(results) - 2) * len(STRATEGIES) + printed * len(PRINTED)


def test_small_cases_are_compared_with_the_optimum(tiny: Any) -> None:
    results, _ = tiny
    (point,) = points(results, "optimum")
    assert len(results[point]) == alrahmani.SMALL * TINY.draws
    found = {row[0]: row for row in alrahmani_report.optimum_table(results)}
    assert list(found) == ["exchange", "shared", "shared-naive", "naive"]
    assert found["exchange"][-1] == "0.0%"  # exchange finds a plan whenever one exists
    for draw in results[point]:
        best = draw["plans"]["exact"]
        for plan in draw["plans"].values():
            assert plan is None or (best is not None and best["cpu"] <= plan["cpu"] * (1 + 1e-9))


def test_ratios_omit_draws_without_a_plan() -> None:
    point = Point("strategies", "none", 3, 10)
    draws: list[dict[str, Any]] = [
        {"plans": {"a": {"cpu": 2.0}, "b": {"cpu": 4.0}}},
        {"plans": {"a": None, "b": {"cpu": 1.0}}},
    ]
    assert list(compared({point: draws}, [point], ("a", "b"), "cpu")) == [0.5]


@pytest.mark.slow
def test_plots_are_drawn(tiny: Any) -> None:
    pytest.importorskip("matplotlib")
    results, out = tiny
    alrahmani_plots.require()
    alrahmani_plots.draw(results, out)
    for name in ("strategies", "avoidable", "qualified", "selective", "printed", "orders", "times"):
        assert (out / f"alrahmani-{name}.png").stat().st_size > 5_000


def test_the_command_lists_the_paper(tmp_path: Path) -> None:
    assert "alrahmani" in PAPERS
    refused = CliRunner().invoke(app, ["nobody", "--out", str(tmp_path)])
    assert refused.exit_code == 1
    assert "'alrahmani'" in refused.output
