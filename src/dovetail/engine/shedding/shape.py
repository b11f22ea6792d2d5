"""Who sees the windows of a plan, by which keys and for how long: what a roster is laid out for."""

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
from dovetail.engine.kernels.roster import NONE, Incoming, Uses
from dovetail.engine.keys import combine
from dovetail.engine.shedding.room import Room
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.window import WORD_BITS, WindowStore
from dovetail.plan.needs import KeyId, column_name
from dovetail.plan.sheddable import common_key
from dovetail.query.model import EqualityClass, TimeWindow
from dovetail.schema import StreamSchema

_MOST_REMEMBERED = 1 << 28
"""Tuples and uses under a cap that can have a history: its entries are numbered with 32 bits."""


@dataclass(frozen=True)
class WindowUse:
    """One input of a join."""

    stream: str
    step: str
    source: str
    bit: int
    span: int
    table: int
    slot: int
    parts: tuple[KeyId, ...]
    """The keys whose codes make its code."""


@dataclass(frozen=True)
class Table:
    """Inputs of a join with the same key."""

    step: str
    whole: bool
    """Whether they are all the join's inputs: then its results are counted."""


@dataclass(frozen=True)
class RosterShape:
    """The windows that are shed from, in order, and who sees them."""

    streams: tuple[str, ...]
    uses: tuple[WindowUse, ...]
    """Those of a window follow each other."""
    tables: tuple[Table, ...]
    retention: tuple[tuple[int, int, int], ...]
    """A window, microseconds, and a bit for each window whose stream is waited for."""
    lateness: tuple[int, ...]

    @classmethod
    def of(cls, installed: InstalledPlan, streams: Mapping[str, StreamSchema]) -> RosterShape:
        """The shape of what a group runs."""
        names = tuple(sorted(installed.windows))
        found, tables = list[WindowUse](), list[Table]()
        for run in installed.runs.values():
            for keys, whole in _keyed(run):
                table = len(tables) if keys else NONE
                if keys:
                    tables.append(Table(run.name, whole))
                found += _uses(run, installed, keys, table)
        retention = []
        for place, name in enumerate(names):
            for kept in installed.plans[name].retention:
                if isinstance(kept.window, TimeWindow):
                    others = sum(1 << names.index(other) for other in kept.others)
                    retention.append((place, kept.window.micros, others))
        return cls(
            names,
            tuple(sorted(found, key=lambda use: names.index(use.stream))),
            tuple(tables),
            tuple(retention),
            tuple(streams[name].lateness for name in names),
        )

    @cached_property
    def by_stream(self) -> dict[str, list[WindowUse]]:
        return {name: [use for use in self.uses if use.stream == name] for name in self.streams}

    def lateness_of(self, stream: str) -> int:
        return self.lateness[self.streams.index(stream)]

    @property
    def is_common(self) -> bool:
        """Whether every join has a common key."""
        return all(use.table != NONE for use in self.uses) and all(table.whole for table in self.tables)

    def remembered(self, caps: Sequence[int]) -> list[int]:
        """Tables whose joins remember keys, so that tuples of dead ones are shed first."""
        widths = Counter(use.table for use in self.uses)
        if sum(caps) * self._most_uses > _MOST_REMEMBERED:
            return []
        return [number for number, table in enumerate(self.tables) if table.whole and widths[number] <= MOST_INPUTS]

    def arrays(
        self,
        pools: Sequence[int],
        caps: Sequence[int],
        *,
        seen: bool = True,
        by_key: bool = True,
        dead_keys_first: bool = False,
    ) -> Uses:
        """The same for kernels; unless `seen`, as if nobody saw the windows, and unless `by_key`, as if joins had no keys.

        `dead_keys_first`: with a history of keys.
        """
        uses, tables = (self.uses if seen else ()), (self.tables if seen and by_key else ())
        remembered = self.remembered(caps) if seen and dead_keys_first else []
        joins = [remembered.index(use.table) if use.table in remembered else NONE for use in uses]
        spans = [[use.span for use in self.uses if use.table == table] for table in remembered]
        if not by_key:
            uses = tuple(replace(use, table=NONE) for use in uses)
        counts = [sum(use.stream == name for use in uses) for name in self.streams]
        widths = [sum(use.table == table for use in uses) for table in range(len(tables))]
        of = np.full((len(tables), max(widths, default=1)), NONE, np.int64)
        for number, use in enumerate(uses):
            if use.table != NONE:
                of[use.table, use.slot] = number
        return Uses(
            np.cumsum([0, *counts]),
            _numbers(use.table for use in uses),
            _numbers(use.slot for use in uses),
            _numbers(use.span for use in uses),
            _numbers(widths),
            of,
            _numbers(pools),
            _numbers(caps),
            np.array(self.retention, np.int64).reshape(-1, 3),
            _numbers(self.lateness),
            _numbers(self.streams.index(use.stream) for use in uses),
            _numbers(joins),
            _numbers(len(each) for each in spans),
            _numbers(max(1, max(each) // EPOCHS) for each in spans),
        )

    # -- tuples -----------------------------------------------------------------------------------------------------------------

    def incoming(
        self, arrived: Mapping[str, NewRows], firsts: Mapping[str, int], unseen: Mapping[str, Int64Array]
    ) -> Incoming:
        """New tuples in order of event time, then of stream, then of arrival; they get row numbers from `firsts` on.

        `unseen`: event times of tuples that nobody sees. They have no number, and only move their stream's time.
        """
        others = [(stream, ts) for stream, ts in unseen.items() if len(ts)]
        made = [self._unseen(stream, ts) for stream, ts in others]
        made += [
            self._tuples(stream, firsts[stream], new.ts, new.codes, new.flags, new.units)
            for stream in self.streams
            if (new := arrived.get(stream)) is not None
        ]
        starts = np.cumsum([0, *(len(part.ts) for part in made)])
        whole = joined([self._unseen("", np.zeros(0, np.int64)), *made])
        columns: Any = (np.empty_like(values) for values in whole)
        merged = Incoming(*columns)
        interleave(whole, starts, merged)
        return merged

    def living(self, windows: Mapping[str, WindowStore], room: Room) -> Incoming:
        """The same of tuples that windows hold."""
        found = []
        for stream in self.streams:
            store = windows[stream]
            codes = {key: store.live_values(name).view(np.uint64) for key, name in store.codes.items()}
            flags = [store.live_values(store.flag_name(word)).view(np.uint64) for word in range(store.flag_words)]
            found.append(
                self._tuples(stream, store.rows.tail, store.live_values("ts"), codes, flags, room.units_of(store))
            )
        whole = joined(found)
        return chosen(whole, np.argsort(whole.ts, kind="stable"))

    @cached_property
    def _most_uses(self) -> int:
        return max(1, *(len(uses) for uses in self.by_stream.values()))

    def _tuples(
        self,
        stream: str,
        first: int,
        ts: Int64Array,
        codes: Mapping[KeyId, UInt64Array],
        flags: Sequence[UInt64Array | np.uint64],
        units: Int32Array | None,
    ) -> Incoming:
        """Tuples of a stream, as they are; they have row numbers from `first` on."""
        count = len(ts)
        matrix, seen = np.zeros((count, self._most_uses), np.uint64), np.zeros(count, np.int64)
        for place, use in enumerate(self.by_stream[stream]):
            word = np.broadcast_to(flags[use.bit // WORD_BITS], count)
            seen |= ((word >> np.uint64(use.bit % WORD_BITS)) & np.uint64(1)).astype(np.int64) << place
            if use.parts:
                matrix[:, place] = combine([codes[part] for part in use.parts])
        window = np.full(count, self.streams.index(stream), np.int64)
        if units is None:
            units = np.ones(count, np.int32)
        return Incoming(window, np.arange(first, first + count), np.asarray(ts), matrix, seen, units)

    def _unseen(self, stream: str, ts: Int64Array) -> Incoming:
        """Tuples that nobody sees."""
        window = np.full(len(ts), self.streams.index(stream) if len(ts) else 0, np.int64)
        nobody = np.zeros(len(ts), np.int64)
        codes, units = np.zeros((len(ts), self._most_uses), np.uint64), np.ones(len(ts), np.int32)
        return Incoming(window, nobody - 1, ts, codes, nobody, units)


def joined(parts: Sequence[Incoming]) -> Incoming:
    """Tuples one part after another."""
    columns: Any = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Incoming(*columns)


def chosen(incoming: Incoming, numbers: Int64Array | slice) -> Incoming:
    """Some of the tuples."""
    columns: Any = (values[numbers] for values in incoming)
    return Incoming(*columns)


def _numbers(values: Iterable[int]) -> Int64Array:
    return np.array(list(values), np.int64)


def _keyed(run: JoinRun) -> Iterator[tuple[tuple[EqualityClass, ...], bool]]:
    """The keys of a join: one that is common to all inputs, or every class of equal columns, or none."""
    query = run.plan.query
    if common := common_key(query):
        yield common, True
        return
    for each in query.classes:
        yield (each,), False
    if len({key.alias for each in query.classes for key in each.keys}) < len(query.aliases):
        yield (), False


def _uses(run: JoinRun, installed: InstalledPlan, keys: Sequence[EqualityClass], table: int) -> list[WindowUse]:
    """The inputs that have some keys, or, if there are no keys, those that have none at all."""
    query, found = run.plan.query, list[WindowUse]()
    keyed = {key.alias for each in (keys or query.classes) for key in each.keys}
    for source in run.step.sources:
        if (source.name in keyed) != bool(keys) or not isinstance(source.window, TimeWindow):
            continue
        store = installed.windows[source.stream]
        parts = []
        for each in keys:
            names = [(column_name(expression),) for expression in each.of(source.name)]
            parts.append(next(name for name in names if name in store.codes))
        bit = installed.plans[source.stream].bits[run.name, source.name]
        slot = len(found) if keys else 0
        span = source.window.micros
        found.append(WindowUse(source.stream, run.name, source.name, bit, span, table, slot, tuple(parts)))
    return found
