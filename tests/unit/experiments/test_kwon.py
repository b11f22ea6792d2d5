"""The shedding experiment: data match the paper, every policy runs, and the report lists the results."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from dovetail.workloads.orders import all_orders
from experiments import kwon, kwon_claims, kwon_plots, kwon_report, kwon_simulator
from experiments.kwon import POLICIES, Grid, Point, cut, drawn
from experiments.kwon_simulator import SIMULATED
from experiments.points import Points
from experiments.report import UNTESTED


class _Few(Grid):
    """First and last setting of each figure, and the first gap of the map."""

    def points(self) -> Iterator[Point]:
        by_figure: dict[str, list[Point]] = {}
        for point in super().points():
            by_figure.setdefault(point.figure, []).append(point)
        whole = [point for point in by_figure.pop("map") if point.gap == 1.0]
        yield from (*whole, *(point for points in by_figure.values() for point in (points[0], points[-1])))

    def simulated(self) -> Iterator[Point]:
        yield from (point for point in super().simulated() if point.figure != "s11")


TINY = _Few(tuples=150, seeds=1, map_seeds=1)


def test_the_grid_matches_the_paper() -> None:
    points = list(Grid().points())
    assert {point.memory for point in points if point.figure == "5"} == {100, 200, 300, 400, 500}
    assert {point.streams for point in points if point.figure == "8"} == {3, 4, 5, 6, 7}
    assert {point.variance for point in points if point.figure == "10"} == {15, 20, 25, 30, 35}
    assert len({point.seed for point in points if point.figure == "6"}) == 10
    assert len({point.name for point in points}) == len(points)


@pytest.mark.parametrize("skew", [0.0, 2.0])
def test_keys_are_unique_per_stream_and_arrive_in_their_order(skew: float) -> None:
    grid = Grid()
    streams = drawn(Point("6", skew, 3, skew=skew), grid)
    seen: dict[int, list[tuple[int, int]]] = {}
    for number, table in enumerate(streams.values()):
        keys, times = table.column("k").to_pylist(), table.column("ts").cast(pa.int64()).to_pylist()
        assert len(set(keys)) == len(keys)
        assert times == sorted(times)
        for key, moment in zip(keys, times, strict=True):
            seen.setdefault(key, []).append((moment, number))
    total = sum(map(len, streams.values()))
    assert total == pytest.approx(5 * grid.tuples, rel=0.03)
    orders = [tuple(stream for _, stream in sorted(found)) for found in seen.values()]
    used, counts = np.unique([str(order) for order in orders], return_counts=True)
    assert len(used) <= len(all_orders(5)) == 325
    share = counts.max() / counts.sum()
    assert share == pytest.approx(1 / 325 if skew == 0 else 0.61, rel=0.6)
    gaps = [b - a for found in seen.values() for (a, _), (b, _) in zip(sorted(found), sorted(found)[1:], strict=False)]
    assert np.mean(gaps) == pytest.approx(5 * kwon.SECOND, rel=0.05)


def test_batches_contain_every_tuple() -> None:
    streams = drawn(Point("5", 100, 0), TINY)
    batches = cut(streams, 7)
    for name, table in streams.items():
        assert pa.concat_tables([batch[name] for batch in batches]).equals(table)


def test_a_small_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kwon, "TRACE", tmp_path / "nothing")
    console = Console(file=io.StringIO(), width=200)
    results = kwon.run(console, Points(tmp_path / "points", asdict(TINY)), TINY)
    for point, result in results.items():
        if point.figure in ("s9a", "s9b"):
            assert set(result["policies"]) == set(kwon_simulator.TIMED)
            continue
        assert set(result["policies"]) == set(SIMULATED if point.figure.startswith("s") else POLICIES)
        assert all(found["results"] <= result["all"] for found in result["policies"].values())
    kwon_report.show(console, results)
    kwon_plots.draw(results, tmp_path)
    text = kwon_report.write(results, TINY, tmp_path).read_text(encoding="utf-8")
    assert "## Figure 5: memory" in text
    assert "## Figure 11" not in text, "there is no trace"
    assert (tmp_path / "kwon-memory.png").stat().st_size > 1000
    assert text.count("| figure ") > 9
    untested = [claim for claim in kwon_claims.claims(results) if claim.verdict == UNTESTED]
    assert [claim.place for claim in untested] == ["figure 11", "figure 11"]
    assert "What cannot be tested here:\n\n- figure 11, “EP outperforms" in text
    assert (tmp_path / "kwon-simulated.png").stat().st_size > 1000


def test_results_of_few_hosts_test_nothing() -> None:
    schema = pa.schema([kwon.SCHEMA.field("ts"), ("k", pa.string())])
    tables = {name: pa.table([[0] * 3, hosts], names=["ts", "k"]).cast(schema) for name, hosts in
              {"s0": ["a", "a", "b"], "s1": ["a", "b", "b"], "s2": ["b", "a", "c"]}.items()}  # fmt: skip
    found = kwon.hosts(tables)
    assert found == {"by_host": [2, 2]}
    assert kwon.FEW > 2
    point = Point("s11", 0, 0)
    claims = list(kwon_claims._trace({point: found}))
    assert [claim.verdict for claim in claims] == [UNTESTED] * 2
    assert claims[0].measured == "4 results of 2 hosts, 4 of them of two"
    assert "NASA's of 1 August 1995" in claims[0].because
