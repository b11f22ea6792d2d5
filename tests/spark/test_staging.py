"""Results that shards write themselves: whole batches, once, whatever was killed before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_sink_losses import small_disk

from dovetail.errors import StateError
from dovetail.spark.sinks import staging
from dovetail.spark.sinks.stage import WrittenFile, has_plain_types
from dovetail.spark.sinks.staging import OWNER_FILE, RECORD, LocalCommitter, LocalStage, exchange, sweep_abandoned
from dovetail.spark.state import shared_memory as live

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A sink directory that a query has claimed."""
    path = tmp_path / "out"
    path.mkdir()
    (path / OWNER_FILE).touch()
    return path


def names(target: Path) -> list[str]:
    """What is in a sink directory, but for its owner and its record."""
    return sorted(entry.name for entry in target.iterdir() if entry.name not in (OWNER_FILE, RECORD))


def committer(target: Path, run_id: str, query: str = "") -> LocalCommitter:
    return LocalCommitter(LocalStage(str(target), run_id, query))


def reports(rows: Mapping[int, int]) -> list[WrittenFile]:
    """What shards report, by the rows that they wrote."""
    return [WrittenFile(shard, count) for shard, count in rows.items()]


def write(staging: LocalCommitter, batch: int, shard: int, *values: int) -> None:
    with staging.stage.writer(batch, shard, SCHEMA) as file:
        file.write_table(pa.table({"v": pa.array(values, pa.int64())}))
    assert file.written is not None
    assert (file.written.shard, file.written.rows) == (shard, len(values))


def kill(home: Path) -> None:
    """Let the run that a directory belongs to look like one whose driver was killed."""
    (home / "owner.json").write_text(json.dumps([live._machine(), os.getpid(), "0"]), encoding="utf-8")


def seen(target: Path) -> list[int]:
    """What a reader of the directory sees."""
    found: list[int] = pq.read_table(target).column("v").to_pylist()
    return sorted(found)


def test_a_batch_appears_when_it_is_committed(target: Path) -> None:
    staging = committer(target, "run")
    staging.prepare()
    write(staging, 0, 0, 1, 2)
    write(staging, 0, 1, 3)
    staging.check(0, reports({0: 2, 1: 1}))
    assert not list(target.glob("batch_id=*"))
    staging.commit(0, [])
    assert seen(target) == [1, 2, 3]
    staging.clear()
    assert names(target) == ["batch_id=0"]


def test_repeated_attempts_and_replayed_batches_replace_themselves(target: Path) -> None:
    first = committer(target, "first")
    first.prepare()
    write(first, 0, 0, 1)
    write(first, 0, 0, 1)
    first.commit(0, [])
    write(first, 1, 0, 7)  # the driver dies before it commits
    kill(target / "_dovetail-first")
    again = committer(target, "again")
    again.prepare()
    write(again, 0, 0, 1)  # the batch was committed here, but not by Spark
    again.commit(0, [])
    write(again, 1, 1, 8)
    again.commit(1, [])
    assert seen(target) == [1, 8]
    again.clear()
    assert names(target) == ["batch_id=0", "batch_id=1"]


def test_a_living_run_is_not_swept(target: Path) -> None:
    running = committer(target, "running")
    running.prepare()
    write(running, 0, 0, 1, 2)
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True, text=True
    )
    (target / "_dovetail-dead").mkdir()
    owner = json.dumps([live._machine(), int(dead.stdout), "1"])
    (target / "_dovetail-dead" / "owner.json").write_text(owner, encoding="utf-8")
    committer(target, "second").prepare()
    assert names(target) == ["_dovetail-running", "_dovetail-second"]
    running.check(0, reports({0: 2}))
    running.commit(0, [])
    assert seen(target) == [1, 2]


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
    target: Path, reported: dict[int, int], message: str
) -> None:
    staging = committer(target, "run")
    staging.prepare()
    write(staging, 0, 0, 1, 2)
    write(staging, 0, 1, 3)
    with pytest.raises(StateError, match=message):
        staging.check(0, reports(reported))
    assert not list(target.glob("batch_id=*"))


def test_a_file_that_is_cut_short_is_an_error(target: Path) -> None:
    staging = committer(target, "run")
    staging.prepare()
    write(staging, 0, 0, 1, 2)
    (file,) = target.glob("_dovetail-run/0/*.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StateError, match="not a whole Parquet file"):
        staging.check(0, reports({0: 2}))


def test_shards_whose_disk_is_another_are_noticed(target: Path) -> None:
    staging = committer(target, "run")
    staging.prepare()
    with pytest.raises(StateError, match="it is not there") as caught:
        staging.check(0, reports({0: 2}))
    assert caught.value.hint is not None
    assert "share this disk" in caught.value.hint


class KilledError(BaseException):
    """Stands for SIGKILL: nothing that handles errors sees it."""


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("point", range(8))
def test_a_replay_that_is_killed_anywhere_loses_no_batch(
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: int,
    exchanges: bool,  # noqa: FBT001
) -> None:
    """At each step of a commit, and after the sweep that follows, the old or the new attempt is there, whole."""
    first = committer(target, "first")
    first.prepare()
    write(first, 0, 0, 1)
    first.commit(0, [])
    kill(target / "_dovetail-first")
    again = committer(target, "again")
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
            again.commit(0, [])
            done = True
        except KilledError:
            done = False
    if exchanges:
        assert seen(target) in ([1], [2])  # whatever a reader sees meanwhile is whole
    kill(target / "_dovetail-again")
    committer(target, "third").prepare()
    assert seen(target) == [2] if done else seen(target) in ([1], [2])
    assert names(target) == ["_dovetail-third", "batch_id=0"]


def test_directories_change_places_in_one_step(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()
    assert not exchange(tmp_path / "a", tmp_path / "none")


def test_owners_are_those_of_live_shards(target: Path) -> None:
    committer(target, "run").prepare()
    assert not live.is_abandoned(target / "_dovetail-run")
    kill(target / "_dovetail-run")
    assert live.is_abandoned(target / "_dovetail-run")


def test_a_killed_attempt_leaves_nothing(target: Path) -> None:
    staging = committer(target, "run")
    staging.prepare()
    with pytest.raises((TypeError, pa.ArrowInvalid)):
        write(staging, 0, 0, cast("int", "not a number"))
    with pytest.raises(OSError, match="memory is full"), staging.stage.writer(0, 0, SCHEMA):
        raise OSError(28, "memory is full")  # not the sink's
    assert not list((target / "_dovetail-run" / "0").iterdir())
    (target / "_dovetail-run" / "0" / ".half").write_bytes(b"PAR1")
    write(staging, 0, 0, 2)
    staging.commit(0, [])
    assert seen(target) == [2]
    assert [path.name for path in (target / "batch_id=0").iterdir()] == ["shard-00000.parquet"]


def test_types_that_only_spark_knows_how_to_write() -> None:
    plain = [pa.int8(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32(), pa.decimal128(10, 2)]
    plain += [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary()]
    assert has_plain_types(pa.schema([(str(number), kind) for number, kind in enumerate(plain)]))
    for other in (pa.duration("us"), pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.null()):
        assert not has_plain_types(pa.schema([("x", other)]))


# -- losses -----------------------------------------------------------------------------------------------------------------------


def test_a_sink_directory_that_was_removed_is_not_made_again(target: Path) -> None:
    staging = committer(target, "run", "q")
    staging.prepare()
    write(staging, 0, 0, 1)
    staging.commit(0, [])
    write(staging, 1, 0, 2)
    shutil.rmtree(target)
    gone = f"the directory {target} was removed while the job was running; results of earlier batches are gone"
    with pytest.raises(StateError) as error:
        write(staging, 2, 0, 3)
    assert error.value.message == f"query 'q': its sink parquet('{target}') failed with batch 2: {gone}"
    calls: list[Callable[[], None]] = [
        lambda: staging.check(1, reports({0: 1})),
        lambda: staging.check(1, reports({})),
        lambda: staging.commit(1, []),
    ]
    for call in calls:
        with pytest.raises(StateError) as error:
            call()
        assert error.value.message == gone
        assert error.value.hint is not None
        assert error.value.hint.startswith("start again with the same checkpoint, which replays the batch")
    with pytest.raises(StateError, match="was removed"):
        committer(target, "late", "q").prepare()
    staging.clear()
    assert not target.exists()


def test_a_sink_directory_may_be_removed_at_any_moment(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = committer(target, "run", "q")
    staging.prepare()
    write(staging, 0, 0, 1)
    shutil.copytree(target, target.with_name("kept"))
    with pytest.raises(StateError, match="failed with batch 1: the directory"), staging.stage.writer(1, 0, SCHEMA):
        shutil.rmtree(target)
    target.with_name("kept").rename(target)
    with monkeypatch.context() as patch:
        patch.setattr(LocalCommitter, "_publish", lambda self, _: shutil.rmtree(self.stage.target))
        with pytest.raises(StateError, match="was removed while the job was running"):
            staging.commit(0, [])


def test_a_staging_directory_that_was_removed(target: Path) -> None:
    staging = committer(target, "run", "q")
    staging.prepare()
    shutil.rmtree(target / "_dovetail-run")
    with pytest.raises(StateError, match=r"failed with batch 0: files in .*_dovetail-run were removed"):
        write(staging, 0, 0, 1)
    assert names(target) == []


def test_an_owner_that_was_removed(target: Path) -> None:
    staging = committer(target, "run", "q")
    staging.prepare()
    for batch in (0, 1):
        write(staging, batch, 0, 1)
    staging.commit(0, [])
    (target / OWNER_FILE).unlink()
    with pytest.raises(StateError, match=f"{OWNER_FILE}, which says whose results these are, was removed") as error:
        staging.commit(1, [])
    assert error.value.hint == "put the file back, or give the query a new path"
    (target / OWNER_FILE).touch()  # what the hint says
    staging.commit(1, [])
    assert seen(target) == [1, 1]


def test_a_full_disk_names_query_sink_and_batch(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as target:
        (target / OWNER_FILE).touch()
        staging = committer(target, "run", "q")
        staging.prepare()
        for rows in (100_000, 1_000_000):  # found when a table is written, and when a file is opened
            with pytest.raises(StateError) as error:
                write(staging, 3, 0, *range(rows))
            assert error.value.message.startswith(
                f"query 'q': its sink parquet('{target}') failed with batch 3: no space is left for results: "
            )
            assert f"of 64 KiB are free in {target}" in error.value.message
            assert error.value.hint == (
                "free space there, then start again with the same checkpoint, which replays the batch"
            )
        assert list((target / "_dovetail-run" / "3").iterdir()) == []
        write(staging, 3, 0, 1)  # what the hint says
        with pytest.raises(OSError, match="No space left"):
            (target / "large").write_bytes(bytes(1 << 20))
        calls: list[Callable[[], None]] = [
            lambda: write(staging, 4, 0, 1),
            committer(target, "late", "q").prepare,
        ]
        for call in calls:
            with pytest.raises(StateError, match=r"query 'q': .*no space is left for results: 0 B of 64 KiB are free"):
                call()


def test_staging_that_is_abandoned_is_swept(target: Path) -> None:
    for run in ("dead", "alive"):
        committer(target, run).prepare()
    write(committer(target, "dead"), 0, 0, 1)
    kill(target / "_dovetail-dead")
    sweep_abandoned(target)
    assert names(target) == ["_dovetail-alive"]
    sweep_abandoned(target / "none")
    sweep_abandoned(target / OWNER_FILE)
    assert not (target / "none").exists()
