"""Scenarios: queries with results, checked settings, tuples written to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dovetail as dt
from dovetail.errors import ConfigError
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle, assert_same_rows
from dovetail.workloads import (
    SCENARIOS,
    Arrivals,
    Copied,
    Follows,
    Orders,
    Stream,
    Workload,
    join_workload,
    overlap,
    parse_scenario,
    scenario,
    write_workload,
)

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
    workload = parse_scenario("join", texts)
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
    assert "did you mean 'routers'" in wrong(lambda: parse_scenario("packets", {"router": "3"}))
    assert (
        wrong(lambda: scenario("packets", routers=1)) == "Packets: routers is 1; it must be a whole number from 2 to 16"
    )
    assert wrong(lambda: scenario("news", rate="fast")) == "News: rate is 'fast'; it must be a number"
    assert "scenario 'news': rate is 'fast'; it must be a number" in wrong(
        lambda: parse_scenario("news", {"rate": "fast"})
    )
    assert "'seed' is" in wrong(lambda: scenario("news", seed=-1)).replace("seed is", "'seed' is")
    assert "arrivals: pattern is 'bursts'; allowed: 'uniform'" in wrong(lambda: scenario("news", arrivals="bursts"))
    assert "rate is 0; it must be a number above 0" in wrong(lambda: scenario("news", rate=0))
    assert "keys is 'zipf' and shape is 'chain'" in wrong(lambda: scenario("join", keys="zipf"))
    assert "turned is 'yes'; allowed: 'true', 'false'" in wrong(lambda: parse_scenario("join", {"turned": "yes"}))
    assert "the stream is 'r9'; allowed: 'r1', 'r2'" in wrong(lambda: scenario("packets").table("r9", 0, 1))


def test_custom_workloads_are_checked() -> None:
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


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    assert "is not empty\nHint: name one that is new" in wrong(lambda: write_workload(scenario("news"), tmp_path, 1))
    assert "seconds is 0" in wrong(lambda: write_workload(scenario("news"), tmp_path / "new", 0))
    assert "files is 0" in wrong(lambda: write_workload(scenario("news"), tmp_path / "new", 1, 0))


def test_many_overlapping_queries_have_six_join_graphs_and_others_all_differ() -> None:
    assert overlap.graphs(overlap.queries(64)) == 6
    different = overlap.different()
    assert overlap.graphs(different) == len(different) == 17
    for name, sql in different.items():
        session = dt.LocalSession()
        for stream in overlap.STREAMS:
            session.stream(stream, overlap.COLUMNS, "ts", rate=1.0)
        session.query(name, sql)  # refused unless every query is connected
