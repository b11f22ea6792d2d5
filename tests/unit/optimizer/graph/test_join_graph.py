"""A join graph validates its input, reports its shape, and sizes joins inside and outside classes of equal columns."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.errors import PlanError

ABC: dict[str, Any] = {
    "rates": {"A": 10.0, "B": 20.0, "C": 5.0},
    "selectivities": {("A", "B"): 0.1, ("B", "C"): 0.5},
    "windows": {"A": 10.0, "B": 10.0, "C": 60.0},
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rates": {}}, "rates is empty"),
        ({"rates": [1, 2]}, r"rates is \[1, 2\]; expected a mapping"),
        ({"rates": {"A": 0, "B": 1, "C": 1}}, r"rates\['A'\] is 0; it must be a finite number above 0"),
        ({"rates": {"A": -1.5, "B": 1, "C": 1}}, r"rates\['A'\] is -1.5"),
        ({"rates": {"A": nan, "B": 1, "C": 1}}, r"rates\['A'\] is nan"),
        ({"rates": {"A": True, "B": 1, "C": 1}}, r"rates\['A'\] is True"),
        ({"rates": {"A": "10", "B": 1, "C": 1}}, r"rates\['A'\] is '10'"),
        ({"windows": {"A": 10, "B": 0, "C": 1}}, r"windows\['B'\] is 0; it must be a finite number above 0"),
        ({"windows": {"A": 10, "B": inf, "C": 1}}, r"windows\['B'\] is inf"),
        ({"windows": {"A": 10, "B": 1}}, "windows has no value for 'C'; it must have one for each of 'A', 'B', 'C'"),
        ({"windows": {"A": 1, "B": 1, "C": 1, "D": 1}}, r"windows\['D'\] names 'D'; the inputs in rates are"),
        (
            {"windows": {"A": 1e308, "B": 1, "C": 1}},
            "'A' has rate 10.0 and window 1e[+]308: that window would hold inf",
        ),
        ({"selectivities": {("A", "B"): 0, ("B", "C"): 1}}, r"selectivities\[\('A', 'B'\)\] is 0; it must be above 0"),
        ({"selectivities": {("A", "B"): 1.5, ("B", "C"): 1}}, "is 1.5; it must be above 0 and at most 1"),
        ({"selectivities": {("A", "B"): nan, ("B", "C"): 1}}, "is nan; it must be above 0 and at most 1"),
        ({"selectivities": {("A", "B"): -0.1, ("B", "C"): 1}}, "is -0.1; it must be above 0 and at most 1"),
        ({"selectivities": {("A", "D"): 0.5}}, r"selectivities\[\('A', 'D'\)\] names 'D'; the inputs in rates are"),
        ({"selectivities": {("A", "A"): 0.5}}, r"joins \('A', 'A'\) to itself"),
        ({"selectivities": {frozenset("A"): 0.5}}, "to itself"),
        ({"selectivities": {("A", "B", "C"): 0.5}}, "the key must be a pair of inputs"),
        ({"selectivities": {"AB": 0.5}}, "the key must be a pair of inputs"),
        ({"selectivities": {("A", "B"): 0.5, ("B", "A"): 0.4}}, "0.5 the other way round; give it once"),
        ({"selectivities": {("A", "B"): 0.1}}, "no edge leads from 'A', 'B' to 'C'; the graph must be connected"),
        ({"selectivities": {}}, "no edge leads from 'A' to 'B', 'C'"),
        ({"conditions": {("A", "C"): 2.0}}, r"conditions\[\('A', 'C'\)\] is 2.0"),
        ({"selectivities": {("A", "B"): 1}, "conditions": {("B", "C"): 0.5}}, "no edge leads from 'A', 'B' to 'C'"),
        ({"distinct": {"A": 0.5, "B": 1}}, r"distinct\['A'\] is 0.5; it must be finite and at least 1"),
        ({"distinct": {"A": 5, "D": 1}}, r"classes\[0\] names 'D'"),
        ({"classes": [("A", "D")]}, r"classes\[0\] names 'D'"),
        ({"classes": [("A",)]}, r"classes\[0\] is 'A'; a common key has at least two inputs"),
        ({"classes": "AB"}, "classes is 'AB'; expected groups of inputs"),
        ({"classes": ["AB"]}, r"classes\[0\] is 'AB'; expected a group"),
        ({"classes": [("A", "C")]}, r"'A' of classes\[0\] has no distinct count"),
        ({"classes": [("A", "B")], "distinct": {"A": 5}}, r"'B' of classes\[0\] has no distinct count"),
        ({"classes": [("A", "B")], "distinct": {"A": 5, "B": 5, "C": 5}}, r"distinct\['C'\] does not name an input of"),
    ],
)
def test_wrong_graphs_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as raised:
        dt.JoinGraph(**{**ABC, **changed})
    assert str(raised.value).startswith("JoinGraph: ")


def test_positions_and_spellings() -> None:
    by_keyword = dt.JoinGraph(**ABC)
    int64: Any = np.int64
    spelled = {frozenset("BA"): 0.1, frozenset("BC"): np.float64(0.5)}
    assert dt.JoinGraph({"A": int64(10), "B": 20, "C": 5}, spelled, ABC["windows"]) == by_keyword
    twice = {("A", "B"): 0.1, ("B", "A"): 0.1, ("C", "B"): 0.5}
    assert dt.JoinGraph(ABC["rates"], twice, ABC["windows"]) == by_keyword


def test_a_graph_copies_its_rates_and_is_immutable() -> None:
    rates = dict(ABC["rates"])
    graph = dt.JoinGraph(rates, ABC["selectivities"], ABC["windows"])
    rates["A"] = 0.0
    assert graph.rates["A"] == 10.0
    with pytest.raises(AttributeError):
        graph.rates = rates  # type: ignore[misc]


def shaped(count: int, *pairs: str, **more: Any) -> str:
    names = "ABCDEF"[:count]
    edges = {frozenset(pair): 0.5 for pair in pairs}
    return dt.JoinGraph(dict.fromkeys(names, 1.0), edges, dict.fromkeys(names, 1.0), **more).shape


def test_shapes() -> None:
    assert shaped(1) == "linear"
    assert shaped(2, "AB") == "linear"
    assert shaped(3, "AB", "BC") == "linear"
    assert shaped(3, "AB", "BC", "AC") == "complete"
    assert shaped(4, "CA", "AB", "BD") == "linear"
    assert shaped(4, "AB", "AC", "AD") == "star"
    assert shaped(5, "AB", "AC", "AD", "DE") == "acyclic"
    assert shaped(4, "AB", "BC", "CD", "DA") == "cyclic"
    assert shaped(4, "AB", "BC", "CD", "DA", "AC", "BD") == "complete"
    assert shaped(3, distinct={"A": 5, "B": 6, "C": 7}) == "complete"
    assert shaped(3, "AB", "BC", classes=[("A", "B"), ("B", "C")]) == "linear"
    assert shaped(3, "AB", "BC", conditions={("A", "C"): 0.5}) == "complete"


def test_extension_follows_appendix_a_inside_a_class() -> None:
    # Table 5 of Golab and Özsu: 1/max(min(500, 50), 40) of the third window's 200 tuples.
    graph = dt.JoinGraph(
        {"1": 10, "2": 1, "3": 1, "4": 3},
        {},
        {"1": 100, "2": 100, "3": 200, "4": 100},
        {"1": 500, "2": 50, "3": 40, "4": 5},
    )
    assert graph.extension(["1"], "2") == pytest.approx(100 / 500)
    assert graph.extension(["1", "2"], "3") == pytest.approx(200 / 50)
    assert graph.extension(["3", "4"], "1") == pytest.approx(1000 / 500)
    assert graph.connected(["3"], "4")


def test_classes_and_edges_multiply_and_conditions_do_not_connect() -> None:
    graph = dt.JoinGraph(
        {"A": 1, "B": 2, "C": 3},
        {("B", "C"): 0.5},
        dict.fromkeys("ABC", 10),
        distinct={("A", 0): 4, ("B", 0): 5, ("A", 1): 2, ("B", 1): 10},
        classes=[("A", "B"), ("A", "B")],
        conditions={("A", "C"): 0.25, ("A", "B"): 0.5},
    )
    assert graph.extension(["A"], "B") == pytest.approx(20 / 5 / 10 * 0.5)
    assert graph.extension(["A", "B"], "C") == pytest.approx(30 * 0.5 * 0.25)
    assert not graph.connected(["A"], "C")
    assert dt.optimizer.order_probes(graph)["A"] == ("B", "C")


def test_distinct_counts_from_selectivities() -> None:
    names = {"A": 1, "B": 1, "C": 1}
    graph = dt.JoinGraph(names, {("A", "B"): 0.01, ("B", "C"): 0.001}, names, classes=[("A", "B", "C")])
    assert graph.distinct == pytest.approx({("A", 0): 100, ("B", 0): 100, ("C", 0): 1000})
    assert graph.selectivity("A", "C") == pytest.approx(0.001)  # implied
    assert graph.conditions == {}
    # No distinct counts give max(A, B) = max(B, C) = 100 and max(A, C) = 1,000; each edge still keeps its own selectivity.
    edges = {("A", "B"): 0.01, ("B", "C"): 0.01, ("A", "C"): 0.001}
    graph = dt.JoinGraph(names, edges, names, classes=[("A", "B", "C")])
    for (first, second), value in edges.items():
        assert graph.selectivity(first, second) == pytest.approx(value)


def test_a_changed_copy_is_the_graph_with_the_change() -> None:
    names = {"A": 1.0, "B": 1.0, "C": 1.0}
    edges = {("A", "B"): 0.01, ("B", "C"): 0.01, ("A", "C"): 0.001}
    for graph in (dt.JoinGraph(names, edges, names), dt.JoinGraph(names, edges, names, classes=[("A", "B", "C")])):
        faster = replace(graph, rates={"A": 2.0, "B": 1.0, "C": 1.0})
        assert faster.extension(["B", "C"], "A") == pytest.approx(2 * graph.extension(["B", "C"], "A"))
        assert replace(graph) == graph
    assert dt.JoinGraph(names, edges, names, {}) == dt.JoinGraph(names, edges, names)


def test_declared_distinct_counts_override_selectivities_inside_a_class() -> None:
    names = {"A": 1, "B": 1, "C": 1}
    edges = {("A", "B"): 0.5, ("B", "C"): 0.5}
    graph = dt.JoinGraph(names, edges, names, {"A": 10, "B": 20}, [("A", "B")])
    assert graph.selectivity("A", "B") == pytest.approx(1 / 20)
    assert graph.selectivity("B", "C") == 0.5
