"""Workloads have the requested skew, selectivity and disorder, and give the same tuples for any batch cuts."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

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
    scenario,
)
from dovetail.workloads.arrivals import PATTERNS, SECOND
from dovetail.workloads.graphs import SHAPES
from dovetail.workloads.orders import all_orders

SMALL: dict[str, dict[str, Any]] = {"ad_funnel": {"rate": 200.0}, "news": {"lateness_seconds": 5.0}}


def micros(table: pa.Table, start: int = 0) -> NDArray[np.int64]:
    found: NDArray[np.int64] = table["ts"].cast(pa.int64()).to_numpy() - start
    return found


# -- the same tuples ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_tuples_do_not_depend_on_how_time_is_cut(name: str) -> None:
    whole, cut = (scenario(name, seed=5, **SMALL.get(name, {})) for _ in range(2))
    bounds = [0, 0.000001, 3.7, 3.700001, 20, 20, 61.5, 100]
    for stream in whole.streams:
        # Backwards, because earlier draws must not matter.
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


def test_seeds_and_streams_give_different_tuples() -> None:
    first, same, other = (scenario("join", seed=seed, streams=2) for seed in (1, 1, 2))
    assert first.table("s0", 0, 10).equals(same.table("s0", 0, 10))
    assert not first.table("s0", 0, 10).equals(other.table("s0", 0, 10))
    assert not first.table("s0", 0, 10).equals(first.table("s1", 0, 10))
    assert set(micros(first.table("s0", 0, 10))).isdisjoint(micros(first.table("s1", 0, 10)))


def test_drawn_blocks_are_evicted_and_not_pickled() -> None:
    workload = scenario("join", seed=1, streams=2, rate=20_000)
    small = len(pickle.dumps(workload))
    for second in range(20):
        workload.table("s0", second, second + 1)
    kept = workload._cache._blocks["s0"]
    assert len(kept) * workload.block < 60 * SECOND
    assert len(pickle.dumps(workload)) == small
    assert pickle.loads(pickle.dumps(workload)).table("s0", 3, 4).equals(workload.table("s0", 3, 4))  # noqa: S301


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
    """Return the fraction of pairs that match."""
    size = int(max(left.max(), right.max())) + 1
    matched = float(np.bincount(left, minlength=size).astype(float) @ np.bincount(right, minlength=size))
    return matched / (len(left) * len(right))


@pytest.mark.parametrize("wanted", [1.0, 0.78, 0.5, 0.26, 0.1, 0.003])
def test_a_matching_column_has_the_requested_selectivity(wanted: float) -> None:
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
    if shape in ("cycle", "clique"):  # edges are independent, and so are the two columns of a stream
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
    orders = Orders(streams, tuple(all_orders(3)), Arrivals(1), skew, gap=0.5).with_rate(Arrivals(300, "uniform"))
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
    # Keys that begin near the end may not have reached every stream.
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


def test_tuples_are_late_and_out_of_order_as_requested() -> None:
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
    assert late / arrived == pytest.approx(0.02 * 0.92, rel=0.1)  # late tuples of the last seconds have not arrived
    in_order = Workload("w", (Stream("s", Arrivals(1000), {}),), start=0)
    assert (np.diff(micros(in_order.table("s", 0, 10))) >= 0).all()
