"""Random histories of a job on Spark that is stopped, put back, changed and started again; every batch is compared with the oracle.

The generator leaves out what the documentation does not decide:

- A checkpoint is not put back to before the last change of the job: the queries that came with that change could begin where they
  began, or with the first batch that is not completed.
- A query that begins or changes with a batch is not changed again before that batch is completed, and is not dropped if it is the
  first to read a column: the second change could be compared with the job of the aborted batch or with the one before.
- One query is changed at a time, so that it is clear which group of shards it joins.
- A lateness is never raised above the one that completed batches had: the tuples that late ones would meet may be forgotten.
- The batch in which a checkpoint is resharded is never removed: `dt.reshard` returns after it is completed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from replay_job import (
    AVAILABLE_NOW,
    COLUMNS,
    LATENESS,
    JobChange,
    JobRecord,
    Push,
    QuerySpec,
    declare,
    entry_numbers,
    parquet_sinks,
)

import dovetail as dt
from dovetail.errors import StateError

WINDOWS = (1, 3, 8, 20)
"""Seconds."""
ChangeParts = dict[str, Any]
"""Arguments of `JobChange`; none if the change cannot be made."""


class ReplayedJob(JobRecord):
    """A job that is started and stopped, whose checkpoint is put back and whose queries change in between."""

    def __init__(
        self, spark: SparkSession, folder: Path, queries: Mapping[str, QuerySpec], streams: str = "ab"
    ) -> None:
        super().__init__(folder, queries, streams)
        self.spark, self.shards = spark, 2
        self._started_with = 0
        """The first batch of the last start."""

    # Between two starts.

    def remove_newest(self, commits: int, offsets: int = 0) -> None:
        """Remove the newest entries of Spark's logs."""
        for log, count in (("commits", commits), ("offsets", offsets)):
            for number in entry_numbers(self.checkpoint / log)[-count:] if count else ():
                (self.checkpoint / log / str(number)).unlink()
                (self.checkpoint / log / f".{number}.crc").unlink(missing_ok=True)
                self.lines.append(f"remove {log}/{number}")

    def reshard(self, shards: int) -> None:
        """Go on with another number of shards, in a new checkpoint directory."""
        old, new = self.checkpoint, self.folder / f"checkpoint-{self.next_batch}"
        dt.reshard(self.spark, old, new, shards)
        self.checkpoint, self.shards = new, shards
        self.lines.append(f"reshard to {shards} shards")

    # While the job runs.

    def run(self) -> None:
        """Start the job, let it read all input, and compare its results and its counters."""
        self.start()
        try:
            self.running.await_termination(120)
        finally:
            self.running.stop()
        self.check()
        self.check_counters()

    def start(self, *, available_now: bool = True) -> None:
        """Start the job. If a sink is ahead of the checkpoint, expect a refusal and follow its hint."""
        self._started_with = self.next_batch
        last = max(entry_numbers(self.checkpoint / "offsets"), default=-1)
        if any(max(self.written(name), default=-1) > last for name in self.queries):
            with pytest.raises(StateError, match=r"holds batch \d+, but the checkpoint .* has started no batch"):
                self._start(available_now=available_now)
            self._remove_batches_after(last)
        self.lines.append(f"start with batch {self._started_with}{'' if available_now else ', to run on'}")
        self._start(available_now=available_now)

    def _start(self, *, available_now: bool) -> None:
        session = declare(self.spark, self.folder, self.lateness, self.texts, self.shards)
        trigger = AVAILABLE_NOW if available_now else None
        self.running = session.start(parquet_sinks(self.folder, self.queries), self.checkpoint, trigger)

    def _remove_batches_after(self, last: int) -> None:
        for name in self.queries:
            for batch, folder in self.written(name).items():
                if batch > last:
                    shutil.rmtree(folder)
                    self.lines.append(f"remove batch {batch} from the sink of {name}")

    def wait(self) -> None:
        """Wait until all input that is there is read."""
        self.running.query.processAllAvailable()

    def add_query(self, name: str, spec: QuerySpec, *, backfill: bool) -> None:
        """Add a query while the job runs; the plan log says from which batch on."""
        self.running.add_query(name, spec.sql, parquet_sinks(self.folder, [name])[name], backfill=backfill)
        self.record(JobChange(self.last_change, added={name: spec}, backfill=backfill))

    def drop_query(self, name: str) -> None:
        """Drop a query while the job runs."""
        self.running.drop_query(name)
        self.record(JobChange(self.last_change, dropped=(name,)))

    @property
    def last_change(self) -> int:
        """The first batch of the newest entry in the plan log."""
        entries = sorted((self.checkpoint / "dovetail" / "_plans").glob("*.json"))
        return int(json.loads(entries[-1].read_text(encoding="utf-8"))["first"])

    def check_counters(self) -> None:
        """Compare the counters with the oracle: those of streams over the whole history, batches since the start."""
        oracle, metrics = self.expected(), self.running.metrics()
        for stream in self.streams:
            counters = {counter: metrics["streams"][stream][counter] for counter in ("arrivals", "late")}
            wanted = {"arrivals": oracle.arrivals[stream], "late": oracle.late[stream]}
            assert counters == wanted, f"stream {stream}: counted {counters}, expected {wanted}"
        batches = self.next_batch - self._started_with
        assert metrics["batches"] == batches, f"{metrics['batches']} batches counted, {batches} were run"


# -- random input and queries -------------------------------------------------------------------------------------------------


def random_input(rng: random.Random, number: int, streams: str) -> Push:
    """A few tuples of each stream, of some streams none; part of them is late."""
    tables: Push = {}
    for stream in streams:
        rows = [
            {
                "ts": 2_000_000 * number + rng.randrange(5_000_000),
                "k": rng.choice((None, 1, 2, 3)),
                "j": rng.choice((None, "x", "y", "z")),
                "v": rng.randrange(4),
                "w": rng.randrange(4),
            }
            for _ in range(rng.randint(5, 12))
        ]
        if rng.random() < 0.9 or (stream == streams[-1] and not tables):
            tables[stream] = pa.Table.from_pylist(rows, COLUMNS)
    return tables


def random_query(rng: random.Random, streams: str) -> QuerySpec:
    """A query of two or three streams by one key."""
    joined = rng.sample(streams, rng.randint(2, len(streams)))
    windows = {stream: rng.choice(WINDOWS) for stream in sorted(joined)}
    key = rng.choice(("k", "k", "j"))
    selected = rng.choice(((), (), (f"{joined[0]}.v",)))
    return QuerySpec(windows, (key,) * (len(windows) - 1), selected)


class RandomChanges:
    """Changes of a job. Each takes as many random numbers whatever the timing was, so that a seed gives one history."""

    def __init__(self, rng: random.Random, job: JobRecord) -> None:
        self._rng, self._job = rng, job
        self._added = 0

    def choose(self) -> ChangeParts:
        """Nothing, one change, or two."""
        one_query = (self.resize_window, self.toggle_filter, self.select, self.read_column, self.change_key)
        whole_job = (self.add, self.drop, self.set_lateness)
        changes = [self._rng.choice(one_query), *self._rng.sample(whole_job, 2)]
        parts: ChangeParts = {}
        for change in self._rng.sample(changes, self._rng.choices((0, 1, 2), (3, 5, 2))[0]):
            parts |= change()
        if set(parts.get("dropped", ())) & set(parts.get("changed", ())):
            del parts["dropped"]
        return parts

    def _choose(self, options: Sequence[str]) -> str:
        return options[int(self._rng.random() * len(options))]

    def _choose_query(self) -> tuple[str, QuerySpec] | None:
        """Choose a query that has run since a completed batch; None if there is none."""
        began = {name: self._start_of(name).first for name in self._job.queries}
        running = [name for name, first in began.items() if first < self._job.next_batch]
        name = self._choose(running or list(began))
        return (name, self._job.queries[name]) if running else None

    def _start_of(self, name: str) -> JobChange:
        """The change with which a query began, or that changed it last."""
        return [change for change in self._job.changes if name in change.added or name in change.changed][-1]

    def _columns_read(self, changes: Sequence[JobChange]) -> set[str]:
        specs = [spec for change in changes for spec in (*change.added.values(), *change.changed.values())]
        return {column for spec in specs for column in spec.all_columns}

    def resize_window(self) -> ChangeParts:
        """Make a window wider or narrower."""
        if (chosen := self._choose_query()) is None:
            return {}
        name, spec = chosen
        stream = self._choose(list(spec.windows))
        seconds = self._rng.choice([seconds for seconds in WINDOWS if seconds != spec.windows[stream]])
        return {"changed": {name: replace(spec, windows={**spec.windows, stream: seconds})}}

    def toggle_filter(self) -> ChangeParts:
        """Add a filter, which may let nothing pass, or remove the one that is there."""
        if (chosen := self._choose_query()) is None:
            return {}
        name, spec = chosen
        added = f"{self._choose(list(spec.windows))}.{self._choose('vw')} > {self._rng.randrange(1, 4)}"
        return {"changed": {name: replace(spec, filters=() if spec.filters else (added,))}}

    def select(self) -> ChangeParts:
        """Select another column that is read already."""
        return self._selecting(is_read=True)

    def read_column(self) -> ChangeParts:
        """Select a column that no query has read."""
        return self._selecting(is_read=False)

    def _selecting(self, *, is_read: bool) -> ChangeParts:
        if (chosen := self._choose_query()) is None:
            return {}
        name, spec = chosen
        read = self._columns_read(self._job.changes)
        columns = [f"{stream}.{column}" for stream in spec.windows for column in "kjvw"]
        fitting = [column for column in columns if (column in read) == is_read and (column,) != spec.selected]
        column = self._choose(fitting or columns)
        return {"changed": {name: replace(spec, selected=(column,))}} if fitting else {}

    def change_key(self) -> ChangeParts:
        """Compare other columns, so that tuples lie in other shards."""
        chosen = self._choose_query()
        if chosen is None or len(chosen[1].placement) > 1:
            return {}
        name, spec = chosen
        return {"changed": {name: replace(spec, keys=("j" if spec.keys[0] == "k" else "k",) * len(spec.keys))}}

    def add(self) -> ChangeParts:
        """Add a query."""
        self._added += 1
        return {"added": {f"r{self._added}": random_query(self._rng, self._job.streams)}}

    def drop(self) -> ChangeParts:
        """Drop a query, unless it is the last one, or began with the next batch and is the first to read a column."""
        name = self._choose(list(self._job.queries))
        began = self._start_of(name)
        read = self._columns_read(self._job.changes[: self._job.changes.index(began)])
        introduces = began.first == self._job.next_batch and not self._job.queries[name].all_columns <= read
        return {} if introduces or len(self._job.queries) == 1 else {"dropped": (name,)}

    def set_lateness(self) -> ChangeParts:
        """Lower the lateness of a stream, or raise it to that of the last completed batch."""
        stream, micros = self._choose(self._job.streams), self._rng.choice((0, 0, 500_000, 1_000_000, 2_000_000))
        completed = [change for change in self._job.changes if change.first < self._job.next_batch]
        most = [LATENESS[stream], *(change.lateness[stream] for change in completed if stream in change.lateness)][-1]
        return {"lateness": {stream: micros}} if micros <= most and micros != self._job.lateness[stream] else {}


# -- histories ----------------------------------------------------------------------------------------------------------------


class ReplayHistory:
    """A job on two or three streams, and five to eight steps: put back, change, start, run one to three batches, compare, stop."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self._rng, self._seed = random.Random(seed), seed
        streams = self._rng.choice(("ab", "abc"))
        queries = {f"q{number}": random_query(self._rng, streams) for number in range(self._rng.randint(1, 2))}
        if streams == "abc" and self._rng.random() < 0.4:
            queries["chain"] = QuerySpec({"a": 3, "b": 8, "c": 8}, ("k", "j"))
        self.job = ReplayedJob(spark, folder, queries, streams)
        self._changes = RandomChanges(self._rng, self.job)
        self._files = 0
        self._floor = 0
        """The first batch that may be run again."""

    def run(self) -> None:
        """Run all steps; an error says the seed and the history."""
        try:
            for step in range(self._rng.randint(5, 8)):
                self.job.lines.append(f"step {step}:")
                self._step()
        except Exception as error:
            reason = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {str(error)[:300]}"
            lines = [f"seed {self._seed}: {reason}", "history:", *self.job.lines]
            raise AssertionError("\n  ".join(lines)) from error

    def _step(self) -> None:
        is_first = not self.job.checkpoint.exists()
        is_replay = not is_first and self._put_back()
        if not is_first and not is_replay and self._rng.random() < 0.15:
            self.job.reshard(5 - self.job.shards)
            self._floor = self.job.next_batch
        if not is_first and (change := self._changes.choose()):
            self.job.change(**change)
            self._floor = self.job.next_batch
        if self._rng.random() < 0.35:
            self._run_live()
            return
        for _ in range(self._rng.randint(0 if is_replay else 1, 3)):
            self._add_input()
        self.job.run()

    def _put_back(self) -> bool:
        """Remove the newest entries of Spark's logs, or none; give whether a batch is to be run again."""
        last = self.job.next_batch - 1
        commits, offsets = self._rng.choices(((0, 0), (1, 0), (1, 1), (2, 1)), (3, 4, 2, 2))[0]
        while commits and last - commits + 1 < self._floor:
            commits, offsets = commits - 1, 0
        self.job.remove_newest(commits, min(offsets, last))  # a checkpoint without offsets is refused
        return commits > 0

    def _add_input(self) -> None:
        self.job.input.add(random_input(self._rng, self._files, self.job.streams))
        self._files += 1

    def _run_live(self) -> None:
        """Add and drop queries while the job runs, at rest or with a batch under way."""
        self.job.start(available_now=False)
        try:
            for _ in range(self._rng.randint(1, 2)):
                self._add_input()
                self._change_live(at_rest=self._rng.random() < 0.5)
            self._add_input()
            self.job.wait()
        finally:
            self.job.running.stop()
        self._floor = self.job.changes[-1].first
        self.job.check()
        self.job.check_counters()

    def _change_live(self, *, at_rest: bool) -> None:
        if at_rest:
            self.job.wait()
        expected = self.job.next_batch
        backfill, dropped = self._rng.random() < 0.7, self._changes.drop().get("dropped", ())
        if dropped and self._rng.random() < 0.4:
            self.job.drop_query(*dropped)
        else:
            (added,) = self._changes.add()["added"].items()
            self.job.add_query(*added, backfill=backfill)
        first = self.job.changes[-1].first
        assert not at_rest or first == expected, f"the change holds from batch {first} on, and {expected} was the next"
