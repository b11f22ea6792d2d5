"""The nested-loop experiments: random draws match the paper, and reports and verdicts follow from result files."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dovetail as dt
from experiments import (
    ALL,
    PAPERS,
    Paper,
    golab,
    golab_claims,
    golab_draws,
    golab_plots,
    golab_report,
    overview,
    reproduce,
)
from experiments.golab import FIGURE_3, Grid, Point, table
from experiments.golab_engine import chosen_orders, drive
from experiments.golab_orders import StreamStatistics, all_costs, heuristic_order, initial_orders
from experiments.points import Points
from experiments.report import AGREES, DIFFERS, VERDICTS, run_of

TINY = Grid(draws=1, units=50, streams=(2, 3), single=2, taus=(25, 50), settings=6, counts=(3, 4))


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Point, dict[str, Any]], Path]:
    out = tmp_path_factory.mktemp("golab")
    return golab.run(quiet(), Points(out / "golab-quick" / "points", asdict(TINY)), TINY), out


@pytest.fixture
def tiny(made: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory as `all` leaves it, with one paper; changes by a test are undone."""
    _, out = made
    monkeypatch.setattr(golab, "QUICK", TINY)
    kept = {path: path.read_text() for path in (out / "golab-quick" / "points").iterdir()}
    yield out
    for path, text in kept.items():
        path.write_text(text)


def verdicts(out: Path) -> dict[tuple[str, str], str]:
    (found,) = overview.read(out, [Paper("golab", quick=True)]).values()
    return {(claim.place, claim.says): claim.verdict for claim in found}


def change(out: Path, point: str, *path: str, factor: float) -> None:
    file = out / "golab-quick" / "points" / f"{point}.json"
    stored = json.loads(file.read_text())
    inner = stored["result"]
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] *= factor
    file.write_text(json.dumps(stored))


# -- what is drawn and counted ------------------------------------------------------------------------------------------------------


def test_the_grid_matches_the_paper() -> None:
    points = list(Grid().points())
    assert len({point.name for point in points}) == len(points)
    assert {point.x for point in points if point.experiment == "table"} == {3, 5, 6, 7}
    taus = {point.x for point in points if point.experiment == "figure-3b"}
    assert (min(taus), max(taus)) == (1, 50)
    assert {point.draw for point in points if point.experiment == "figure-3a"} == set(range(10))


def test_random_streams_hold_each_of_their_values() -> None:
    for seed in range(50):
        for stream in golab_draws.random_streams(5, random.Random(seed)).values():
            assert 1 <= stream.rate <= 100
            assert 100 <= stream.window <= 200
            assert 2 <= stream.distinct <= min(500, stream.tuples())


def test_the_heuristic_is_never_worse_than_its_initial_orders() -> None:
    for seed in range(30):
        streams = golab_draws.random_streams(4, random.Random(seed))
        costs = all_costs(streams)
        assert costs[heuristic_order(streams)] <= min(costs[order] for order in initial_orders(streams)) * (1 + 1e-9)


def test_expensive_comparisons_move_outwards_in_the_heuristic_order() -> None:
    streams = {name: StreamStatistics(1, window, 50) for name, window in zip("1234", (100, 100, 120, 140), strict=True)}
    assert heuristic_order(streams) == ("1", "2", "3", "4")
    dear = {**streams, "4": StreamStatistics(1, 140, 50, expense=20)}
    assert heuristic_order(dear).index("4") < 3


def test_counts_do_not_depend_on_when_orders_change() -> None:
    # A session that changes an order restarts its counters; with the orders it arrived at given from the start, no count is lost.
    streams, config = FIGURE_3["3a"], dt.Config(join="nested-loop", driver_policy="declared")
    orders = chosen_orders(streams, config, 50, seed=1)
    assert {name: sorted(order) for name, order in orders.items()} == {
        name: sorted(set("1234") - {name}) for name in "1234"
    }
    counted = drive(streams, config, orders, 50, 500, seed=1)
    fixed = drive(streams, config, {name: sorted(set("1234") - {name}) for name in "1234"}, 50, 500, seed=1)
    assert counted.tuples == fixed.tuples == 4 * 500
    assert counted.total == pytest.approx(fixed.total, rel=0.3)


def test_joining_one_tuple_at_a_time_costs_the_same() -> None:
    streams, config = table(5), golab.EXPIRATION["eager"]
    orders = {name: [other for other in "1234" if other != name] for name in "1234"}
    single, together = (drive(streams, config, orders, step, 40) for step in (None, 40))
    assert single.comparisons == pytest.approx(together.comparisons, rel=0.05)


# -- verdicts -----------------------------------------------------------------------------------------------------------------------


def test_every_claim_is_unique_and_has_a_reason(made: Any) -> None:
    results, _ = made
    found = list(golab_claims.claims(results))
    assert len(found) >= 60
    assert all(claim.because for claim in found)
    assert len({(claim.place, claim.says) for claim in found}) == len(found)


@pytest.mark.parametrize(
    ("point", "path", "factor", "place", "says"),
    [
        ("table-05-0", ("costs", "1,2,3,4"), 1.5, "table 5", "the best order is 1,2,3,4"),
        ("table-07-0", ("costs", "3,1,2,4"), 1.3, "table 7", "each order that the heuristic considers costs less than the mean"),
        ("figure-3b-50-0", ("given", "general"), 2.0, "figure 3(b), engine", "general has the lowest cost for every tau"),
        ("figure-3a-25-0", ("model", "naive"), 0.1, "figure 3(a), equations", "naive costs more"),
        ("hybrid-05-0", ("aware",), 9.0, "section 5.4, engine", "orders should know which windows have an index (hybrid, table 5)"),
    ],
)  # fmt: skip
def test_a_changed_result_file_changes_the_verdict(
    tiny: Path, point: str, path: tuple[str, ...], factor: float, place: str, says: str
) -> None:
    before = verdicts(tiny)
    assert before[place, says] == AGREES
    change(tiny, point, *path, factor=factor)
    assert verdicts(tiny)[place, says] == DIFFERS
    change(tiny, point, *path, factor=1 / factor)
    assert verdicts(tiny) == before


# -- pages --------------------------------------------------------------------------------------------------------------------------


def test_tables_and_plots_are_written(made: Any, tmp_path: Path) -> None:
    results, _ = made
    golab_plots.require()
    golab_plots.draw(results, tmp_path)
    golab_report.show(quiet(), results)
    text = golab_report.write(results, TINY, tmp_path).read_text()
    for name in ("orders", "scaling", "lazy", "heuristics", "rates"):
        assert f"(golab-{name}.png)" in text
        assert (tmp_path / f"golab-{name}.png").read_bytes().startswith(b"\x89PNG")
    for claim in golab_claims.claims(results):
        assert f"| {claim.place} | {claim.says} | {claim.about} | {claim.measured} | {claim.verdict} |" in text
    assert "| 5 | 2,1,3,4 | 19,600 | 19,600 |" in text
    assert "[the one rule](README.md#the-rule)" in " ".join(text.split())


def test_the_overview_lists_the_available_papers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(*_: Any) -> dict[str, Any]:
        raise AssertionError("a point that is there was computed again")

    monkeypatch.setattr(golab, "run_point", compute)
    monkeypatch.setattr(overview, "PAPERS", {"golab": PAPERS["golab"]})
    console = quiet()
    path = reproduce(ALL, console, tiny, quick=True)
    assert path == tiny / f"{ALL}-quick" / "README.md"
    text = path.read_text()
    (stated,) = overview.read(tiny, [Paper("golab", quick=True)]).values()
    for claim in stated:
        why = "" if claim.verdict == AGREES else claim.because
        assert f"| {claim.place} | {claim.says} | {claim.about} | {claim.measured} | {claim.verdict} | {why} |" in text
    for name in ("golab.md", "golab-lazy.png", "golab-rates.png"):
        assert (path.parent / name).exists()
    assert text.index("**Who is right:**") < text.index("## The rule") < text.index("Golab, every statement")
    assert f"from {run_of(TINY)}" in " ".join(text.split())
    output: Any = console.file
    assert "1 of 1: Golab, Özsu" in output.getvalue()


def test_the_overview_in_the_docs_has_all_papers_and_many_claims() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs" / "experiments"
    text = (docs / "README.md").read_text()
    stated = [line for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 5]
    assert sum(any(f" | {verdict} | " in line for verdict in VERDICTS) for line in stated) >= 100
    for paper in PAPERS:
        assert f"({paper}.md)" in text
        assert (docs / f"{paper}.md").exists()
