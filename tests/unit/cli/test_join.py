"""`dovetail join` prints results and what was dropped, or writes them to a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from dovetail.cli.main import app

ORDERS = (
    "order_id,placed_at,customer\n1,2026-03-02T09:00:00Z,ann\n2,2026-03-02T09:10:00Z,\n3,2026-03-02T09:20:00Z,cleo\n"
)
PAYMENTS = "order_id,paid_at,amount\n1,2026-03-02T09:05:00Z,40\n2,2026-03-02T09:12:00Z,25.5\n9,,1\n"
QUERY = """SELECT o.order_id, o.customer, p.amount, p.paid_at - o.placed_at AS after
FROM orders o [RANGE 1 HOUR], payments p [RANGE 1 HOUR] WHERE o.order_id = p.order_id;"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text(ORDERS)
    Path("payments.csv").write_text(PAYMENTS)
    Path("paid.sql").write_text(QUERY)


def join(*arguments: str) -> tuple[int, str, str]:
    answer = CliRunner().invoke(app, ["join", "orders.csv", "payments.csv", *arguments])
    return answer.exit_code, answer.stdout, answer.stderr


def test_results_are_shown_with_what_was_dropped() -> None:
    code, shown, messages = join("--sql", "paid.sql")
    assert (code, messages) == (0, "")
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[0].split() == ["order_id", "customer", "amount", "after"]
    assert sorted(line.split() for line in lines[1:3]) == [
        ["1", "ann", "40.0", "0:05:00"],
        ["2", "NULL", "25.5", "0:02:00"],
    ]
    assert lines[3].startswith("2 results, from 6 rows in ")
    assert lines[4:] == ["payments: 1 of 3 rows have no event time in 'paid_at' and were dropped"]


def test_only_some_rows_are_shown() -> None:
    _, shown, _ = join("--sql", "paid.sql", "--rows", "1")
    assert len(shown.splitlines()) == 4
    assert "2 results (1 shown), from 6 rows" in shown


def test_results_in_a_file_and_a_summary_for_scripts() -> None:
    code, shown, _ = join("--query", QUERY.rstrip(";"), "--out", "paid.parquet", "--json")
    assert code == 0
    summary = json.loads(shown)
    assert (summary["results"], summary["out"]) == (2, "paid.parquet")
    assert summary["streams"]["payments"] == {
        "rows": 3,
        "late": 0,
        "lateness_needed": 0.0,
        "without_event_time": 1,
    }
    assert sorted(parquet.read_table("paid.parquet")["order_id"].to_pylist()) == [1, 2]


def test_a_file_without_results_has_its_columns() -> None:
    code, _, messages = join("--query", QUERY.replace(";", " AND p.amount > 99"), "--out", "none.csv")
    assert (code, Path("none.csv").read_text()) == (0, '"order_id","customer","amount","after"\n')
    assert messages.startswith("0 results in none.csv, from 6 rows")


def test_late_rows_are_counted_with_the_lateness_that_would_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cli.files.data_file.PIECE_ROWS", 1)
    Path("orders.csv").write_text(ORDERS + "4,2026-03-02T09:19:30Z,dan\n")
    _, shown, _ = join("--sql", "paid.sql")
    message = "orders: 1 of 4 rows came too late and were dropped; --lateness orders='30 s' would have kept them"
    assert message in shown.splitlines()
    assert "too late" not in join("--sql", "paid.sql", "--lateness", "orders=30 s")[1]


def test_standard_output_gets_the_results_alone() -> None:
    code, shown, messages = join("--sql", "paid.sql", "--out", "-", "--format", "jsonl")
    assert code == 0
    assert sorted(json.loads(line)["order_id"] for line in shown.splitlines()) == [1, 2]
    assert messages.startswith("2 results, from 6 rows")
