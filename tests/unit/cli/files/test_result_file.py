"""Results are written in three formats; an incomplete file never has the final name."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import dovetail as dt
from dovetail.cli.files.result_file import ResultFile

TABLE = pa.table(
    {
        "text": ['a"b\\c', "\n\t\x01é", None, ""],
        "number": [1, None, -3, 4],
        "double": [0.1, float("nan"), float("inf"), None],
        "flag": [True, False, None, True],
        "at": pa.array([0, 1_500_000, None, 2], pa.timestamp("us", "UTC")),
        "after": pa.array([1, 2_000_000, None, 4], pa.duration("us")),
        "list": [[1], None, [], [2, 3]],
    }
)


def test_json_lines_are_json(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(str(path)) as target:
        target.write(TABLE.slice(0, 0))
        target.write(TABLE.slice(0, 1))
        target.write(TABLE.slice(1))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert target.rows == 4
    assert [row["text"] for row in rows] == TABLE["text"].to_pylist()
    assert [row["number"] for row in rows] == [1, None, -3, 4]
    assert [row["double"] for row in rows] == [0.1, None, None, None]
    assert [row["flag"] for row in rows] == [True, False, None, True]
    assert rows[1]["at"] == "1970-01-01 00:00:01.500000Z"
    assert [row["after"] for row in rows] == [1, 2_000_000, None, 4], "in microseconds"
    assert [row["list"] for row in rows] == [[1], None, [], [2, 3]]


def test_parquet_keeps_types_and_csv_is_read_back(tmp_path: Path) -> None:
    with ResultFile(str(tmp_path / "out.parquet")) as target:
        target.write(TABLE)
    dt.testing.assert_same_rows(parquet.read_table(tmp_path / "out.parquet"), TABLE)
    with ResultFile(str(tmp_path / "out"), "csv") as target:
        target.write(TABLE.drop_columns(["list"]))
    assert csv.read_csv(tmp_path / "out")["after"].to_pylist() == [1, 2_000_000, None, 4]


def test_a_failed_run_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with ResultFile(str(tmp_path / "out.csv")) as target:
            target.write(TABLE.select(["number"]))
            assert len(list(tmp_path.iterdir())) == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_columns_that_csv_lacks(tmp_path: Path) -> None:
    with pytest.raises(dt.SchemaError, match=r"do not fit CSV.*\nHint: write --format parquet"):  # noqa: SIM117
        with ResultFile(str(tmp_path / "out.csv")) as target:
            target.write(TABLE)


@pytest.mark.parametrize(
    ("out", "chosen", "message"),
    [
        ("out.txt", None, "--out is 'out.txt', whose suffix names no format; allowed: 'csv', 'parquet', 'jsonl'"),
        ("out.csv", "xml", "--format is 'xml'; allowed"),
        ("nowhere/out.csv", None, "there is no directory 'nowhere'\nHint: create it first"),
        ("there.csv", None, "--out there.csv: the file exists\nHint: give another name, or add --replace"),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, chosen: str | None, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").touch()
    with pytest.raises(dt.ConfigError, match=message):
        ResultFile(out, chosen)
    ResultFile("there.csv", replace=True)
