"""Files of any length are joined with the memory of their windows, and with the results of the definition."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import dovetail as dt
from dovetail.cli.files import data_file
from dovetail.cli.files.data_file import DataFile
from dovetail.cli.files.replay import replay

SCHEMA = pa.schema({"ts": pa.timestamp("us", "UTC"), "k": pa.int64()})


def written(folder: Path, name: str, rows: list[tuple[int, int]]) -> DataFile:
    table = pa.table([[second * 1_000_000 for second, _ in rows], [key for _, key in rows]], schema=SCHEMA)
    parquet.write_table(table, folder / f"{name}.parquet")
    return DataFile.of(name, folder / f"{name}.parquet")


def session_of(files: list[DataFile], sql: str) -> dt.LocalSession:
    session = dt.LocalSession()
    for file in files:
        session.stream(file.name, file.schema, event_time="ts")
    session.query("q", sql)
    return session


@pytest.mark.parametrize("window", ["RANGE 5 SECONDS", "ROWS 2"])
def test_results_are_those_of_the_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: str) -> None:
    monkeypatch.setattr(data_file, "PIECE_ROWS", 7)
    rng = random.Random(1)
    files = [
        written(tmp_path, name, sorted((rng.randrange(60), rng.randrange(4)) for _ in range(count)))
        for name, count in (("a", 90), ("b", 25), ("c", 40))
    ]
    sql = f"""SELECT x.k, x.ts AS x, y.ts AS y, z.ts AS z
        FROM a x [{window}], b y [RANGE 9 SECONDS], c z [RANGE 5 SECONDS] WHERE x.k = y.k AND y.k = z.k"""
    session = session_of(files, sql)
    results = pa.concat_tables([table for _, table in replay(session, files, dict.fromkeys("abc", "ts"))])
    # A row long after all others settles the count windows.
    last = {name: pa.table([[10**12], [ord(name)]], schema=SCHEMA) for name in "abc"}
    monkeypatch.setattr(data_file, "PIECE_ROWS", 1000)
    batches = [{file.name: next(file.pieces())[0] for file in files}, last]
    expected = dt.testing.expected(session_of(files, sql), batches)["q"]
    assert expected.num_rows > 30
    dt.testing.assert_same_rows(results, expected)


def test_windows_hold_no_more_than_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "PIECE_ROWS", 50)
    files = [
        written(tmp_path, "fast", [(number // 10, 0) for number in range(6000)]),
        written(tmp_path, "slow", [(number * 20, 1) for number in range(15)]),
    ]
    session = session_of(files, "SELECT f.k FROM fast f [RANGE 10 SECONDS], slow s [RANGE 10 SECONDS] WHERE f.k = s.k")
    held: list[int] = []

    def on_progress(_: int) -> None:
        held.append(sum(stream["state_tuples"] for stream in session.metrics()["streams"].values()))

    assert (
        sum(table.num_rows for _, table in replay(session, files, dict.fromkeys(("fast", "slow"), "ts"), on_progress))
        == 0
    )
    assert len(held) > 100
    assert max(held) < 350, "of `fast` 10 seconds, 20 until `slow` has the next row, and a piece; `slow` ends earlier"


def test_progress_is_in_bytes_and_complete_at_the_end(tmp_path: Path) -> None:
    files = [written(tmp_path, "a", [(1, 1)]), written(tmp_path, "b", [(1, 1)])]
    done: list[int] = []
    session = session_of(files, "SELECT x.k FROM a x [RANGE 1 SECOND], b y [RANGE 1 SECOND] WHERE x.k = y.k")
    results = list(replay(session, files, {"a": "ts", "b": "ts"}, done.append))
    assert sum(table.num_rows for _, table in results) == 1
    assert done == sorted(done)
    assert done[-1] == sum(file.size for file in files)
