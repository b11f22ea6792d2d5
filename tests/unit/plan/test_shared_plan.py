"""A shared plan validates its edges and can be shown as text, dict and mermaid graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dovetail as dt
from dovetail.plan.explain.describe import explain_shared
from dovetail.plan.explain.text import format_bytes
from dovetail.plan.shared_plan import JoinInput, Load, PlanSource, SharedPlan

PLANS = Path(__file__).resolve().parents[2] / "plans" / "global"


def query(*edges: str, window: float = 600.0) -> dt.JoinGraph:
    rates = {"views": 50.0, "clicks": 5.0, "orders": 1.0, "returns": 0.1}
    shares = {"views-clicks": 1e-5, "clicks-orders": 2e-4, "orders-returns": 1e-3}
    names = sorted({name for edge in edges for name in edge.split("-")})
    pairs = {tuple(edge.split("-")): shares[edge] for edge in edges}
    return dt.JoinGraph({name: rates[name] for name in names}, pairs, dict.fromkeys(names, window))  # type: ignore[arg-type]


QUERIES = {
    "funnel": query("views-clicks", "clicks-orders"),
    "returned": query("views-clicks", "clicks-orders", "orders-returns"),
    "fresh": query("views-clicks", "clicks-orders", window=60),
}
BUDGET = dt.Budget(cpu_ms_per_second=10, memory_bytes=8 << 20)


@pytest.fixture(scope="module")
def plan() -> SharedPlan:
    return dt.optimizer.plan_queries(QUERIES, BUDGET)


def test_the_plan_is_shown_as_expected(plan: SharedPlan) -> None:
    assert f"{explain_shared(plan)}\n" == (PLANS / "plan.txt").read_text(encoding="utf-8")
    assert f"{explain_shared(plan).mermaid()}\n" == (PLANS / "plan.mermaid").read_text(encoding="utf-8")


def test_the_plan_is_plain_data(plan: SharedPlan) -> None:
    found = explain_shared(plan).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu_ms_per_second"] == {"used": plan.load.cpu, "limit": 10}
    assert found["memory_bytes"]["limit"] == 8 << 20
    assert found["queries"]["fresh"]["narrower_windows"] == {"views": 60, "clicks": 60, "orders": 60}
    assert sum(
        node["cpu_ms_per_second"] for kind in ("windows", "joins", "results") for node in found[kind].values()
    ) == (pytest.approx(plan.load.cpu))
    assert explain_shared(dt.optimizer.plan_queries(QUERIES)).to_dict()["cpu_ms_per_second"]["limit"] is None


def test_an_explanation_shows_its_text(plan: SharedPlan) -> None:
    explanation = explain_shared(plan)
    assert repr(explanation) == str(explanation) == explanation.text
    assert explanation._repr_html_().startswith("<pre>")


def test_bytes_are_readable() -> None:
    assert [format_bytes(value) for value in (0, 1023, 1536, 3 << 30, 5e15)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3 GiB",
        "4547 TiB",
    ]


def test_nodes_below_a_query(plan: SharedPlan) -> None:
    assert [node.id for node in plan.below("funnel")] == [
        "window:clicks",
        "window:orders",
        "window:views",
        "join:clicks+orders",
        "state:clicks+orders",
        "join:funnel",
        "answer:funnel",
    ]
    assert plan.top("returned").id == "join:returned"
    assert plan.top("fresh").id == "join:funnel"
    with pytest.raises(dt.PlanError, match="no query 'gone'; it has 'funnel', 'returned', 'fresh'"):
        plan.answer("gone")


def test_paths_use_the_aliases_of_the_query(plan: SharedPlan) -> None:
    assert plan.paths(plan.top("funnel"), "fresh") == (
        (("clicks", "orders"), ("views",)),
        (("views",), ("clicks", "orders")),
    )
    renamed = dt.optimizer.NamedGraph(
        dt.JoinGraph({"v": 50.0, "c": 5.0}, {("v", "c"): 1e-5}, {"v": 60.0, "c": 60.0}),
        {"v": PlanSource("views", "views"), "c": PlanSource("clicks", "clicks")},
        (),
        (),
    )
    found = dt.optimizer.plan_queries({"q": renamed})
    assert found.paths(found.top("q"), "q") == ((("v",), ("c",)), (("c",), ("v",)))


def swapped(items: tuple[Any, ...], place: int, **changes: Any) -> tuple[Any, ...]:
    return (*items[:place], replace(items[place], **changes), *items[place + 1 :])


Change = Callable[[SharedPlan], dict[str, Any]]
BROKEN: dict[str, Change] = {
    "an AND-node has two or more incoming edges": lambda p: {
        "joins": swapped(p.joins, 0, inputs=p.joins[0].inputs[:1], orders=((),))
    },
    "which is neither a window nor the result of an earlier join": lambda p: {"joins": p.joins[::-1]},
    "two inputs of join .* have the same source": lambda p: {
        "joins": swapped(p.joins, 0, inputs=(p.joins[0].inputs[0],) * 3)
    },
    "has windows for none; its sources are": lambda p: {"joins": swapped(p.joins, 0, window_seconds={})},
    "must name, for each input, every other input once": lambda p: {"joins": swapped(p.joins, 0, orders=((0,), (1,)))},
    "two joins have the same output": lambda p: {"joins": swapped(p.joins, 1, output=p.joins[0].output)},
    "which is not a result of this join": lambda p: {"joins": swapped(p.joins, 0, output="nowhere")},
    "are used for more than one node": lambda p: {"windows": (*p.windows, p.windows[0])},
    "has no join that produces it": lambda p: {"results": (*p.results, replace(p.results[0], id="orphan"))},
    "and its join have different sources": lambda p: {"results": swapped(p.results, 0, sources=("views",))},
    "which is not materialized": lambda p: {"results": swapped(p.results, 0, is_materialized=False)},
    "is read by no join and answers no query": lambda p: {
        "answers": tuple(answer for answer in p.answers if answer.query != "returned")
    },
    "is read by no join$": lambda p: {"windows": (*p.windows, replace(p.windows[0], id="window:idle"))},
    "window 'window:clicks' keeps 'clicks' for 9 s; join 'join:clicks.orders', which reads it, needs 600 s": lambda p: {
        "windows": swapped(p.windows, 0, window_seconds=9.0)
    },
    "a query has two answers": lambda p: {"answers": (*p.answers, p.answers[0])},
    "which is not a result$": lambda p: {"answers": swapped(p.answers, 0, result="window:views")},
    "which answers it, have different sources": lambda p: {
        "answers": swapped(p.answers, 0, window_seconds={"views": 1.0})
    },
    "are missing from the plan's sources": lambda p: {"sources": dict(list(p.sources.items())[1:])},
    "keeps 'views' for 600 s; query 'funnel', which reads it, needs 900 s": lambda p: {
        "answers": swapped(p.answers, 0, window_seconds={**p.answers[0].window_seconds, "views": 900.0})
    },
    "keeps 'clicks' for 5 s; join 'join:funnel', which reads it, needs 600 s": lambda p: {
        "results": swapped(p.results, 0, window_seconds={**p.results[0].window_seconds, "clicks": 5.0})
    },
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_plan_that_breaks_a_rule_is_refused(plan: SharedPlan, problem: str) -> None:
    with pytest.raises(dt.PlanError, match=problem):
        replace(plan, **BROKEN[problem](plan))


def test_a_join_reports_its_kind(plan: SharedPlan) -> None:
    assert {join.kind for join in plan.joins} == {"binary"}
    assert plan.top("funnel").inputs[0] == JoinInput("state:clicks+orders", ("clicks", "orders"))
    apart = dt.optimizer.plan_queries(QUERIES, None, "naive")
    assert {join.kind for join in apart.joins} == {"mjoin"}
    assert "returned/join:returned" in {join.id for join in apart.joins}


def test_loads_are_compared_to_nine_digits() -> None:
    assert Load(1, 1).fits(Load(1, 1 - 1e-12))
    assert not Load(1, 1).fits(Load(1, 1 - 1e-6))
    assert not Load(2, 1).fits(Load(1, 1))
