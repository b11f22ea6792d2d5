"""The tables of the docs are what the newest runs in benchmarks/results say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "20261101T000000Z", "20261102T000000Z"


def tables(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "tables.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def measured(root: Path, name: str, *runs: dict[str, Any]) -> None:
    folder = root / "benchmarks" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"runs": runs}))


def page(root: Path, table: str) -> Path:
    path = root / "docs" / "page.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"Before.\n\n<!-- table: {table} -->\n| nothing |\n<!-- end -->\n\nAfter.\n")
    return path


def test_tables_are_as_measured() -> None:
    done = tables("--check")
    assert (done.returncode, done.stdout) == (0, "tables: all as measured\n"), done.stdout + done.stderr


def test_a_table_that_differs_is_noticed_and_written(tmp_path: Path) -> None:
    row = {"kind": "local", "budget": "none", "queries": 300, "registered": 1.234, "planned": 2, "mb": 50.4}
    measured(tmp_path, f"registration-{OLD}", {**row, "queries": 3})
    measured(tmp_path, f"registration-{NEW}", row)
    path = page(tmp_path, "registration")
    assert tables("--check", str(tmp_path)).returncode == 1
    assert "| nothing |" in path.read_text()
    assert tables(str(tmp_path)).returncode == 0
    assert path.read_text() == (
        "Before.\n\n<!-- table: registration -->\n"
        "| session | budget | queries | registered, s | planned, s | first batch, s | MB |\n"
        "|---|---|---|---|---|---|---|\n"
        "| local | none | 300 | 1.23 | 2.00 | | 50 |\n\n"
        f"[The run of 2026-11-02](../benchmarks/results/registration-{NEW}.json).\n"
        "<!-- end -->\n\nAfter.\n"
    )
    assert tables("--check", str(tmp_path)).returncode == 0


def test_runs_of_the_same_thing_are_rounds_and_a_file_that_lacks_a_runner_is_passed_over(tmp_path: Path) -> None:
    ours = [{"runner": "dovetail", "workload": "3-way", "tuples_per_second": rate} for rate in (3e5, 1e5, 2.5e5)]
    theirs = [{"runner": "transport", "workload": "3-way", "tuples_per_second": rate} for rate in (4e5, 5e5, 9e5)]
    measured(tmp_path, f"spark-{OLD}", *ours, *theirs)
    measured(tmp_path, f"spark-{NEW}", *ours)
    measured(tmp_path, f"spark-latency-{NEW}", *ours, *theirs)
    path = page(tmp_path, "spark-transport")
    tables(str(tmp_path))
    assert "\n| 3-way | 300 / 100 / 250 | 400 / 500 / 900 | 0.50 | 0.36 |\n" in path.read_text()
    assert f"spark-{OLD}.json" in path.read_text()


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    page(tmp_path, "ordering")
    assert "no file ordering-*.json in" in tables(str(tmp_path)).stderr
    page(tmp_path, "gone")
    assert "there is no table 'gone'; there are engine-throughput," in tables(str(tmp_path)).stderr
