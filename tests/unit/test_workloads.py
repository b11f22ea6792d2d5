"""Generators give what was asked for: rates, patterns, skews, selectivities, disorder; and the same tuples however they are cut."""

from __future__ import annotations

import pickle
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app
from dovetail.errors import ConfigError
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle, assert_same_rows
from dovetail.workloads import (
    SCENARIOS,
    Appears,
    Arrivals,
    Copied,
    Delay,
    Follows,
    Matching,
    Normal,
    Orders,
    Stream,
    Uniform,
    Workload,
    Zipf,
    edges_of,
    join_workload,
    overlap,
    parsed_scenario,
    scenario,
    write_workload,
)
from dovetail.workloads.arrivals import PATTERNS, SECOND
from dovetail.workloads.graphs import SHAPES
from dovetail.workloads.orders import all_orders

SMALL: dict[str, dict[str, Any]] = {"ad_funnel": {"rate": 200.0}, "news": {"lateness_seconds": 5.0}}


def micros(table: pa.Table, start: int = 0) -> NDArray[np.int64]:
    found: NDArray[np.int64] = table["ts"].cast(pa.int64()).to_numpy() - start
    return found


def arriving(arrivals: Arrivals, seconds: float, seed: int = 1) -> NDArray[np.int64]:
    """Event times in microseconds of a stream without delays."""
    workload = Workload("w", (Stream("s", arrivals, {"k": Uniform(10)}),), seed=seed, start=0)
    return micros(workload.table("s", 0, seconds))


# -- the same tuples ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_tuples_do_not_depend_on_how_time_is_cut(name: str) -> None:
    whole, cut = (scenario(name, seed=5, **SMALL.get(name, {})) for _ in range(2))
    bounds = [0, 0.000001, 3.7, 3.700001, 20, 20, 61.5, 100]
    for stream in whole.streams:
        # Backwards: nothing that was drawn before may matter.
        parts = [cut.table(stream.name, first, last) for first, last in reversed([*pairwise(bounds)])]
        assert pa.concat_tables(parts[::-1]).equals(whole.table(stream.name, 0, 100)), stream.name


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("spacing", [None, "even", "jittered", "random"])
def test_no_pattern_depends_on_how_time_is_cut(pattern: str, spacing: str | None) -> None:
    arrivals = Arrivals(3000, pattern, period=7.3, turned=True, spacing=spacing)
    delay = Delay(mean=0.5, lateness=2, late_share=0.01, late_by=3)
    whole, cut = (Workload("w", (Stream("s", arrivals, {"k": Zipf(50)}, delay),), seed=3) for _ in range(2))
    parts = [cut.table("s", first, first + 1.25) for first in np.arange(0, 40, 1.25)]
    found = whole.table("s", 0, 40)
    assert pa.concat_tables(parts).equals(found)
    assert found.num_rows == pytest.approx(38 * 3000, rel=0.1)


def test_another_seed_and_another_stream_are_other_tuples() -> None:
    first, same, other = (scenario("join", seed=seed, streams=2) for seed in (1, 1, 2))
    assert first.table("s0", 0, 10).equals(same.table("s0", 0, 10))
    assert not first.table("s0", 0, 10).equals(other.table("s0", 0, 10))
    assert not first.table("s0", 0, 10).equals(first.table("s1", 0, 10))
    assert set(micros(first.table("s0", 0, 10))).isdisjoint(micros(first.table("s1", 0, 10)))


def test_what_has_been_drawn_is_forgotten_and_does_not_travel() -> None:
    workload = scenario("join", seed=1, streams=2, rate=20_000)
    small = len(pickle.dumps(workload))
    for second in range(20):
        workload.table("s0", second, second + 1)
    kept = workload._drawn._blocks["s0"]
    assert len(kept) * workload.block < 60 * SECOND
    assert len(pickle.dumps(workload)) == small
    assert pickle.loads(pickle.dumps(workload)).table("s0", 3, 4).equals(workload.table("s0", 3, 4))  # noqa: S301


# -- arrivals -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_rate_is_the_one_that_was_asked_for(pattern: str) -> None:
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


# -- keys ---------------------------------------------------------------------------------------------------------------------------


def drawn(column: Any, count: int = 200_000) -> NDArray[Any]:
    found: NDArray[Any] = column.draw(np.random.default_rng(7), np.zeros(count))
    return found


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_zipf_has_its_exponent(exponent: float) -> None:
    counts = np.bincount(drawn(Zipf(1000, exponent)), minlength=1000)
    assert len(counts) == 1000
    top = counts[:8]
    fitted = -np.polyfit(np.log(np.arange(1, 9)), np.log(top), 1)[0] if exponent else 0.0
    assert fitted == pytest.approx(exponent, abs=0.08)
    whole = 1 / np.arange(1, 1001) ** exponent
    assert top / counts.sum() == pytest.approx(whole[:8] / whole.sum(), rel=0.25)


def test_normal_and_uniform_keys() -> None:
    normal, uniform = drawn(Normal(100, 5)), drawn(Uniform(20))
    assert normal.mean() == pytest.approx(100, abs=0.05)
    assert normal.std() == pytest.approx(5, rel=0.02)
    assert np.bincount(uniform) / len(uniform) == pytest.approx(np.full(20, 0.05), rel=0.05)


def selectivity(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Pairs that match, of all."""
    size = int(max(left.max(), right.max())) + 1
    matched = float(np.bincount(left, minlength=size).astype(float) @ np.bincount(right, minlength=size))
    return matched / (len(left) * len(right))


@pytest.mark.parametrize("wanted", [1.0, 0.78, 0.5, 0.26, 0.1, 0.003])
def test_a_column_matches_as_often_as_was_asked(wanted: float) -> None:
    rng = np.random.default_rng(3)
    left, right = (Matching(wanted).draw(rng, np.zeros(300_000)) for _ in range(2))
    assert selectivity(left, right) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_edge_of_any_graph_has_its_selectivity(shape: str) -> None:
    names = ["a", "b", "c", "d", "e"]
    wanted = {edge: 0.02 + 0.11 * number for number, edge in enumerate(edges_of(shape, names)) if number < 9}
    workload = join_workload({name: Arrivals(2000) for name in names}, wanted, dict.fromkeys(names, 10.0), seed=4)
    tables = {name: workload.table(name, 0, 40) for name in names}
    columns = {name: {key: table[key].to_numpy() for key in table.column_names[1:]} for name, table in tables.items()}
    for (a, b), chance in wanted.items():
        assert selectivity(columns[a][f"{a}_{b}"], columns[b][f"{a}_{b}"]) == pytest.approx(chance, rel=0.05)
    if shape in ("cycle", "clique"):  # edges are independent: both columns of a stream say nothing about each other
        left, right = (columns["a"][f"a_{other}"] for other in ("b", "e"))
        both = ((left == left[0]) & (right == right[0])).mean()
        assert both == pytest.approx((left == left[0]).mean() * (right == right[0]).mean(), abs=0.01)


def test_a_common_key_has_one_column() -> None:
    workload = scenario("join", shape="common-key", streams=3, selectivity=0.01, rate=2000)
    keys = [workload.table(name, 0, 30)["k"].to_numpy() for name in ("s0", "s1", "s2")]
    assert selectivity(keys[0], keys[2]) == pytest.approx(0.01, rel=0.05)
    assert workload.selectivities["s1.k = s2.k"] == 0.01


# -- orders, followers, delays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 1.0, 2.0])
def test_unique_keys_appear_in_their_orders(skew: float) -> None:
    streams = ("x", "y", "z")
    orders = Orders(streams, tuple(all_orders(3)), Arrivals(1), skew, gap=0.5).rated(Arrivals(300, "uniform"))
    sources = tuple(Stream(name, Appears(orders), {"k": Copied("key")}) for name in streams)
    workload = Workload("w", sources, seed=2, start=0)
    tables = [workload.table(name, 0, 120) for name in streams]
    assert sum(map(len, tables)) == pytest.approx(3 * 300 * 120, rel=0.02)
    for name, table in zip(streams, tables, strict=True):
        assert len(table) == pytest.approx(120 * workload.rate(name), rel=0.05)
        assert len(set(table["k"].to_pylist())) == len(table)
    seen: dict[int, list[tuple[int, int]]] = {}
    for number, table in enumerate(tables):
        for key, moment in zip(table["k"].to_pylist(), micros(table), strict=True):
            seen.setdefault(key, []).append((int(moment), number))
    # Keys that begin near the end may not have been everywhere yet.
    inside = [sorted(found) for found in seen.values() if min(found)[0] < 100 * SECOND]
    counted = dict.fromkeys(all_orders(3), 0)
    for found in inside:
        counted[tuple(number for _, number in found)] += 1
    shares = np.array([*counted.values()]) / len(inside)
    likely = orders.chances > 0.01
    assert shares[likely] == pytest.approx(orders.chances[likely], rel=0.1)
    gaps = [b[0] - a[0] for found in inside for a, b in pairwise(found)]
    assert np.mean(gaps) == pytest.approx(0.5 * SECOND, rel=0.03)


def test_followers_copy_what_they_follow() -> None:
    first = Stream("first", Arrivals(2000), {"k": Uniform(1 << 40)})
    then = Stream("then", Follows("first", share=0.2, mean=3.0), {"was": Copied("k"), "own": Uniform(5)})
    workload = Workload("w", (first, then), seed=9)
    shown, clicked = workload.table("first", 0, 100), workload.table("then", 0, 140)
    times = dict(zip(shown["k"].to_pylist(), micros(shown), strict=True))
    lags = [
        moment - times[key]
        for key, moment in zip(clicked["was"].to_pylist(), micros(clicked), strict=True)
        if key in times
    ]
    assert len(lags) == pytest.approx(0.2 * len(shown), rel=0.03)
    assert np.mean(lags) == pytest.approx(3 * SECOND, rel=0.03)
    assert min(lags) >= 0
    assert max(lags) <= 24 * SECOND
    assert clicked["own"].type == pa.int64()


def test_tuples_are_late_and_out_of_order_as_asked() -> None:
    delay = Delay(mean=1.0, lateness=4.0, late_share=0.02, late_by=10.0)
    workload = Workload("w", (Stream("s", Arrivals(1000), {}, delay),), start=0)
    assert workload.streams[0].lateness == 4 * SECOND
    late = arrived = 0
    largest = -1
    for second in range(0, 200, 10):
        times = micros(workload.table("s", second, second + 10))
        assert (np.diff(times) < 0).any()
        late += int((times < largest - 4 * SECOND).sum())
        arrived += len(times)
        largest = max(largest, times.max())
    assert late / arrived == pytest.approx(0.02 * 0.92, rel=0.1)  # those of the last seconds are yet to come
    in_order = Workload("w", (Stream("s", Arrivals(1000), {}),), start=0)
    assert (np.diff(micros(in_order.table("s", 0, 10))) >= 0).all()


# -- scenarios ----------------------------------------------------------------------------------------------------------------------

TINY: dict[str, dict[str, Any]] = {
    "ad_funnel": {"rate": 24.0, "ads": 20, "users": 20, "click_share": 0.5, "order_share": 0.9},
    "packets": {"rate": 6.0, "routers": 3},
    "sensors": {"rate": 20.0, "locations": 40, "smoke_sensors": 3, "levels": 3},
    "news": {"rate": 4.0, "sites": 3, "gap_seconds": 2.0, "lateness_seconds": 5.0},
    "join": {"rate": 6.0, "shape": "cycle", "streams": 3, "selectivity": 0.05},
    "drift": {"rate": 15.0, "often": 3, "seldom": 6},
    "overlap": {"rate": 3.0, "queries": 2},
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_queries_of_a_scenario_have_results(name: str) -> None:
    workload = scenario(name, seed=1, late_share=0.05, late_by_seconds=8.0, **TINY[name])
    session, oracle = dt.LocalSession(), Oracle(workload.streams)
    workload.declare(session)
    catalog = {stream.name: stream for stream in workload.streams}
    for query, sql in workload.queries.items():
        oracle.add_query(parse_query(query, sql, catalog))
    found: dict[str, list[pa.Table]] = {query: [] for query in workload.queries}
    for number, batch in enumerate(workload.batches(5.0)):
        if number == 5:
            break
        oracle.push(batch)
        for query, table in session.push(batch).items():
            found[query].append(table)
    for query, tables in found.items():
        results = pa.concat_tables(tables)
        assert_same_rows(results, oracle.results_table(query), query)
        assert len(results), query


def test_a_scenario_writes_the_same_tuples_in_any_number_of_files(tmp_path: Path) -> None:
    workload = scenario("news", seed=2, rate=50.0, lateness_seconds=5.0)
    counts = [write_workload(workload, tmp_path / str(files), 30, files) for files in (1, 4)]
    assert counts[0] == counts[1]
    for stream in workload.streams:
        few, many = (sorted((tmp_path / name / stream.name).iterdir()) for name in ("1", "4"))
        assert [path.name for path in many] == [f"{number:05}.parquet" for number in range(4)]
        assert [path.stat().st_mtime for path in many] == sorted(path.stat().st_mtime for path in many)
        whole = pq.read_table(few[0])
        assert pa.concat_tables([pq.read_table(path) for path in many]).equals(whole)
        assert whole.equals(workload.table(stream.name, 0, 30))
        assert whole.num_rows == counts[0][stream.name]


def test_settings_can_be_texts() -> None:
    texts = {"seed": "4", "rate": "50", "shape": "star", "turned": "true", "streams": "3", "arrivals": "b-model"}
    workload = parsed_scenario("join", texts)
    same = scenario("join", seed=4, rate=50, shape="star", turned=True, streams=3, arrivals="b-model")
    assert workload.table("s1", 0, 20).equals(same.table("s1", 0, 20))


def wrong(make: Any) -> str:
    with pytest.raises(ConfigError) as found:
        make()
    return str(found.value)


def test_wrong_settings_are_refused_with_what_is_allowed() -> None:
    assert wrong(lambda: scenario("funnel")).startswith("the scenario is 'funnel'; allowed: 'ad_funnel', 'packets'")
    assert "Packets(router=...): there is no such option; allowed: 'seed'" in wrong(
        lambda: scenario("packets", router=3)
    )
    assert wrong(lambda: scenario("packets", router=3)).endswith("Hint: did you mean 'routers'?")
    assert "did you mean 'routers'" in wrong(lambda: parsed_scenario("packets", {"router": "3"}))
    assert (
        wrong(lambda: scenario("packets", routers=1)) == "Packets: routers is 1; it must be a whole number from 2 to 16"
    )
    assert wrong(lambda: scenario("news", rate="fast")) == "News: rate is 'fast'; it must be a number"
    assert "scenario 'news': rate is 'fast'; it must be a number" in wrong(
        lambda: parsed_scenario("news", {"rate": "fast"})
    )
    assert "'seed' is" in wrong(lambda: scenario("news", seed=-1)).replace("seed is", "'seed' is")
    assert "arrivals: pattern is 'bursts'; allowed: 'uniform'" in wrong(lambda: scenario("news", arrivals="bursts"))
    assert "rate is 0; it must be a number above 0" in wrong(lambda: scenario("news", rate=0))
    assert "keys is 'zipf' and shape is 'chain'" in wrong(lambda: scenario("join", keys="zipf"))
    assert "turned is 'yes'; allowed: 'true', 'false'" in wrong(lambda: parsed_scenario("join", {"turned": "yes"}))
    assert "the stream is 'r9'; allowed: 'r1', 'r2'" in wrong(lambda: scenario("packets").table("r9", 0, 1))


def test_workloads_of_ones_own_are_checked() -> None:
    arrivals = {"a": Arrivals(1), "b": Arrivals(1)}
    assert "the edge ('a', 'c')" in wrong(lambda: join_workload(arrivals, {("a", "c"): 0.1}, {"a": 1, "b": 1}))
    assert "the window of 'b' is 0" in wrong(lambda: join_workload(arrivals, {("a", "b"): 0.1}, {"a": 1}))
    assert "selectivity is 2" in wrong(lambda: join_workload(arrivals, {("a", "b"): 2}, {"a": 1, "b": 1}))
    stream = Stream("s", Follows("t", 0.5, 1.0), {})
    assert "stream 's' follows 't'; allowed: those before it, none" in wrong(lambda: Workload("w", (stream,)))
    twice = Stream("s", Arrivals(1), {})
    assert "stream 's' is there twice" in wrong(lambda: Workload("w", (twice, twice)))
    assert "each must name some of the places" in wrong(lambda: Orders(("a", "b"), ((0, 2),), Arrivals(1)))
    copies = Workload("w", (Stream("s", Arrivals(100), {"k": Copied("k")}),))
    assert "follows no other" in wrong(lambda: copies.table("s", 0, 1))


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    assert "is not empty\nHint: name one that is new" in wrong(lambda: write_workload(scenario("news"), tmp_path, 1))
    assert "seconds is 0" in wrong(lambda: write_workload(scenario("news"), tmp_path / "new", 0))
    assert "files is 0" in wrong(lambda: write_workload(scenario("news"), tmp_path / "new", 1, 0))


# -- the command --------------------------------------------------------------------------------------------------------------------


def test_the_command_writes_files_and_says_how_to_read_them(tmp_path: Path) -> None:
    out = tmp_path / "data"
    command = [
        "generate",
        "packets",
        "--out",
        str(out),
        "--seconds",
        "12",
        "--rate",
        "80",
        "--seed",
        "6",
        "--files",
        "3",
    ]
    answer = CliRunner().invoke(app, [*command, "--set", "routers=2", "--set", "skew=0.5"])
    assert answer.exit_code == 0, answer.output
    workload = scenario("packets", seed=6, rate=80.0, routers=2, skew=0.5)
    for name in ("r1", "r2"):
        wanted = workload.table(name, 0, 12)
        assert pq.read_table(out / name).equals(wanted)
        assert f"  {name}: {wanted.num_rows:,} tuples" in answer.output
        assert len([*(out / name).iterdir()]) == 3
    assert f"pyarrow.parquet.read_table('{out}/r1')" in answer.output
    assert "schema('ts timestamp, pid bigint, size bigint, destination bigint')" in answer.output
    assert "lateness='1 seconds'" in answer.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["funnel"], "the scenario is 'funnel'; allowed: 'ad_funnel', 'packets'"),
        (["packets", "--set", "router=3"], "Hint: did you mean 'routers'?"),
        (["packets", "--set", "routers"], "--set routers: there is no '='"),
        (["packets", "--set", "routers=many"], "routers is 'many'; it must be a whole number"),
        (["packets", "--rate", "-1"], "arrivals: rate is -1.0; it must be a number above 0"),
        (["packets", "--seconds", "0"], "seconds is 0.0; it must be a number above 0"),
        (["packets", "--files", "0"], "files is 0; it must be a whole number from 1"),
        (["packets", "--seed", "-1"], "seed is -1; it must be a whole number from 0 on"),
    ],
)
def test_the_command_refuses_what_is_wrong(tmp_path: Path, arguments: list[str], message: str) -> None:
    answer = CliRunner().invoke(app, ["generate", *arguments, "--out", str(tmp_path / "new")])
    assert answer.exit_code == 1
    assert message in answer.output
    assert not (tmp_path / "new").exists()


def test_many_overlapping_queries_have_six_join_graphs_and_others_all_differ() -> None:
    assert overlap.graphs(overlap.queries(64)) == 6
    different = overlap.different()
    assert overlap.graphs(different) == len(different) == 17
    for name, sql in different.items():
        session = dt.LocalSession()
        for stream in overlap.STREAMS:
            session.stream(stream, overlap.COLUMNS, "ts", rate=1.0)
        session.query(name, sql)  # every part hangs together, or it would be refused
