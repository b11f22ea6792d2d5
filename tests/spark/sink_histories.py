"""Random histories of drivers, checkpoints and sinks: `sink_histories.py FOLDER FIRST LAST FORMAT`, seeds FIRST to LAST - 1.

A history starts drivers, kills them with SIGKILL, starts them again, puts a new checkpoint on an old sink, copies a checkpoint, and
lets two drivers loose at once on one checkpoint or on one sink. The drivers are processes with a log of offsets and commits as Spark
keeps one, and all that is Dovetail's own: checkpoint, claims, stages, commits. They read no input but numbers, and there is no JVM, so
that a history takes seconds. FORMAT is `parquet`, `delta` or `iceberg`; with `-unlocked` behind it no lock keeps two drivers on copies
of one checkpoint apart, as in an object store, and the table itself has to.

After each kill, every batch that was committed is in its sink, whole; in the end every sink holds what one checkpoint gives for the
whole input, each result once. Prints how often drivers were killed and refused.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, cast

import lakes
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.io.pyarrow  # noqa: F401 - here, not in every driver
from pipeline import layout_of

from dovetail.errors import DovetailError, StateError
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import pinned_json
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.driver.job import claim_sinks
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.parquet import ParquetSink
from dovetail.spark.sinks.sink import Sink
from dovetail.spark.sinks.stage import WrittenFile
from dovetail.spark.sinks.staging import OWNER_FILE, LocalCommitter, LocalStage

QUERIES = ("q", "r")
INPUT = 16
SHARDS = 3
SCHEMA = pa.schema([("v", pa.int64())])
DONE, REFUSED, OVERTAKEN, STALE = 0, 3, 4, 5
_COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64())])
_SQL = "SELECT a.x AS v FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.x = b.x"
LAYOUT = layout_of(tuple(StreamSchema(name, _COLUMNS, "ts") for name in "ab"), dict.fromkeys(QUERIES, _SQL), SHARDS)


def here(path: Path) -> Directory:
    return Directory(f"file:{path}", path.resolve())


class HereSink(ParquetSink):
    """A Parquet sink on this disk, without a JVM to ask where that is."""

    def directory(self, use: SinkUse) -> Directory:  # noqa: ARG002
        return here(Path(self.path))

    def committer(self, use: SinkUse, run_id: str) -> Committer | None:  # noqa: ARG002
        return LocalCommitter(LocalStage(self.path, run_id))


class Format:
    """What drivers and readers do with the sinks of one format."""

    def __init__(self, name: str) -> None:
        self.name, _, unlocked = name.partition("-")
        self.is_locked = not unlocked
        self.patience = {"parquet": 1.0, "delta": 2.0, "iceberg": 6.0}[self.name] + 2 * (not self.is_locked)
        """How much longer than for Parquet a driver is let run: it commits more slowly."""

    def sink(self, path: Path) -> Sink:
        return HereSink(str(path)) if self.name == "parquet" else lakes.sink_in(path, self.name)

    def is_claimed(self, path: Path) -> bool:
        if self.name == "parquet":
            return (path / OWNER_FILE).exists()
        return bool(self._log(path)) if self.name == "delta" else lakes.catalog_in(path).table_exists("ns.table")

    def marks(self, path: Path) -> set[Path]:
        """What a driver adds when it has its sink."""
        if self.name == "parquet":
            return set(path.glob("_dovetail-*"))
        return {*self._log(path), *path.glob("tables/ns/table/metadata/*.json")}

    def prepare(self, path: Path) -> Path:
        """Make what two drivers cannot make at once: the database of a catalog."""
        if self.name == "iceberg":
            lakes.catalog_in(path)
        return path

    def _log(self, path: Path) -> list[Path]:
        return sorted((path / "table" / "_delta_log").glob("*.json"))

    def seen(self, path: Path) -> dict[int, list[int]]:
        """What a reader sees, by batch."""
        if self.name == "parquet":
            return seen(path)
        if self.name == "iceberg":
            return lakes.seen(path, "iceberg") if self.is_claimed(path) else {}
        files: set[str] = set()
        for version in self._log(path):  # deltalake must not run in a process that forks
            actions = [json.loads(line) for line in version.read_text(encoding="utf-8").splitlines()]
            files -= {action["remove"]["path"] for action in actions if "remove" in action}
            files |= {action["add"]["path"] for action in actions if "add" in action}
        found: dict[int, list[int]] = {}
        for row in (row for file in files for row in pq.read_table(path / "table" / file).to_pylist()):
            found.setdefault(row["batch_id"], []).append(row["v"])
        return {batch: sorted(values) for batch, values in found.items()}


def results(query: str, number: int) -> list[int]:
    """What one number of the input gives."""
    return [QUERIES.index(query) * 10_000 + number * 10 + each for each in range(number % 4)]


# -- a driver -------------------------------------------------------------------------------------------------------------------


class Driver:
    """Reads the input in batches as Spark does: offsets are written first, commits last, and what lies between is replayed."""

    def __init__(self, format: Format, checkpoint: Path, sinks: Sequence[Path], seed: int) -> None:  # noqa: A002
        self._format = format
        self._checkpoint, self._sinks = checkpoint, dict(zip(QUERIES, sinks, strict=True))
        self._rng = random.Random(seed)

    def run(self) -> int:
        try:
            taken = Checkpoint.open(here(self._checkpoint))
            layout, _, _ = taken.reconcile(LAYOUT)
            self._pause()
            sinks = {name: self._format.sink(path) for name, path in self._sinks.items()}
            uses, locks = claim_sinks(cast("Any", lakes.LOCAL), layout, sinks, taken)
            for lock in () if self._format.is_locked else locks.values():
                lock.release()
            run_id = uuid.uuid4().hex
            found = {layout.query_id(name): sinks[name].committer(use, run_id) for name, use in uses.items()}
            committers = {number: committer for number, committer in found.items() if committer is not None}
            for committer in committers.values():
                self._pause()
                committer.prepare()
        except DovetailError as error:
            sys.stderr.write(f"{error}\n")
            return REFUSED
        (self._checkpoint / "started").touch()
        offsets, commits = here(self._checkpoint / "offsets"), here(self._checkpoint / "commits")
        done = {int(name) for name in commits.names() if name.isdigit()}
        batch = max(done, default=-1) + 1
        while True:
            first = int((offsets.read(str(batch - 1)) or "0 0").split()[1])
            planned = offsets.read(str(batch))
            if planned is None:
                if first == INPUT:
                    break
                planned = f"{first} {min(INPUT, first + self._rng.randint(1, 3))}"
                if not offsets.create(str(batch), planned):
                    return OVERTAKEN
            try:
                self._write(batch, range(*map(int, planned.split())), committers)
            except StateError as error:
                sys.stderr.write(f"{error}\n")
                return STALE
            if not commits.create(str(batch), "done"):
                return OVERTAKEN
            batch += 1
        for committer in committers.values():
            committer.clear()
        for lock in locks.values():
            lock.release()
        return DONE

    def _write(self, batch: int, numbers: range, committers: dict[int, Committer]) -> None:
        reported: dict[int, list[WrittenFile]] = {}
        for query, committer in committers.items():
            values = [value for number in numbers for value in results(QUERIES[query], number)]
            reported[query] = []
            for shard in sorted({value % SHARDS for value in values}):
                for _ in range(self._rng.choice((1, 1, 2))):  # an attempt may be repeated; the last one is reported
                    self._pause()
                    with committer.stage.writer(batch, shard, SCHEMA) as file:
                        part = [value for value in values if value % SHARDS == shard]
                        file.write_table(pa.table({"v": pa.array(part, pa.int64())}))
                reported[query].append(cast("WrittenFile", file.written))
        for query, committer in committers.items():
            committer.check(batch, reported[query])
        for query, committer in committers.items():
            self._pause()
            if reported[query]:
                committer.commit(batch, reported[query], self._content_id(numbers))
        self._pause()

    @staticmethod
    def _content_id(numbers: range) -> int:
        return numbers.start * 100 + numbers.stop

    def _pause(self) -> None:
        time.sleep(self._rng.random() * (0.002 if self._format.is_locked else 0.02))


def start(format: Format, checkpoint: Path, sinks: Sequence[Path], seed: int) -> int:  # noqa: A002
    """Start a driver as a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(Driver(format, checkpoint, sinks, seed).run())
        except BaseException as error:  # noqa: BLE001
            sys.stderr.write(f"driver: {type(error).__name__}: {error}\n")
            os._exit(1)
    return pid


# -- a history ------------------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What happened in a history."""

    kills: int = 0
    refusals: int = 0
    starts: int = 0
    stale: int = 0
    """Drivers that were refused when they wanted to commit."""
    overtaken: int = 0
    """Checkpoints that cannot go on, because their copy has gone ahead."""


class History:
    """Some checkpoints and what is done to them."""

    def __init__(self, format: Format, folder: Path, seed: int) -> None:  # noqa: A002
        self._format = format
        self._folder, self._rng = folder, random.Random(seed)
        self._sinks: dict[Path, tuple[Path, ...]] = {}
        """By checkpoint, where its results go."""
        self.tally = Tally()

    def run(self) -> Tally:
        copy = self._copy if self._format.is_locked else self._overtake
        steps = [self._go_on, self._new, self._take_over, self._second, self._race, copy]
        self._new()
        for step in self._rng.choices(
            steps, (4, 1, 2, 2, 2, 1 if self._format.is_locked else 6), k=self._rng.randint(6, 10)
        ):
            step()
            self.check()
        for checkpoint, sinks in self._sinks.items():
            assert self._end(self._start(checkpoint, sinks)) == DONE, f"{checkpoint} does not go on"
        self.check(whole=True)
        return self.tally

    # What may happen. A driver is let run for a moment and killed; it may have ended by then.

    def _new(self) -> None:
        """A new checkpoint with new sinks."""
        self._live(self._fresh(), self._fresh_sinks())

    def _go_on(self) -> None:
        checkpoint = self._any()
        self._live(checkpoint, self._sinks[checkpoint])

    def _take_over(self) -> None:
        """A new checkpoint, or an old one, on the sinks of another, or on its own in the wrong order."""
        other = self._rng.choice((self._fresh(), self._any()))
        sinks = list(self._sinks[self._any()])
        if self._sinks.get(other) == tuple(sinks):
            sinks.reverse()
        if any(map(self._format.is_claimed, sinks)):
            assert self._end(self._start(other, sinks)) == REFUSED, f"{other} took over {sinks}"

    def _second(self) -> None:
        """Two drivers at once on one checkpoint."""
        checkpoint = self._any()
        pids = [self._start(checkpoint, self._sinks[checkpoint]) for _ in range(2)]
        self._kill(pids)

    def _race(self) -> None:
        """Two new checkpoints at once on the same new sinks: one may have them."""
        sinks = self._fresh_sinks()
        rivals = [self._fresh(), self._fresh()]
        self._kill([self._start(rival, sinks) for rival in rivals])
        won = [rival for rival in rivals if (rival / "started").exists()]
        assert len(won) <= 1, "two checkpoints write to the same sinks"
        for rival in won:
            self._sinks[rival] = sinks

    def _copy(self) -> None:
        """A copied checkpoint at once with the one it was copied from; the copy, which is locked out, is then thrown away."""
        checkpoint = self._any()
        if not (checkpoint / "started").exists():
            return
        copy, sinks = self._fresh(), self._sinks[checkpoint]
        left = self._format.marks(sinks[0])  # by drivers that were killed: it does not say that this one has its sinks
        pid = self._start(checkpoint, sinks)
        while self._format.marks(sinks[0]) <= left and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".*"), ignore_dangling_symlinks=True)
        second = self._start(copy, sinks)
        time.sleep(0.02)
        self._kill([second])
        with suppress(ChildProcessError, ProcessLookupError):  # it may have ended
            self._kill([pid])
        shutil.rmtree(copy)

    def _overtake(self) -> None:
        """A copied checkpoint at once with the one it was copied from, and no lock: one can go on, the other is thrown away."""
        checkpoint, copy, sinks = self._fresh(), self._fresh(), self._fresh_sinks()
        pid = self._start(checkpoint, sinks)
        while not (checkpoint / "started").exists():
            time.sleep(0.001)
        time.sleep(0.3 * self._rng.random())
        shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".*"), ignore_dangling_symlinks=True)
        second = self._start(copy, sinks)
        time.sleep(self._rng.random())
        self._kill([pid, second])
        rivals = [checkpoint, copy]
        self._rng.shuffle(rivals)
        ends = [self._end(self._start(rivals[0], sinks))]
        if ends[0] == REFUSED:  # the other has gone ahead
            ends.append(self._end(self._start(rivals[1], sinks)))
        assert ends[-1] == DONE, "neither a checkpoint nor its copy can go on"
        self._sinks[rivals[len(ends) - 1]] = sinks
        self.tally.overtaken += len(ends) - 1

    def _any(self) -> Path:
        return self._rng.choice(list(self._sinks))

    def _fresh_sinks(self) -> tuple[Path, ...]:
        return tuple(self._format.prepare(self._folder / f"out-{uuid.uuid4().hex[:8]}") for _ in QUERIES)

    def _fresh(self) -> Path:
        return self._folder / f"checkpoint-{uuid.uuid4().hex[:8]}"

    def _start(self, checkpoint: Path, sinks: Sequence[Path]) -> int:
        self.tally.starts += 1
        return start(self._format, checkpoint, sinks, self._rng.randrange(1 << 30))

    def _live(self, checkpoint: Path, sinks: Sequence[Path]) -> None:
        self._sinks[checkpoint] = tuple(sinks)
        self._kill([self._start(checkpoint, sinks)])

    def _kill(self, pids: Sequence[int]) -> None:
        time.sleep(self._rng.choice((0.02, 0.1, 0.3)) * self._rng.random() * self._format.patience)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            self._end(pid)

    def _end(self, pid: int) -> int:
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            self.tally.kills += 1
            return -os.WTERMSIG(status)
        code = os.WEXITSTATUS(status)
        assert code != 1, "a driver failed"
        self.tally.refusals += code == REFUSED
        self.tally.stale += code == STALE
        return code

    # What must hold.

    def check(self, *, whole: bool = False) -> None:
        """Every committed batch is in its sink, once and whole; in the end, all of the input."""
        for checkpoint, sinks in self._sinks.items():
            begun = {
                int(path.name): range(*map(int, path.read_text().split())) for path in entries(checkpoint / "offsets")
            }
            committed = {int(path.name) for path in entries(checkpoint / "commits")}
            for query, sink in zip(QUERIES, sinks, strict=True):
                wanted = {batch: [v for n in numbers for v in results(query, n)] for batch, numbers in begun.items()}
                found = self._format.seen(sink)
                for batch in committed:
                    assert found.get(batch, []) == wanted[batch], (
                        f"batch {batch} of {query} in {sink} is not what was committed"
                    )
                for batch, values in found.items():
                    assert batch in wanted, f"batch {batch} of {query} in {sink} is nobody's"
                    assert values == wanted[batch], f"batch {batch} of {query} in {sink} is not whole"
                if whole:
                    everything = sorted(value for values in found.values() for value in values)
                    assert everything == [value for number in range(INPUT) for value in results(query, number)]
                    left = [path for home in sink.glob("_dovetail-*") for path in home.iterdir() if path.is_dir()]
                    assert not left, (
                        f"{left} was left behind"
                    )  # killed while it is signed, an empty home waits for a day


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []


def seen(sink: Path) -> dict[int, list[int]]:
    """What a reader sees, by batch."""
    found = {}
    for folder in sink.glob("batch_id=*"):
        files = [file for file in folder.iterdir() if not file.name.startswith((".", "_"))]
        found[int(folder.name.partition("=")[2])] = sorted(
            v for file in files for v in pq.read_table(file)["v"].to_pylist()
        )
    return found


def main(format: Format, folder: Path, seeds: range) -> None:  # noqa: A002
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pinned_json(LAYOUT)  # parsed here, not in every driver
    total = Tally()
    for seed in seeds:
        try:
            tally = History(format, folder / str(seed), seed).run()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        total = Tally(*(sum(pair) for pair in zip(astuple(total), astuple(tally), strict=True)))
        shutil.rmtree(folder / str(seed))
    sys.stdout.write(f"{json.dumps(vars(total))}\n")


if __name__ == "__main__":
    main(Format(sys.argv[4]), Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])))
