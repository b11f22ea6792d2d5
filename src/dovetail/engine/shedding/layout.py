"""Join inputs that read the windows of a plan, with their keys and times: the layout of a tuple table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dovetail._typing import Int32Array, Int64Array, UInt64Array
from dovetail.engine.change.adopt import InstalledPlan
from dovetail.engine.join.step import JoinRun
from dovetail.engine.kernels.batches import interleave
from dovetail.engine.kernels.key_history import EPOCHS, MOST_INPUTS
from dovetail.engine.kernels.tuple_table import NONE, TupleBatch, WindowReaders
from dovetail.engine.keys import combine
from dovetail.engine.shedding.caps import ShedCaps
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.window import WORD_BITS, WindowStore
from dovetail.plan.needs import KeyId, column_name
from dovetail.plan.sheddable import common_key
from dovetail.query.model import EqualityClass, TimeWindow
from dovetail.schema import StreamSchema

_TUPLES_AT_A_TIME = 1 << 14
_MAX_HISTORY = 1 << 28
"""Largest number of memberships under a cap with a key history: its entries have 32-bit indexes."""


@dataclass(frozen=True)
class WindowReader:
    """One input of a join that reads a window."""

    stream: str
    step: str
    source: str
    bit: int
    span: int
    key_table: int
    slot: int
    key_parts: tuple[KeyId, ...]
    """The stored keys whose codes are combined into its key code."""


@dataclass(frozen=True)
class KeyTable:
    """Counts the keys of join inputs that are equal in them."""

    step: str
    covers_join: bool
    """Whether these are all inputs of the join, so that its results can be counted."""


@dataclass(frozen=True)
class TableLayout:
    """The windows that are shed from, in order, and their readers."""

    streams: tuple[str, ...]
    readers: tuple[WindowReader, ...]
    """Readers of the same window are adjacent."""
    key_tables: tuple[KeyTable, ...]
    retention: tuple[tuple[int, int, int], ...]
    """A window, microseconds, and a bit for each window whose stream has to advance that far."""
    lateness: tuple[int, ...]

    @classmethod
    def of(cls, installed: InstalledPlan, streams: Mapping[str, StreamSchema]) -> TableLayout:
        """Return the layout for an installed plan."""
        names = tuple(sorted(installed.windows))
        readers, key_tables = list[WindowReader](), list[KeyTable]()
        for run in installed.runs.values():
            for keys, covers_join in _join_keys(run):
                key_table = len(key_tables) if keys else NONE
                if keys:
                    key_tables.append(KeyTable(run.name, covers_join))
                readers += _readers_of_join(run, installed, keys, key_table)
        retention = []
        for position, name in enumerate(names):
            for kept in installed.plans[name].retention:
                if isinstance(kept.window, TimeWindow):
                    others = sum(1 << names.index(other) for other in kept.others)
                    retention.append((position, kept.window.micros, others))
        return cls(
            names,
            tuple(sorted(readers, key=lambda reader: names.index(reader.stream))),
            tuple(key_tables),
            tuple(retention),
            tuple(streams[name].lateness for name in names),
        )

    @cached_property
    def by_stream(self) -> dict[str, list[WindowReader]]:
        """Readers by stream."""
        return {name: [reader for reader in self.readers if reader.stream == name] for name in self.streams}

    def lateness_of(self, stream: str) -> int:
        """Return the lateness of a stream."""
        return self.lateness[self.streams.index(stream)]

    @property
    def has_common_keys(self) -> bool:
        """Whether every join has a common key."""
        return all(reader.key_table != NONE for reader in self.readers) and all(
            key_table.covers_join for key_table in self.key_tables
        )

    def tables_with_history(self, max_units: Sequence[int]) -> list[int]:
        """Return the key tables whose joins get a key history, so that dead keys can be shed first."""
        widths = Counter(reader.key_table for reader in self.readers)
        if sum(max_units) * self._readers_per_window > _MAX_HISTORY:
            return []
        return [
            position
            for position, key_table in enumerate(self.key_tables)
            if key_table.covers_join and widths[position] <= MOST_INPUTS
        ]

    def arrays(
        self,
        pools: Sequence[int],
        max_units: Sequence[int],
        *,
        seen: bool = True,
        by_key: bool = True,
        dead_keys_first: bool = False,
    ) -> WindowReaders:
        """Return the arrays for kernels; `seen=False`: without readers; `by_key=False`: without keys.

        `dead_keys_first`: with a key history for joins that can have one.
        """
        readers, key_tables = (self.readers if seen else ()), (self.key_tables if seen and by_key else ())
        tables_with_history = self.tables_with_history(max_units) if seen and dead_keys_first else []
        joins = [
            tables_with_history.index(reader.key_table) if reader.key_table in tables_with_history else NONE
            for reader in readers
        ]
        spans = [
            [reader.span for reader in self.readers if reader.key_table == key_table]
            for key_table in tables_with_history
        ]
        if not by_key:
            readers = tuple(replace(reader, key_table=NONE) for reader in readers)
        counts = [sum(reader.stream == name for reader in readers) for name in self.streams]
        widths = [sum(reader.key_table == key_table for reader in readers) for key_table in range(len(key_tables))]
        by_slot = np.full((len(key_tables), max(widths, default=1)), NONE, np.int64)
        for position, reader in enumerate(readers):
            if reader.key_table != NONE:
                by_slot[reader.key_table, reader.slot] = position
        return WindowReaders(
            np.cumsum([0, *counts]),
            _int64_array(reader.key_table for reader in readers),
            _int64_array(reader.slot for reader in readers),
            _int64_array(reader.span for reader in readers),
            _int64_array(widths),
            by_slot,
            _int64_array(pools),
            _int64_array(max_units),
            np.array(self.retention, np.int64).reshape(-1, 3),
            _int64_array(self.lateness),
            _int64_array(self.streams.index(reader.stream) for reader in readers),
            _int64_array(joins),
            _int64_array(len(equality) for equality in spans),
            _int64_array(max(1, max(equality) // EPOCHS) for equality in spans),
        )

    # -- tuples -----------------------------------------------------------------------------------------------------------------

    def incoming(
        self, arrived: Mapping[str, NewRows], firsts: Mapping[str, int], unseen: Mapping[str, Int64Array]
    ) -> TupleBatch:
        """Return new tuples by event time, then stream, then arrival; their row numbers start at `firsts`.

        `unseen`: event times of tuples that no query sees. They have no row number, and only advance their stream's time.
        """
        others = [(stream, ts) for stream, ts in unseen.items() if len(ts)]
        parts = [self._unseen(stream, ts) for stream, ts in others]
        parts += [
            self._tuples(stream, firsts[stream] + np.arange(len(new)), new.ts, new.codes, new.flags, new.units)
            for stream in self.streams
            if (new := arrived.get(stream)) is not None
        ]
        starts = np.cumsum([0, *(len(part.ts) for part in parts)])
        concatenated = concat([self._unseen("", np.zeros(0, np.int64)), *parts])
        columns: Any = (np.empty_like(values) for values in concatenated)
        merged = TupleBatch(*columns)
        interleave(concatenated, starts, merged)
        return merged

    def held_tuples(
        self, windows: Mapping[str, WindowStore], caps: ShedCaps, rows_by_stream: Mapping[str, Int64Array]
    ) -> Iterator[TupleBatch]:
        """Yield some rows of windows in event-time order, in batches so small that they take little memory."""
        rows = [_live_rows(windows[stream], rows_by_stream.get(stream)) for stream in self.streams]
        starts = np.cumsum([0, *map(len, rows)])
        stores = [windows[stream].rows for stream in self.streams]
        times = [store["ts"][of_window - store.base] for store, of_window in zip(stores, rows, strict=True)]
        order = np.argsort(np.concatenate(times), kind="stable").astype(np.int32)
        for first in range(0, len(order), _TUPLES_AT_A_TIME):
            part = order[first : first + _TUPLES_AT_A_TIME]
            window = np.searchsorted(starts, part, "right") - 1
            positions = [np.flatnonzero(window == position) for position in range(len(rows))]
            parts = [
                self._stored_tuples(stream, windows[stream], of_window[part[selected] - start], caps)
                for stream, of_window, selected, start in zip(self.streams, rows, positions, starts, strict=False)
            ]
            yield take(concat(parts), np.argsort(np.concatenate(positions)))

    def _stored_tuples(self, stream: str, store: WindowStore, rows: Int64Array, caps: ShedCaps) -> TupleBatch:
        """Return some rows of a window."""
        at = rows - store.rows.tail
        codes = {key: store.live_values(name)[at].view(np.uint64) for key, name in store.codes.items()}
        flags = [store.live_values(store.flag_name(word))[at].view(np.uint64) for word in range(store.flag_words)]
        units = caps.units_of(store)
        return self._tuples(
            stream, rows, store.live_values("ts")[at], codes, flags, None if units is None else units[at]
        )

    @cached_property
    def _readers_per_window(self) -> int:
        """The largest number of readers of a window."""
        return max(1, *(len(readers) for readers in self.by_stream.values()))

    def _tuples(
        self,
        stream: str,
        rows: Int64Array,
        ts: Int64Array,
        codes: Mapping[KeyId, UInt64Array],
        flags: Sequence[UInt64Array | np.uint64],
        units: Int32Array | None,
    ) -> TupleBatch:
        """Return tuples of a stream in their order."""
        count = len(ts)
        matrix, seen = np.zeros((count, self._readers_per_window), np.uint64), np.zeros(count, np.int64)
        for position, reader in enumerate(self.by_stream[stream]):
            word = np.broadcast_to(flags[reader.bit // WORD_BITS], count)
            seen |= ((word >> np.uint64(reader.bit % WORD_BITS)) & np.uint64(1)).astype(np.int64) << position
            if reader.key_parts:
                matrix[:, position] = combine([codes[part] for part in reader.key_parts])
        window = np.full(count, self.streams.index(stream), np.int64)
        if units is None:
            units = np.ones(count, np.int32)
        return TupleBatch(window, rows, np.asarray(ts), matrix, seen, units)

    def _unseen(self, stream: str, ts: Int64Array) -> TupleBatch:
        """Return tuples that no query sees."""
        window = np.full(len(ts), self.streams.index(stream) if len(ts) else 0, np.int64)
        none_seen = np.zeros(len(ts), np.int64)
        codes, units = np.zeros((len(ts), self._readers_per_window), np.uint64), np.ones(len(ts), np.int32)
        return TupleBatch(window, none_seen - 1, ts, codes, none_seen, units)


def _live_rows(store: WindowStore, rows: Int64Array | None) -> Int64Array:
    """Return the live ones of some rows, ascending; all live rows if `rows` is None."""
    if rows is None:
        return np.arange(store.rows.tail, store.rows.head)
    return np.sort(rows[(rows >= store.rows.tail) & (rows < store.rows.head)])


def concat(parts: Sequence[TupleBatch]) -> TupleBatch:
    """Concatenate batches."""
    columns: Any = (np.concatenate(values) for values in zip(*parts, strict=True))
    return TupleBatch(*columns)


def take(incoming: TupleBatch, positions: Int64Array | slice) -> TupleBatch:
    """Return the tuples at some positions."""
    columns: Any = (values[positions] for values in incoming)
    return TupleBatch(*columns)


def _int64_array(values: Iterable[int]) -> Int64Array:
    return np.array(list(values), np.int64)


def _join_keys(run: JoinRun) -> Iterator[tuple[tuple[EqualityClass, ...], bool]]:
    """Yield the keys of a join, and whether all inputs have them: a common key, else every class of equal columns, else none."""
    query = run.plan.query
    if common := common_key(query):
        yield common, True
        return
    for equality in query.classes:
        yield (equality,), False
    if len({key.alias for equality in query.classes for key in equality.keys}) < len(query.aliases):
        yield (), False


def _readers_of_join(
    run: JoinRun, installed: InstalledPlan, keys: Sequence[EqualityClass], key_table: int
) -> list[WindowReader]:
    """Return the inputs that have all of some keys, or, if `keys` is empty, those without any key."""
    query, readers = run.plan.query, list[WindowReader]()
    keyed = {key.alias for equality in (keys or query.classes) for key in equality.keys}
    for source in run.step.sources:
        if (source.name in keyed) != bool(keys) or not isinstance(source.window, TimeWindow):
            continue
        store = installed.windows[source.stream]
        parts = []
        for equality in keys:
            names = [(column_name(expression),) for expression in equality.of(source.name)]
            parts.append(next(name for name in names if name in store.codes))
        bit = installed.plans[source.stream].bits[run.name, source.name]
        slot = len(readers) if keys else 0
        span = source.window.micros
        readers.append(WindowReader(source.stream, run.name, source.name, bit, span, key_table, slot, tuple(parts)))
    return readers
