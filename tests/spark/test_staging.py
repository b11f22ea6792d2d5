"""Results that shards write themselves: whole batches, once, whatever was killed before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.errors import StateError
from dovetail.spark import live, staging
from dovetail.spark.staging import Staging, exchange, plain_types


def write(staging: Staging, batch: int, shard: int, *values: int) -> None:
    with staging.writer(batch, shard, pa.schema([("v", pa.int64())])) as file:
        file.write_table(pa.table({"v": pa.array(values, pa.int64())}))


def kill(home: Path) -> None:
    """Let the run that a directory belongs to look like one whose driver was killed."""
    (home / "owner.json").write_text(json.dumps([live._machine(), os.getpid(), "0"]), encoding="utf-8")


def seen(target: Path) -> list[int]:
    """What a reader of the directory sees."""
    found: list[int] = pq.read_table(target).column("v").to_pylist()
    return sorted(found)


def test_a_batch_appears_when_it_is_committed(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "run")
    staging.prepare()
    write(staging, 0, 0, 1, 2)
    write(staging, 0, 1, 3)
    staging.check(0, {0: 2, 1: 1})
    assert not list(tmp_path.glob("batch_id=*"))
    staging.commit(0)
    assert seen(tmp_path) == [1, 2, 3]
    staging.clear()
    assert [entry.name for entry in tmp_path.iterdir()] == ["batch_id=0"]


def test_repeated_attempts_and_replayed_batches_replace_themselves(tmp_path: Path) -> None:
    first = Staging(str(tmp_path), "first")
    first.prepare()
    write(first, 0, 0, 1)
    write(first, 0, 0, 1)
    first.commit(0)
    write(first, 1, 0, 7)  # the driver dies before it commits
    kill(tmp_path / "_dovetail-first")
    again = Staging(str(tmp_path), "again")
    again.prepare()
    write(again, 0, 0, 1)  # the batch was committed here, but not by Spark
    again.commit(0)
    write(again, 1, 1, 8)
    again.commit(1)
    assert seen(tmp_path) == [1, 8]
    again.clear()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["batch_id=0", "batch_id=1"]


def test_a_living_run_is_not_swept(tmp_path: Path) -> None:
    running = Staging(str(tmp_path), "running")
    running.prepare()
    write(running, 0, 0, 1, 2)
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True, text=True
    )
    (tmp_path / "_dovetail-dead").mkdir()
    owner = json.dumps([live._machine(), int(dead.stdout), "1"])
    (tmp_path / "_dovetail-dead" / "owner.json").write_text(owner, encoding="utf-8")
    Staging(str(tmp_path), "second").prepare()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["_dovetail-running", "_dovetail-second"]
    running.check(0, {0: 2})
    running.commit(0)
    assert seen(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        ({0: 2, 1: 1, 2: 4}, "batch 0 has 7 results, of which .* holds 3: shard 2 reported 4, its file holds none"),
        ({0: 3, 1: 1}, "shard 0 reported 3, its file holds 2"),
        ({0: 2}, "shard 1 reported 0, its file holds 1"),
        (dict.fromkeys(range(2, 10), 1), "and 5 more shards"),
    ],
)
def test_a_batch_is_committed_when_all_that_was_reported_is_there(
    tmp_path: Path, reported: dict[int, int], message: str
) -> None:
    staging = Staging(str(tmp_path), "run")
    staging.prepare()
    write(staging, 0, 0, 1, 2)
    write(staging, 0, 1, 3)
    with pytest.raises(StateError, match=message):
        staging.check(0, reported)
    assert not list(tmp_path.glob("batch_id=*"))


def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "run")
    staging.prepare()
    write(staging, 0, 0, 1, 2)
    (file,) = tmp_path.glob("_dovetail-run/0/*.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StateError, match="not a whole Parquet file"):
        staging.check(0, {0: 2})


def test_shards_whose_disk_is_another_are_noticed(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "run")
    staging.prepare()
    with pytest.raises(StateError, match="it is not there") as caught:
        staging.check(0, {0: 2})
    assert caught.value.hint is not None
    assert "share this disk" in caught.value.hint


class KilledError(BaseException):
    """Stands for SIGKILL: nothing that handles errors sees it."""


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("point", range(8))
def test_a_replay_that_is_killed_anywhere_loses_no_batch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: int,
    exchanges: bool,  # noqa: FBT001
) -> None:
    """At each step of a commit, and after the sweep that follows, the old or the new attempt is there, whole."""
    first = Staging(str(tmp_path), "first")
    first.prepare()
    write(first, 0, 0, 1)
    first.commit(0)
    kill(tmp_path / "_dovetail-first")
    again = Staging(str(tmp_path), "again")
    again.prepare()
    write(again, 0, 0, 2)
    steps = iter(range(20))

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(steps) == point:
                raise KilledError
            result = function(*arguments, **named)
            if next(steps) == point:
                raise KilledError
            return result

        return call

    with monkeypatch.context() as patch:
        patch.setattr(staging, "exchange", counted(exchange) if exchanges else lambda *_: False)
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            again.commit(0)
            done = True
        except KilledError:
            done = False
    if exchanges:
        assert seen(tmp_path) in ([1], [2])  # whatever a reader sees meanwhile is whole
    kill(tmp_path / "_dovetail-again")
    Staging(str(tmp_path), "third").prepare()
    assert seen(tmp_path) == [2] if done else seen(tmp_path) in ([1], [2])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["_dovetail-third", "batch_id=0"]


def test_directories_change_places_in_one_step(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()
    assert not exchange(tmp_path / "a", tmp_path / "none")


def test_owners_are_those_of_live_shards(tmp_path: Path) -> None:
    Staging(str(tmp_path), "run").prepare()
    assert not live.is_abandoned(tmp_path / "_dovetail-run")
    kill(tmp_path / "_dovetail-run")
    assert live.is_abandoned(tmp_path / "_dovetail-run")


def test_a_killed_attempt_leaves_nothing(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "run")
    staging.prepare()
    with pytest.raises((TypeError, pa.ArrowInvalid)):
        write(staging, 0, 0, cast("int", "not a number"))
    with pytest.raises(OSError, match="full"), staging.writer(0, 0, pa.schema([("v", pa.int64())])):
        raise OSError("the disk is full")
    assert not list((tmp_path / "_dovetail-run" / "0").iterdir())
    (tmp_path / "_dovetail-run" / "0" / ".half").write_bytes(b"PAR1")
    write(staging, 0, 0, 2)
    staging.commit(0)
    assert seen(tmp_path) == [2]
    assert [path.name for path in (tmp_path / "batch_id=0").iterdir()] == ["shard-00000.parquet"]


def test_types_that_only_spark_knows_how_to_write() -> None:
    plain = [pa.int8(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32(), pa.decimal128(10, 2)]
    plain += [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary()]
    assert plain_types(pa.schema([(str(number), kind) for number, kind in enumerate(plain)]))
    for other in (pa.duration("us"), pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.null()):
        assert not plain_types(pa.schema([("x", other)]))
