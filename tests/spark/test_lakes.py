"""Tables of Delta and Iceberg: each batch once, whatever is killed, whoever else writes, and however often it is replayed."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from lakes import FORMATS, SCHEMA, Run, catalog_in, rows_in, seen, sink_in, use_of, versions

import dovetail as dt
from dovetail.errors import ConfigError, DovetailWarning, MissingExtraError, StateError
from dovetail.schema import TIMESTAMP, TIMESTAMP_NTZ
from dovetail.spark.sinks import lake
from dovetail.spark.sinks.lake import ConflictError
from dovetail.spark.sinks.statistics import bounds_of

HISTORIES = Path(__file__).with_name("sink_histories.py")
ALL_TYPES = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("ntz", TIMESTAMP_NTZ),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("text", pa.string()),
        ("large", pa.large_string()),
        ("bytes", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("amount", pa.decimal128(12, 2)),
        ("wide", pa.decimal128(38, 0)),
    ]
)
WHEN = datetime(2026, 11, 19, 20, 15, 0, 123_456, UTC)
ROW = (
    WHEN, WHEN.replace(tzinfo=None), 1, 2, 3, 4, 0.5, 0.25, "a", "b", b"c", True, WHEN.date(), Decimal("1.25"),
    Decimal(10**37),
)  # fmt: skip


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:  # noqa: A001
    return str(request.param)


def test_each_batch_is_there_once_it_is_committed(tmp_path: Path, format: str) -> None:  # noqa: A002
    run = Run(sink_in(tmp_path, format))
    files = run.write(0, {0: [1, 2], 1: [3]})
    assert seen(tmp_path, format) == {}
    run.committer.check(0, files)
    run.committer.commit(0, files)
    run.run(3, {2: [4]})
    assert seen(tmp_path, format) == {0: [1, 2, 3], 3: [4]}
    run.committer.clear()


def test_a_repeated_attempt_is_not_referenced(tmp_path: Path, format: str) -> None:  # noqa: A002
    run = Run(sink_in(tmp_path, format))
    run.write(0, {0: [1, 2]})
    with pytest.raises(pa.ArrowInvalid), run.committer.stage.writer(0, 0, SCHEMA) as file:
        file.write_table(pa.table({"ts": ["no time"], "v": [1]}))
    run.run(0, {0: [1, 2]})
    assert seen(tmp_path, format) == {0: [1, 2]}
    assert len([path for path in tmp_path.rglob("*-shard-*.parquet") if not path.name.startswith(".")]) == 2


class KilledError(BaseException):
    """Stands for SIGKILL: nothing that handles errors sees it."""


@pytest.mark.parametrize("after", [True, False])
def test_a_kill_at_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, *, after: bool) -> None:  # noqa: A002
    """Before the commit the replay adds the batch; after it, the batch is there and the replay changes nothing."""
    run = Run(sink_in(tmp_path, format))
    run.run(0, {0: [1]})
    table = type(run.committer._table)
    commit = table.commit

    def killed(*arguments: Any) -> None:
        if after:
            commit(*arguments)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(table, "commit", killed)
        with pytest.raises(KilledError):
            run.run(1, {0: [2], 1: [3]}, content=5)
    run.end()
    before = versions(tmp_path, format)
    again = Run(sink_in(tmp_path, format), use_of(last_batch=1))
    again.run(1, {0: [2], 1: [3]}, content=5)
    assert seen(tmp_path, format) == {0: [1], 1: [2, 3]}
    assert versions(tmp_path, format) == before + (1 if after else 2)  # the start; the batch, if it was not there
    again.run(2, {0: [4]})
    assert seen(tmp_path, format) == {0: [1], 1: [2, 3], 2: [4]}


@pytest.mark.parametrize(("values", "content"), [({0: [7]}, 6), ({0: [7]}, 5), ({0: [2], 1: [3]}, 6), ({}, 6)])
def test_a_replay_of_a_changed_job_replaces_the_batch(
    tmp_path: Path,
    format: str,  # noqa: A002
    values: dict[int, list[int]],
    content: int,
) -> None:
    run = Run(sink_in(tmp_path, format))
    run.run(0, {0: [1]})
    run.run(1, {0: [2], 1: [3]}, content=5)
    run.end()
    again = Run(sink_in(tmp_path, format), use_of(last_batch=1))
    if values:
        again.run(1, values, content)
    else:
        again.committer.discard(1)
        again.committer.discard(1)
    wanted = sorted(value for part in values.values() for value in part)
    assert seen(tmp_path, format) == {0: [1]} | ({1: wanted} if values else {})
    again.run(2, {0: [9]})
    assert seen(tmp_path, format)[2] == [9]


def test_a_batch_of_merged_files_is_replaced(tmp_path: Path, format: str) -> None:  # noqa: A002
    """Maintenance may have put the rows of several batches into one file, and an attempt may be killed half way."""
    run = Run(sink_in(tmp_path, format))
    for batch in range(3):
        run.run(batch, {0: [10 * batch], 1: [10 * batch + 1]})
    if format == "delta":
        DeltaTable(tmp_path / "table").optimize.compact()
    else:
        table = catalog_in(tmp_path).load_table("ns.table")
        table.overwrite(table.scan().to_arrow())
    run.end()
    again = Run(sink_in(tmp_path, format), use_of(last_batch=2))
    again.run(2, {0: [99]}, content=8)
    again.run(3, {0: [100]})
    assert seen(tmp_path, format) == {0: [0, 1], 1: [10, 11], 2: [99], 3: [100]}


def test_maintenance_does_not_lose_what_the_table_stores(tmp_path: Path, format: str) -> None:  # noqa: A002
    run = Run(sink_in(tmp_path, format))
    for batch in range(3):
        run.run(batch, {0: [batch]})
    if format == "delta":
        table = DeltaTable(tmp_path / "table")
        table.create_checkpoint()
        table.cleanup_metadata()
        table.vacuum()
    else:
        loaded = catalog_in(tmp_path).load_table("ns.table")
        loaded.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    run.run(3, {0: [3]})
    run.end()
    before = versions(tmp_path, format)
    Run(sink_in(tmp_path, format), use_of(last_batch=3)).run(3, {0: [3]})
    assert versions(tmp_path, format) == before + 1  # the start
    assert seen(tmp_path, format) == {batch: [batch] for batch in range(4)}


def test_a_stale_writer_is_refused(tmp_path: Path, format: str) -> None:  # noqa: A002
    """Two drivers on copies of one checkpoint, where no lock keeps them apart: the last to start may write."""
    first = Run(sink_in(tmp_path, format))
    first.run(0, {0: [1]})
    pending = first.write(1, {0: [2]})
    first.end()
    second = Run(sink_in(tmp_path, format), use_of(last_batch=1))
    with pytest.raises(
        StateError, match=r"another session has started to write to the .* table .*; this one is stale"
    ) as error:
        first.committer.commit(1, pending, 1)
    assert error.value.hint
    with pytest.raises(StateError, match="is stale"):
        first.committer.discard(1)
    second.run(1, {0: [2]})
    assert seen(tmp_path, format) == {0: [1], 1: [2]}
    with pytest.raises(StateError, match="is stale"):
        second.run(0, {0: [1]})


def test_a_race_for_one_commit_has_one_winner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,  # noqa: A002
) -> None:
    """A second driver starts after the first has checked the table, just before it commits."""
    first = Run(sink_in(tmp_path, format))
    first.run(0, {0: [1]})
    first.end()
    table, second = type(first.committer._table), list[Run]()
    commit = table.commit

    def overtaken(*arguments: Any) -> None:
        if not second:
            patch.undo()
            second.append(Run(sink_in(tmp_path, format), use_of(last_batch=1)))
        commit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(table, "commit", overtaken)
        with pytest.raises(StateError, match="is stale"):
            first.run(1, {0: [2]})
    assert seen(tmp_path, format) == {0: [1]}
    second[0].run(1, {0: [2]})
    assert seen(tmp_path, format) == {0: [1], 1: [2]}


def test_a_batch_that_is_written_while_a_copy_starts(tmp_path: Path, format: str) -> None:  # noqa: A002
    """Between the check of a copied checkpoint and its start, the first driver commits one more batch."""
    first = Run(sink_in(tmp_path, format))
    first.run(0, {0: [1]})
    first.end()
    sink, use = sink_in(tmp_path, format), use_of(last_batch=0)
    sink.check(use)
    committer = sink.committer(use, "f" * 32)
    first.run(1, {0: [2]})
    with pytest.raises(StateError, match="holds batch 1, but the checkpoint"):
        committer.prepare()
    first.run(2, {0: [3]})
    assert seen(tmp_path, format) == {0: [1], 1: [2], 2: [3]}


def test_other_changes_of_the_table_do_not_stop_a_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,  # noqa: A002
) -> None:
    monkeypatch.setattr(lake, "_PAUSE_SECONDS", 0.0)
    run = Run(sink_in(tmp_path, format))
    run.run(0, {0: [1]})
    table, changes = type(run.committer._table), iter(range(3))
    commit = table.commit

    def disturbed(*arguments: Any) -> None:
        for _ in zip(range(1), changes, strict=False):
            if format == "delta":
                changed = DeltaTable(tmp_path / "table")
                changed.alter.set_table_properties({"delta.checkpointInterval": "7"})
            else:
                other = catalog_in(tmp_path).load_table("ns.table")
                with other.transaction() as change, change.update_snapshot().fast_append():
                    pass
        commit(*arguments)

    monkeypatch.setattr(table, "commit", disturbed)
    run.run(1, {0: [2]})
    assert next(changes, None) is None
    if format == "iceberg":
        assert "commit.retry.num-retries" not in catalog_in(tmp_path).load_table("ns.table").properties
    assert seen(tmp_path, format) == {0: [1], 1: [2]}
    monkeypatch.setattr(table, "commit", _conflict)
    with pytest.raises(StateError, match="was changed by others during each of 12 attempts"):
        run.run(2, {0: [3]})
    assert seen(tmp_path, format) == {0: [1], 1: [2]}


def _conflict(*_: Any) -> None:
    raise ConflictError


def test_a_commit_whose_answer_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:  # noqa: A002
    """An object store may report a failure after the commit has succeeded: it is found, and not repeated."""
    run = Run(sink_in(tmp_path, format))
    table, calls = type(run.committer._table), list[int]()
    commit = table.commit

    def lost(*arguments: Any) -> None:
        commit(*arguments)
        calls.append(1)
        raise ConflictError

    monkeypatch.setattr(table, "commit", lost)
    run.run(0, {0: [1], 1: [2]})
    assert calls == [1]
    assert seen(tmp_path, format) == {0: [1, 2]}


# -- refusals -----------------------------------------------------------------------------------------------------------------------


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises((ConfigError, StateError)) as error:
        call()
    assert error.value.hint
    return error.value.message


def test_a_table_has_one_owner(tmp_path: Path, format: str) -> None:  # noqa: A002
    first = Run(sink_in(tmp_path, format))
    first.run(0, {0: [1]})
    sink = sink_in(tmp_path, format)
    assert "a session that is running writes to the" in refusal(lambda: Run(sink, use_of(last_batch=0)))
    first.end()
    changes = versions(tmp_path, format)
    assert "belongs to query 'q' of another checkpoint" in refusal(lambda: Run(sink, use_of("c2")))
    assert "belongs to query 'q' of this checkpoint" in refusal(lambda: Run(sink, use_of("c1", 0, query="r")))
    other = pa.schema([("ts", TIMESTAMP), ("v", pa.string())])
    message = refusal(lambda: Run(sink, use_of(last_batch=0, schema=other)))
    assert "has the columns (ts timestamp" in message
    assert "batch_id long); results have (ts timestamp" in message
    assert "v string" in message
    assert "holds batch 0, but the checkpoint" in refusal(lambda: Run(sink, use_of()))
    assert versions(tmp_path, format) == changes
    taken = pa.schema([("Batch_ID", pa.int64())])
    assert "selects a column batch_id" in refusal(lambda: Run(sink, use_of(schema=taken)))
    nested = pa.schema([("x", pa.list_(pa.int64()))])
    assert "'x' has type list<" in refusal(lambda: Run(sink, use_of(schema=nested)))


def test_rows_that_were_removed_by_hand_are_written_again(tmp_path: Path, format: str) -> None:  # noqa: A002
    """The checkpoint was restored from an older copy: the hint says to remove the rows of later batches."""
    run = Run(sink_in(tmp_path, format))
    for batch in range(4):
        run.run(batch, {0: [batch]})
    run.end()
    assert "holds batch 3, but" in refusal(lambda: Run(sink_in(tmp_path, format), use_of(last_batch=1)))
    if format == "delta":
        DeltaTable(tmp_path / "table").delete("batch_id > 1")
    else:
        catalog_in(tmp_path).load_table("ns.table").delete("batch_id > 1")
    again = Run(sink_in(tmp_path, format), use_of(last_batch=1))
    for batch in range(1, 4):
        again.run(batch, {0: [10 + batch]}, content=7)
    assert seen(tmp_path, format) == {0: [0], 1: [11], 2: [12], 3: [13]}


def test_a_table_of_somebody_else(tmp_path: Path, format: str) -> None:  # noqa: A002
    rows = pa.table({"ts": pa.array([1], TIMESTAMP), "v": [1], "batch_id": [0]})
    if format == "delta":
        write_deltalake(tmp_path / "table", rows)
    else:
        catalog = catalog_in(tmp_path)
        catalog.create_namespace("ns")
        catalog.create_table("ns.table", rows.schema).append(rows)
    assert "holds rows that no query of Dovetail wrote" in refusal(lambda: Run(sink_in(tmp_path, format)))
    if format == "delta":
        DeltaTable(tmp_path / "table").delete()
    else:
        catalog_in(tmp_path).load_table("ns.table").delete()
    run = Run(sink_in(tmp_path, format))  # an empty one may be taken
    run.run(0, {0: [5]})
    run.end()
    assert seen(tmp_path, format) == {0: [5]}
    assert "of another checkpoint" in refusal(lambda: Run(sink_in(tmp_path, format), use_of("c2")))


def test_a_new_table_of_an_old_checkpoint(tmp_path: Path, format: str) -> None:  # noqa: A002
    with pytest.warns(DovetailWarning, match=r"the .* table .* is new, but the checkpoint is at batch 4"):
        Run(sink_in(tmp_path, format), use_of(last_batch=4)).end()


def test_files_that_vanish_are_noticed(tmp_path: Path, format: str) -> None:  # noqa: A002
    run = Run(sink_in(tmp_path, format))
    for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])):
        files = run.write(0, {0: [1], 3: [2, 3]})
        damage(Path(run.committer.stage.path(files[1])))
        with pytest.raises(
            StateError, match=r"batch 0: shard 3 reported 2 results in .*has not been committed"
        ) as error:
            run.committer.check(0, files)
        assert error.value.hint
    assert seen(tmp_path, format) == {}


def test_a_table_that_is_removed_while_the_job_runs(tmp_path: Path, format: str) -> None:  # noqa: A002
    run = Run(sink_in(tmp_path, format))
    run.run(0, {0: [1]})
    files = run.write(1, {0: [2]})
    if format == "delta":
        for path in sorted((tmp_path / "table" / "_delta_log").iterdir()):
            path.unlink()
        (tmp_path / "table" / "_delta_log").rmdir()
    else:
        catalog_in(tmp_path).drop_table("ns.table")
    with pytest.raises(StateError, match="was removed while the job was running"):
        run.committer.commit(1, files)


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any = {"AWS_REGION": 1}
    assert "expected a path or a URI" in refusal(lambda: dt.sinks.delta(cast("Any", 3)))
    assert "a dict from text to text" in refusal(lambda: dt.sinks.delta("x", wrong))
    catalog = catalog_in(tmp_path)
    assert "expected a namespace and a name" in refusal(lambda: dt.sinks.iceberg(catalog, "table"))
    assert "got the catalog 3" in refusal(lambda: dt.sinks.iceberg(cast("Any", 3), "a.b"))
    assert "cannot load the catalog nowhere" in refusal(lambda: dt.sinks.iceberg("nowhere", "a.b"))
    assert repr(dt.sinks.delta(tmp_path)) == f"delta({str(tmp_path)!r})"
    assert repr(dt.sinks.iceberg(catalog, "a.b")) == "iceberg('a.b')"
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    for make, extra in ((lambda: dt.sinks.delta("x"), "delta"), (lambda: dt.sinks.iceberg(catalog, "a.b"), "iceberg")):
        with pytest.raises(MissingExtraError, match="which is not installed") as error:
            make()
        assert error.value.hint == f"pip install 'dovetail[{extra}]'"


def test_a_cluster_needs_a_disk_that_it_shares(tmp_path: Path) -> None:
    cluster = cast("Any", SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "spark://master:7077")))
    use = replace(use_of(), spark=cluster)
    assert "is a path of the driver's disk" in refusal(lambda: dt.sinks.delta(tmp_path / "t").check(use))
    dt.sinks.delta(f"file:{tmp_path}/t").check(use)
    assert "on the driver's disk" in refusal(lambda: sink_in(tmp_path, "iceberg").claim(use))


# -- files --------------------------------------------------------------------------------------------------------------------------


def test_readers_see_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:  # noqa: A002
    """Every type, NULLs, NaN and long text; also while a batch is being written, and with filters that use the bounds."""
    sink, use = sink_in(tmp_path, format), use_of(schema=ALL_TYPES)
    run = Run(sink, use)
    nulls = dict.fromkeys(ALL_TYPES.names)
    row = dict(zip(ALL_TYPES.names, ROW, strict=True))
    rows = [row, nulls, {**row, "f64": math.nan, "text": "z" * 70, "i64": 400}]
    files = []
    for batch in range(2):
        with run.committer.stage.writer(batch, 0, ALL_TYPES) as file:
            file.write_table(pa.Table.from_pylist(rows, ALL_TYPES))
        assert file.written is not None
        files.append(file.written)
    run.committer.commit(0, files[:1], 1)
    found = rows_in(tmp_path, format)
    assert found.num_rows == 3
    assert _texts(found.to_pylist()) == _texts([{**each, "batch_id": 0} for each in rows])
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    if format == "delta":
        table = DeltaTable(tmp_path / "table")
        data, frame = table.to_pyarrow_dataset(), pl.scan_delta(str(tmp_path / "table"))
    else:
        loaded = catalog_in(tmp_path).load_table("ns.table")
        data, frame = loaded.scan().to_arrow(), pl.scan_iceberg(loaded)
    assert data.schema.names == [*ALL_TYPES.names, "batch_id"]
    counts = duckdb.from_arrow(data).aggregate("count(*), sum(i64), max(text)").fetchall()
    assert counts == [(3, 404, "z" * 70)]
    assert frame.filter(pl.col("i64") > 100).collect().height == 1
    assert frame.filter(pl.col("text") > "b").collect().height == 1
    assert frame.filter(pl.col("ts") == WHEN).collect().height == 2
    assert frame.filter(pl.col("f64").is_nan()).collect().height == 1
    assert frame.filter(pl.col("amount") > 2).collect().height == 0


def _texts(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Rows as text, which tells NaN from NULL and makes time zones alike."""
    return sorted([str(value).replace("+00:00", "") for value in row.values()] for row in rows)


def test_bounds_of_columns(tmp_path: Path) -> None:
    run = Run(dt.sinks.delta(tmp_path / "table"), use_of(schema=ALL_TYPES))
    row = dict(zip(ALL_TYPES.names, ROW, strict=True))
    parts = [
        [row, dict.fromkeys(ALL_TYPES.names)],
        [{**row, "i64": -9, "text": "z" * 70, "f32": math.nan, "f64": math.inf}],
    ]
    with run.committer.stage.writer(7, 0, ALL_TYPES) as file:
        for part in parts:
            file.write_table(pa.Table.from_pylist(part, ALL_TYPES))
    assert file.written is not None
    bounds = {name: tuple(bounds) for name, bounds in file.written.bounds.items()}
    assert bounds == {
        "ts": (1, "2026-11-19T20:15:00.123456Z", "2026-11-19T20:15:00.123456Z"),
        "ntz": (1, "2026-11-19T20:15:00.123456", "2026-11-19T20:15:00.123456"),
        "i8": (1, 1, 1),
        "i16": (1, 2, 2),
        "i32": (1, 3, 3),
        "i64": (1, -9, 4),
        "f32": (1, None, None),  # NaN
        "f64": (1, None, None),  # infinite
        "text": (1, "a", "z" * 32 + "\U0010ffff"),
        "large": (1, "b", "b"),
        "bytes": (1, None, None),
        "flag": (1, True, True),
        "day": (1, "2026-11-19", "2026-11-19"),
        "amount": (1, 1.25, 1.25),
        "wide": (1, None, None),  # not exact as a JSON number
        "batch_id": (0, 7, 7),
    }
    run.committer.commit(7, [file.written], 1)
    log = (tmp_path / "table" / "_delta_log" / f"{2:020}.json").read_text(encoding="utf-8")
    (entry,) = [json.loads(line) for line in log.splitlines() if '"add"' in line]
    assert json.loads(entry["add"]["stats"])["numRecords"] == 3


def test_bounds_of_columns_that_are_empty(tmp_path: Path) -> None:
    columns = {"x": pa.array([None, None], pa.int64()), "t": pa.array([1 << 62, 0], TIMESTAMP)}
    pq.write_table(pa.table(columns), tmp_path / "file")
    found = bounds_of(pq.read_metadata(tmp_path / "file"), ())
    assert found == {"x": (2, None, None), "t": (0, None, None)}


def test_stages_travel_to_workers(tmp_path: Path, format: str) -> None:  # noqa: A002
    run = Run(sink_in(tmp_path, format))
    stage = pickle.loads(pickle.dumps(run.committer.stage))  # noqa: S301 - ours
    with stage.writer(0, 2, SCHEMA) as file:
        file.write_table(pa.table({"ts": pa.array([1], TIMESTAMP), "v": [5]}))
    run.committer.check(0, [file.written])
    run.committer.commit(0, [file.written])
    assert seen(tmp_path, format) == {0: [5]}


# -- histories ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_histories_of_tables(tmp_path: Path) -> None:
    """Kills, restarts, second drivers and copied checkpoints, with and without locks: every committed result is there once.

    DOVETAIL_SINK_HISTORIES is the number of histories of each kind; 50 make 100 of each format.
    """
    count, kinds = (
        int(os.environ.get("DOVETAIL_SINK_HISTORIES", "1")),
        [*FORMATS, *(f"{name}-unlocked" for name in FORMATS)],
    )
    running = {}
    for kind in kinds:
        (tmp_path / kind).mkdir()
        command = [sys.executable, str(HISTORIES), str(tmp_path / kind), "0", str(count), kind]
        running[kind] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for kind, process in running.items():
        output, errors = process.communicate()
        assert process.returncode == 0, f"{kind}: {errors[-3000:]}"
        tally = json.loads(output)
        sys.stdout.write(f"{count} histories of {kind}: {tally}\n")
        assert tally["kills"] >= count
        assert tally["stale"] >= count // 10 * kind.endswith("-unlocked")
