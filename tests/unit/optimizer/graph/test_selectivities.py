"""Selectivities are fitted to the measured probe counts."""

from __future__ import annotations

import pytest

import dovetail as dt
from dovetail.optimizer.adapt.reorder import measured_graph
from dovetail.optimizer.graph.from_query import declared_rates
from dovetail.optimizer.graph.selectivities import PairSelectivities, PredicateIndex
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.stats.probes import ProbeCounts, ProbeKey, QueryStats
from dovetail.workloads import drift

STREAMS = {name: StreamSchema(name, drift.COLUMNS, "ts") for name in "abcd"}


def found(selectivity: float, probes: float = 1000.0) -> ProbeCounts:
    return ProbeCounts(probes, probes * 100, probes * 100 * selectivity)


def fitted(query: JoinQuery, steps: dict[ProbeKey, ProbeCounts]) -> dt.JoinGraph:
    rates, shares = declared_rates(query, STREAMS), PairSelectivities(PredicateIndex.of(query), {})
    return measured_graph(query, rates, shares, QueryStats({}, dict.fromkeys(query.aliases, 100.0), steps))


def test_single_edges_have_the_measured_selectivity() -> None:
    query = parse_query(
        "q", "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.x = b.x AND b.y = c.y", STREAMS
    )
    steps = {(frozenset("a"), "b"): found(0.2), (frozenset("ab"), "c"): found(0.005)}
    graph = fitted(query, steps)
    assert graph.selectivity("a", "b") == pytest.approx(0.2)
    assert graph.selectivity("b", "c") == pytest.approx(0.005)


def test_several_edges_have_the_measured_product() -> None:
    sql = "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.x = b.x AND b.y = c.y AND a.y + 1 = c.x"
    query = parse_query("q", sql, STREAMS)
    steps = {(frozenset("a"), "b"): found(0.2), (frozenset("ab"), "c"): found(0.0001)}
    graph = fitted(query, steps)
    assert graph.extension("ab", "c") / 100 == pytest.approx(0.0001)


def test_a_common_key_has_the_measured_selectivities() -> None:
    sql = "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.x = b.x AND b.x = c.x"
    query = parse_query("q", sql, STREAMS)
    steps = {
        (frozenset("a"), "b"): found(0.01),
        (frozenset("ab"), "c"): found(0.002),
        (frozenset("c"), "b"): found(0.002),
    }
    graph = fitted(query, steps)
    assert graph.selectivity("a", "b") == pytest.approx(0.01)
    assert graph.selectivity("c", "b") == pytest.approx(0.002)
    assert graph.extension("ab", "c") / 100 == pytest.approx(0.002)


def test_few_probes_are_not_trusted() -> None:
    query = parse_query("q", "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.x = b.x", STREAMS)
    steps = {(frozenset("a"), "b"): found(0.5, probes=10)}
    graph = fitted(query, steps)
    assert graph.selectivity("a", "b") == 0.01
