"""`dovetail check` and `explain` show plans; `check` compares engine and oracle, and finds a planted wrong result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app

SQL = "SELECT o.id, p.amount FROM orders o [RANGE 1 HOUR], payments p [RANGE 1 HOUR] WHERE o.id = p.id"
JOB = """
[streams.orders]
columns = "id bigint, at timestamp"
path = "nowhere"
format = "csv"
event_time = "at"
[streams.payments]
path = "payments.csv"
columns = "id bigint, at timestamp, amount double"
event_time = "at"
"""
GENERATED = """
[streams.impressions]
generator = "ad_funnel"
options = { rate = 100 }
[streams.clicks]
generator = "ad_funnel"
options = { rate = 100 }
[queries.seen]
sql = '''
SELECT i.ad_id FROM impressions i [RANGE 1 MIN], clicks c [RANGE 1 MIN]
WHERE i.ad_id = c.ad_id AND i.user_id = c.user_id'''
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text("id,at\n1,2026-03-02T09:00:00Z\n2,2026-03-02T09:10:00Z\n")
    Path("payments.csv").write_text("id,at,amount\n1,2026-03-02T09:05:00Z,40\n2,2026-03-02T12:00:00Z,1\n")
    Path("job.toml").write_text(JOB)
    Path("generated.toml").write_text(GENERATED)


def call(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, [*arguments])
    return answer.exit_code, answer.output


def test_a_check_shows_the_plan_and_compares_with_the_oracle() -> None:
    code, shown = call("check", "orders.csv", "payments.csv", "--query", SQL)
    assert code == 0
    assert "query query\n  input o: orders, range 1 h\n" in shown
    assert shown.endswith("query: 1 results, the same as the oracle's, over 2 of orders, 1 of payments\n")


def test_a_planted_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    push: Callable[..., dict[str, pa.Table]] = dt.LocalSession.push

    def lose(session: dt.LocalSession, batch: Any) -> dict[str, pa.Table]:
        return {name: table.slice(1) for name, table in push(session, batch).items()}

    monkeypatch.setattr(dt.LocalSession, "push", lose)
    code, shown = call("check", "orders.csv", "payments.csv", "--query", SQL)
    assert code == 1
    assert "query: the results differ from the oracle's over 2 of orders" in shown
    assert shown.endswith("1 missing, 0 unexpected\nmissing:\n  times  id  amount\n      1   1      40\n")


def test_a_check_for_scripts() -> None:
    code, shown = call("check", "generated.toml", "--json", "--sample", "100")
    found = json.loads(shown)
    assert code == 0
    assert found["plan"]["queries"]["seen"]["inputs"]["i"] == {"stream": "impressions", "window": "range 1 min"}
    assert found["oracle"]["seen"]["difference"] is None
    assert found["oracle"]["seen"]["results"] > 20
    assert found["sample"]["clicks"] >= 50


def test_queries_are_checked_against_the_columns_of_a_job_file_alone() -> None:
    code, shown = call("check", "job.toml", "--query", SQL)
    assert code == 0
    assert shown.endswith("Not compared with the oracle: only Spark can read orders.\n")
    code, shown = call("check", "job.toml", "--query", SQL.replace("p.amount", "p.amuont"), "--sample", "0")
    assert code == 2
    assert "Hint: did you mean 'amount'?" in shown


def test_a_plan_in_every_form() -> None:
    assert call("explain", "job.toml", "--query", SQL)[1].startswith("stream orders: event time at, lateness 0 s")
    assert call("explain", "job.toml", "--query", SQL, "--format", "mermaid")[1].startswith("flowchart LR\n")
    page = call("explain", "generated.toml", "--format", "html")[1]
    assert page.startswith("<!doctype html>")
    assert "<b>query seen</b>" in page
    assert json.loads(call("explain", "generated.toml", "--json")[1])["queries"]["seen"]["output"] == ["ad_id"]


def test_a_job_file_has_the_options_of_files_itself() -> None:
    assert call("explain", "job.toml", "orders.csv", "--query", SQL)[1] == (
        "got the job file 'job.toml' and other files\nHint: name either a job file or data files\n"
    )
    assert call("check", "job.toml", "--lateness", "5 s", "--query", SQL) == (
        2,
        "--lateness 5 s: a job file has these itself\nHint: write it into job.toml\n",
    )
