"""Random histories of drivers, checkpoints and sinks: `python sink_histories.py FOLDER FIRST LAST`, for seeds FIRST to LAST - 1.

A history starts drivers, kills them with SIGKILL, starts them again, puts a new checkpoint on an old sink, copies a checkpoint, and
lets two drivers loose at once on one checkpoint or on one sink. The drivers are processes with a log of offsets and commits as Spark
keeps one, and all that is Dovetail's own: checkpoint, claims, staging, commit. They read no input but numbers, and there is no JVM, so
that a history takes a second. After each kill, every batch that was committed is in its sink, whole; in the end every sink holds what
one checkpoint gives for the whole input, each result once. Prints how often drivers were killed and refused.
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
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pipeline import layout_of

from dovetail.errors import DovetailError
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import pinned_json
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.driver.job import claim_sinks
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.sinks import ParquetSink, Sink
from dovetail.spark.sinks.staging import OWNER_FILE, Staging

QUERIES = ("q", "r")
INPUT = 16
SHARDS = 3
SCHEMA = pa.schema([("v", pa.int64())])
DONE, REFUSED, OVERTAKEN = 0, 3, 4
_COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64())])
_SQL = "SELECT a.x FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.x = b.x"
LAYOUT = layout_of(tuple(StreamSchema(name, _COLUMNS, "ts") for name in "ab"), dict.fromkeys(QUERIES, _SQL), SHARDS)


def here(path: Path) -> Directory:
    return Directory(f"file:{path}", path.resolve())


class HereSink(ParquetSink):
    """A Parquet sink on this disk, without a JVM to ask where that is."""

    def directory(self, use: SinkUse) -> Directory:  # noqa: ARG002
        return here(Path(self.path))

    def staging(self, use: SinkUse, run_id: str) -> Staging | None:  # noqa: ARG002
        return Staging(self.path, run_id)


def results(query: str, number: int) -> list[int]:
    """What one number of the input gives."""
    return [QUERIES.index(query) * 10_000 + number * 10 + each for each in range(number % 4)]


# -- a driver -------------------------------------------------------------------------------------------------------------------


class Driver:
    """Reads the input in batches as Spark does: offsets are written first, commits last, and what lies between is replayed."""

    def __init__(self, checkpoint: Path, sinks: Sequence[Path], seed: int) -> None:
        self._checkpoint, self._sinks = checkpoint, dict(zip(QUERIES, sinks, strict=True))
        self._rng = random.Random(seed)

    def run(self) -> int:
        try:
            taken = Checkpoint.open(here(self._checkpoint))
            layout, _, _ = taken.reconcile(LAYOUT)
            self._pause()
            sinks: dict[str, Sink] = {name: HereSink(str(path)) for name, path in self._sinks.items()}
            uses, locks = claim_sinks(cast("Any", None), layout, sinks, taken)
            run_id = uuid.uuid4().hex
            found = {layout.query_id(name): sinks[name].staging(use, run_id) for name, use in uses.items()}
            staged = {number: staging for number, staging in found.items() if staging is not None}
            for staging in staged.values():
                self._pause()
                staging.prepare()
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
            self._write(batch, range(*map(int, planned.split())), staged)
            if not commits.create(str(batch), "done"):
                return OVERTAKEN
            batch += 1
        for staging in staged.values():
            staging.clear()
        for lock in locks.values():
            lock.release()
        return DONE

    def _write(self, batch: int, numbers: range, staged: dict[int, Staging]) -> None:
        reported: dict[int, Counter[int]] = {}
        for query, staging in staged.items():
            values = [value for number in numbers for value in results(QUERIES[query], number)]
            reported[query] = Counter(value % SHARDS for value in values)
            for shard in reported[query]:
                for _ in range(self._rng.choice((1, 1, 2))):  # an attempt may be repeated
                    self._pause()
                    with staging.writer(batch, shard, SCHEMA) as file:
                        part = [value for value in values if value % SHARDS == shard]
                        file.write_table(pa.table({"v": pa.array(part, pa.int64())}))
        for query, staging in staged.items():
            staging.check(batch, reported[query])
        for query, staging in staged.items():
            self._pause()
            if reported[query]:
                staging.commit(batch)
        self._pause()

    def _pause(self) -> None:
        time.sleep(self._rng.random() * 0.002)


def start(checkpoint: Path, sinks: Sequence[Path], seed: int) -> int:
    """Start a driver as a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(Driver(checkpoint, sinks, seed).run())
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


class History:
    """Some checkpoints and what is done to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._rng = folder, random.Random(seed)
        self._sinks: dict[Path, tuple[Path, ...]] = {}
        """By checkpoint, where its results go."""
        self.tally = Tally()

    def run(self) -> Tally:
        steps = [self._go_on, self._new, self._take_over, self._second, self._race, self._copy]
        self._new()
        for step in self._rng.choices(steps, (4, 1, 2, 2, 2, 1), k=self._rng.randint(6, 10)):
            step()
            self.check()
        for checkpoint, sinks in self._sinks.items():
            assert self._end(self._start(checkpoint, sinks)) == DONE, f"{checkpoint} does not go on"
        self.check(whole=True)
        return self.tally

    # What may happen. A driver is let run for a moment and killed; it may have ended by then.

    def _new(self) -> None:
        """A new checkpoint with new sinks."""
        self._live(self._fresh(), [self._folder / f"out-{uuid.uuid4().hex[:8]}" for _ in QUERIES])

    def _go_on(self) -> None:
        checkpoint = self._any()
        self._live(checkpoint, self._sinks[checkpoint])

    def _take_over(self) -> None:
        """A new checkpoint, or an old one, on the sinks of another, or on its own in the wrong order."""
        other = self._rng.choice((self._fresh(), self._any()))
        sinks = list(self._sinks[self._any()])
        if self._sinks.get(other) == tuple(sinks):
            sinks.reverse()
        if any((sink / OWNER_FILE).exists() for sink in sinks):
            assert self._end(self._start(other, sinks)) == REFUSED, f"{other} took over {sinks}"

    def _second(self) -> None:
        """Two drivers at once on one checkpoint."""
        checkpoint = self._any()
        pids = [self._start(checkpoint, self._sinks[checkpoint]) for _ in range(2)]
        self._kill(pids)

    def _race(self) -> None:
        """Two new checkpoints at once on the same new sinks: one may have them."""
        sinks = tuple(self._folder / f"out-{uuid.uuid4().hex[:8]}" for _ in QUERIES)
        rivals = [self._fresh(), self._fresh()]
        self._kill([self._start(rival, sinks) for rival in rivals])
        won = [rival for rival in rivals if (rival / "started").exists()]
        assert len(won) <= 1, "two checkpoints write to the same sinks"
        for rival in won:
            self._sinks[rival] = sinks

    def _copy(self) -> None:
        """A copied checkpoint at once with the one it was copied from; the copy is then thrown away."""
        checkpoint = self._any()
        if not (checkpoint / "started").exists():
            return
        copy, sink = self._fresh(), self._sinks[checkpoint][0]
        left = set(sink.glob("_dovetail-*"))  # by drivers that were killed: it does not say that this one has its sinks
        pid = self._start(checkpoint, self._sinks[checkpoint])
        while set(sink.glob("_dovetail-*")) <= left and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".*"), ignore_dangling_symlinks=True)
        second = self._start(copy, self._sinks[checkpoint])
        time.sleep(0.02)
        self._kill([second])
        with suppress(ChildProcessError, ProcessLookupError):  # it may have ended
            self._kill([pid])
        shutil.rmtree(copy)

    def _any(self) -> Path:
        return self._rng.choice(list(self._sinks))

    def _fresh(self) -> Path:
        return self._folder / f"checkpoint-{uuid.uuid4().hex[:8]}"

    def _start(self, checkpoint: Path, sinks: Sequence[Path]) -> int:
        self.tally.starts += 1
        return start(checkpoint, sinks, self._rng.randrange(1 << 30))

    def _live(self, checkpoint: Path, sinks: Sequence[Path]) -> None:
        self._sinks[checkpoint] = tuple(sinks)
        self._kill([self._start(checkpoint, sinks)])

    def _kill(self, pids: Sequence[int]) -> None:
        time.sleep(self._rng.choice((0.02, 0.1, 0.3)) * self._rng.random())
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
                found = seen(sink)
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


def main(folder: Path, seeds: range) -> None:
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pinned_json(LAYOUT)  # parsed here, not in every driver
    total = Tally()
    for seed in seeds:
        try:
            tally = History(folder / str(seed), seed).run()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        total = Tally(total.kills + tally.kills, total.refusals + tally.refusals, total.starts + tally.starts)
        shutil.rmtree(folder / str(seed))
    sys.stdout.write(f"{json.dumps(vars(total))}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])))
