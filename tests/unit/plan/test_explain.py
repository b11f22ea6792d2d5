"""`explain` as text, dict and mermaid graph; tests/plans holds the expected texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from two_streams import TS, empty_session, table

import dovetail as dt

PLANS = Path(__file__).resolve().parents[2] / "plans"


def shop() -> dt.LocalSession:
    """Return a session with the streams of the queries in tests/plans."""
    session = dt.LocalSession()
    impressions = pa.schema([("ts", TS), ("ad_id", pa.int64()), ("user_id", pa.int32())])
    clicks = pa.schema([("ts", TS), ("ad_id", pa.int64()), ("user_id", pa.int64())])
    orders = pa.schema([("ts", TS), ("user_id", pa.int64()), ("amount", pa.decimal128(10, 2))])
    session.stream("impressions", impressions, "ts", rate=100)
    session.stream("clicks", clicks, "ts", lateness="90 seconds", rate=5)
    session.stream("orders", orders, "ts", lateness="1500 ms", rate=0.5)
    return session


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.txt")), ids=lambda path: path.stem)
def test_text_is_as_expected(path: Path) -> None:
    sql, expected = path.read_text().split("\n----\n")
    session = shop()
    session.query(path.stem, sql)
    assert session.explain().text == expected.rstrip("\n")
    assert dt.LocalSession.restore(session.snapshot()).explain().text == expected.rstrip("\n")


def test_forced_orders_are_shown() -> None:
    session = shop()
    session.query("funnel", (PLANS / "funnel.txt").read_text().split("\n----\n")[0], {"i": ("o", "c")})
    assert "  probe orders: weave; forced for i\n" in str(session.explain())
    explained: Any = session.explain().to_dict()
    assert explained["queries"]["funnel"]["forced"] == ["i"]


def test_there_are_plans_to_compare() -> None:
    assert {"funnel", "latest"} <= {path.stem for path in PLANS.glob("*.txt")}


def test_dict_describes_streams_and_paths() -> None:
    session = shop()
    session.query("funnel", (PLANS / "funnel.txt").read_text().split("\n----\n")[0])
    explained: Any = session.explain().to_dict()
    assert (explained["evaluation"], explained["expiration"]) == ("lazy", "lazy")
    assert explained["streams"]["clicks"] == {
        "event_time": "ts",
        "lateness": "90 s",
        "rate": 5,
        "used_by": ["funnel.c"],
    }
    query = explained["queries"]["funnel"]
    assert query["inputs"]["o"] == {"stream": "orders", "window": "range 1 h"}
    assert query["output"] == ["ad_id", "user_id", "clicked_at", "amount"]
    assert set(query["paths"]) == {"i", "c", "o"}
    for driver, stages in query["paths"].items():
        assert stages[0]["alias"] == driver
        assert sorted(stage["alias"] for stage in stages) == ["c", "i", "o"]


def undeclared(budget: dt.Budget | None = None, rates: Sequence[float | None] = (None, None)) -> dt.LocalSession:
    """Return a session with a query that would produce millions of rows per second at 1 tuple per second."""
    session = dt.LocalSession(budget)
    for name, rate in zip("abc", (*rates, 7), strict=True):
        session.stream(name, pa.schema([("ts", TS), ("k", pa.int64()), ("v", pa.int64())]), "ts", rate=rate)
    session.selectivity("a.k = b.k", 0.5)  # of streams; `x` is an alias
    session.query(
        "q",
        "SELECT x.v FROM a x [RANGE 40 DAYS], b [RANGE 30 DAYS], c [RANGE 20 DAYS]"
        " WHERE x.k = b.k AND b.v = c.v AND x.v < c.v",
    )
    return session


def test_without_rates_nothing_is_expected_in_numbers() -> None:
    for budget in (None, dt.Budget(memory_bytes=1e15)):
        explanation = undeclared(budget).explain()
        text = explanation.text
        assert "stream a: event time ts, lateness 0 s, rate not declared; used by q.x" in text
        assert "stream c: event time ts, lateness 0 s, rate 7/s declared; used by q.c" in text
        for unit in ("rows/s", "expected", "cost 1", "cost 2"):
            assert unit not in text, unit
        assert budget or "the same cost)" in text
        assert budget or (
            "  declared: selectivity 0.5 of x, b\n"
            "  assumed: rate 1/s of x, b; selectivity 0.01 of b.v = c.v; selectivity 0.3 of x.v < c.v\n" in text
        )
    assert "at the assumed rates" in text
    assert "rate of a, b unknown, 1/s assumed: loads are not shown" in text
    assert "600" not in explanation.mermaid()
    basis = undeclared().explain().to_dict()["queries"]["q"]["basis"]
    assert basis["rates"]["x"] == {"per_second": 1.0, "basis": "assumed"}
    assert basis["rates"]["c"] == {"per_second": 7, "basis": "declared"}


def test_with_rates_costs_are_shown_and_selectivities_that_are_assumed() -> None:
    text = undeclared(rates=(2, 3)).explain().text
    assert "rows expected" in text
    assert "  assumed: selectivity 0.01 of b.v = c.v; selectivity 0.3 of x.v < c.v\n" in text


def test_measured_rates_are_shown() -> None:
    session = empty_session()
    session.query("q", "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k")
    session.push({"a": table(*((second / 4, 1, "a") for second in range(17)))})
    assert "stream a: event time ts, lateness 1 s, rate not declared, 4.25/s measured; used by q.a" in str(
        session.explain()
    )
    restored = dt.LocalSession.restore(session.snapshot())
    assert "measured" not in str(restored.explain()).splitlines()[0]
    restored.push({"a": table((5, 1, "a"), (6, 1, "a"))})
    assert ", 1/s measured;" in str(restored.explain()).splitlines()[0]


def test_mermaid_graph_is_well_formed() -> None:
    session = shop()
    for path in PLANS.glob("*.txt"):
        session.query(f'{path.stem} "quoted" [x', path.read_text().split("\n----\n")[0])
    picture = str(session.explain().mermaid())
    lines = picture.splitlines()
    assert lines[0] == "flowchart LR"
    opened = 0
    for line in lines:
        opened += line.strip().startswith("subgraph ") - (line.strip() == "end")
        assert opened in (0, 1)
        assert line.count('"') % 2 == 0
        unquoted = re.sub(r'"[^"]*"', "", line)
        for left, right in ("[]", "()"):
            assert unquoted.count(left) == unquoted.count(right), line
    assert opened == 0
    assert sum(line.strip().startswith("subgraph ") for line in lines) == len(list(PLANS.glob("*.txt")))
    defined = set(re.findall(r"^\s*(\w+)[\[(]", picture, re.MULTILINE))
    used = set(re.findall(r"^\s*(\w+) -- ", picture, re.MULTILINE)) | set(
        re.findall(r"--> (\w+)$", picture, re.MULTILINE)
    )
    assert used
    assert used <= defined
    assert "#quot;quoted#quot;" in picture


def test_explain_without_queries() -> None:
    assert str(empty_session().explain()).splitlines() == [
        "stream a: event time ts, lateness 1 s, rate not declared; used by no query",
        "stream b: event time ts, lateness 1 s, rate not declared; used by no query",
    ]
    assert dt.LocalSession().explain().text == "no streams"


def test_another_evaluation_than_the_default_is_shown_after_the_streams() -> None:
    session = empty_session(dt.Config(evaluation="eager"))
    assert str(session.explain()).splitlines()[-1] == "evaluation eager, expiration lazy"


def test_an_order_of_the_same_cost_is_said_to_have_it() -> None:
    session = dt.LocalSession()
    for name in "abc":
        session.stream(name, pa.schema([("ts", TS), ("k", pa.int64())]), event_time="ts")
    session.query("q", "SELECT a.k FROM a [RANGE 9 s], b [RANGE 9 s], c [RANGE 9 s] WHERE a.k = b.k AND b.k = c.k")
    text = str(session.explain())
    assert "  new a (next best order c, b: the same cost)\n" in text
    assert "times the cost" not in text
    session.drop_query("q")
    session.selectivity("a.k = b.k", 0.001)
    session.query("q", "SELECT a.k FROM a [RANGE 9 s], b [RANGE 9 s], c [RANGE 9 s] WHERE a.k = b.k AND a.ts < c.ts")
    assert re.search(r"  new a \(next best order c, b: [\d.e+]+ times the cost\)\n", str(session.explain()))
