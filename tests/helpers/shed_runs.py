"""Shedding sessions that record which tuple was shed when, and the oracle's results without those tuples."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail._typing import Int64Array
from dovetail.engine.storage.window import WindowStore
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle

TS = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema([("ts", TS), ("k", pa.int64()), ("j", pa.int64()), ("n", pa.int64())])
"""`n` is the number of a tuple in its stream."""
WITH_TEXTS = COLUMNS.append(pa.field("s", pa.string()))
SECOND = 1_000_000
QUERIES = (
    "SELECT {n} FROM a [RANGE 4 s], b [RANGE 6 s] WHERE a.k = b.k",
    "SELECT {n} FROM a [RANGE 5 s], b [RANGE 5 s], c [RANGE 5 s] WHERE a.k = b.k AND b.k = c.k",
    "SELECT {n} FROM a [RANGE 5 s], b [RANGE 3 s], c [RANGE 8 s] WHERE a.k = b.k AND b.k = c.k AND a.j <= c.j",
    "SELECT {n} FROM a [RANGE 5 s], a x [RANGE 3 s] WHERE a.k = x.k",
    "SELECT {n} FROM a [RANGE 5 s], b [RANGE 5 s] WHERE a.k = b.k AND b.j > 1",
)
"""Queries with a common key."""
OTHERS = (
    "SELECT {n} FROM a [RANGE 4 s], b [RANGE 4 s], c [RANGE 4 s] WHERE a.k = b.k AND b.j = c.j",
    "SELECT {n} FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.j < b.j",
)


def selected(sql: str) -> str:
    """Return the query with the tuple number of every alias selected."""
    parts = sql.split(" FROM ")[1].split(" WHERE ", maxsplit=1)[0].split(", ")
    aliases = [part.split(" [")[0].split()[-1] for part in parts]
    return sql.replace("{n}", ", ".join(f"{alias}.n AS {alias}_n, {alias}.ts AS {alias}_ts" for alias in aliases))


@dataclass
class Input:
    """Tuples of streams `a`, `b` and `c`, mostly in order of event time."""

    tables: dict[str, pa.Table]

    @classmethod
    def drawn(cls, rng: random.Random, tuples: int, *, ties: bool = True) -> Input:
        tables = {}
        for stream in "abc":
            step = SECOND // 4 if ties else 1
            times = sorted(rng.randrange(0, 20 * SECOND // step) * step for _ in range(tuples))
            keys = [rng.randrange(1 + tuples // 3) for _ in range(tuples)]
            others = [rng.randrange(4) for _ in range(tuples)]
            tables[stream] = pa.table([pa.array(times, TS), keys, others, range(tuples)], schema=COLUMNS)
        return cls(tables)

    @classmethod
    def with_keys_that_occur_once(cls, rng: random.Random, tuples: int) -> Input:
        """Draw tuples whose key, with few exceptions, occurs once in each stream, within four seconds."""
        first = [rng.randrange(0, 16 * SECOND) for _ in range(tuples)]
        tables = {}
        for stream in "abc":
            drawn = sorted((time + rng.randrange(16) * SECOND // 4, key) for key, time in enumerate(first))
            times = pa.array([time for time, _ in drawn], TS)
            keys = [rng.randrange(tuples) if rng.random() < 0.001 else key for _, key in drawn]
            others = [rng.randrange(4) for _ in range(tuples)]
            tables[stream] = pa.table([times, keys, others, range(tuples)], schema=COLUMNS)
        return cls(tables)

    def with_texts(self, rng: random.Random) -> Input:
        """Add a column of texts, some of them long, some NULL."""
        return Input(
            {
                stream: table.append_column(
                    "s",
                    pa.array([rng.choice((None, "a", "b" * 40, "c" * 300, "d" * 9000)) for _ in range(table.num_rows)]),
                )
                for stream, table in self.tables.items()
            }
        )

    def split(self, rng: random.Random, count: int) -> list[dict[str, pa.Table]]:
        """Split the input into batches that follow each other in event time."""
        ends = [*sorted(rng.randrange(20 * SECOND) for _ in range(count - 1)), 1 << 60]
        batches, before = [], -1
        for end in ends:
            batch = {}
            for stream, table in self.tables.items():
                times = table.column("ts").cast(pa.int64()).to_numpy()
                chosen = np.flatnonzero((times > before) & (times <= end))
                if len(chosen):
                    batch[stream] = table.take(pa.array(chosen))
            batches.append(batch)
            before = end
        return batches

    def split_with_disorder(self, rng: random.Random, count: int) -> list[dict[str, pa.Table]]:
        """Split the input into batches whose tuples may be some seconds late."""
        batches: list[dict[str, list[int]]] = [{stream: [] for stream in self.tables} for _ in range(count)]
        for stream, table in self.tables.items():
            for row, time in enumerate(table.column("ts").cast(pa.int64()).to_pylist()):
                late = time + rng.randrange(3 * SECOND)
                batches[min(count - 1, late * count // (20 * SECOND))][stream].append(row)
        return [
            {
                stream: self.tables[stream].take(pa.array(places, pa.int64()))
                for stream, places in batch.items()
                if places
            }
            for batch in batches
        ]


@dataclass
class RecordedSession:
    """A session that records the tuples its windows shed."""

    config: dt.Config
    queries: Mapping[str, str]
    lateness: float = 0.0
    columns: pa.Schema = COLUMNS
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """By stream and number: the last instant of a tuple that was shed."""
    found: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = dt.LocalSession(config=self.config)
        for stream in "abc":
            self.session.stream(stream, self.columns, event_time="ts", lateness=self.lateness)
        for name, sql in self.queries.items():
            self.session.query(name, selected(sql))
            self.found[name] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the rows that windows hide, and their last instants."""
        hide, all_ends = WindowStore.hide, self.ends

        def record_and_hide(store: WindowStore, rows: Int64Array) -> None:
            assert store.row_ends is not None
            shed, ends = store.row_ends
            assert (shed == rows).all()
            for number, end in zip(store.take(".n", rows).to_pylist(), ends.tolist(), strict=True):
                key = store.name.split(".")[1], number
                assert key not in all_ends, "nothing is shed twice"
                all_ends[key] = end
            hide(store, rows)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WindowStore, "hide", record_and_hide)
            yield

    def push(self, batch: Mapping[str, pa.Table], piece_rows: int | None = None) -> None:
        with self.recording():
            if piece_rows is None:
                given = [*self.session.push(batch).items()]
            else:
                given = [*self.session.push_iter(batch, piece_rows=piece_rows)]
        for name, table in given:
            self.found[name] += _rows(table)
        self.check_caps()

    def abandon(self, batch: Mapping[str, pa.Table]) -> bool:
        """Start a batch, abandon it at its first result, and return whether it had one."""
        before = dict(self.ends)
        with self.recording():
            for _ in self.session.push_iter(batch, piece_rows=2):
                self.ends.clear()
                self.ends.update(before)
                return True
        return False

    def restart(self) -> None:
        self.session = dt.LocalSession.restore(self.session.snapshot())

    def check_caps(self) -> None:
        shedding = self.config.shedding
        assert shedding is not None
        streams: Any = self.session.metrics()["streams"]
        counts = [stream["state_tuples"] for stream in streams.values()]
        if shedding.max_tuples is not None:
            held = sum(counts) if shedding.per == "session" else max(counts)
            assert held <= shedding.max_tuples
        else:
            sizes = [stream["state_bytes"] for stream in streams.values()]
            assert (sum(sizes) if shedding.per == "session" else max(sizes)) <= (shedding.max_bytes or 0)
        assert {name: stream["shed"] for name, stream in streams.items()} == {
            name: sum(key[0] == name for key in self.ends) for name in streams
        }


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    plain = [column.cast(pa.int64()).to_pylist() for column in table.columns]
    return list(zip(*plain, strict=True))


def expected(
    queries: Mapping[str, str], batches: Sequence[Mapping[str, pa.Table]], lateness: float, columns: pa.Schema = COLUMNS
) -> dict[str, Any]:
    """Return all results of each query: for each alias, the number and event time of its tuple."""
    streams = [StreamSchema(name, columns, "ts", int(lateness * SECOND)) for name in "abc"]
    oracle = Oracle(streams)
    catalog = {stream.name: stream for stream in streams}
    parsed = {name: parse_query(name, selected(sql), catalog) for name, sql in queries.items()}
    for query in parsed.values():
        oracle.add_query(query)
    for batch in batches:
        oracle.push(batch)
    return {name: ([ref.stream for ref in parsed[name].refs], _rows(oracle.results_table(name))) for name in parsed}


def check(recorded: RecordedSession, batches: Sequence[Mapping[str, pa.Table]], *, exact: bool) -> None:
    """Check that results are the oracle's, each once, and that every missing one has a shed tuple.

    With `exact`, a result is missing if and only if one of its tuples was shed before its latest tuple arrived. In a batch that
    overlaps earlier ones in event time, a tuple matches all held tuples, whatever their event times.
    """
    for name, (streams, results) in expected(recorded.queries, batches, recorded.lateness, recorded.columns).items():
        found, shed = Counter(recorded.found[name]), dict.fromkeys(recorded.ends, -1)
        assert found <= Counter(results)
        assert survivors(streams, results, shed) <= found
        if exact:
            assert found == survivors(streams, results, recorded.ends)


def survivors(
    streams: Sequence[str], results: Sequence[tuple[Any, ...]], ends: Mapping[tuple[str, int], int]
) -> Counter[Any]:
    """Return the results whose tuples were all still held when the latest of them arrived."""
    left: Counter[Any] = Counter()
    for result in results:
        numbers, latest = result[0::2], max(result[1::2])
        lives = (ends.get((stream, number), latest) for stream, number in zip(streams, numbers, strict=True))
        left[result] += all(end >= latest for end in lives)
    return +left
