"""Stored sub-joins: a window whose rows are matches.

A match is the row numbers of its tuples, which stay in their streams' windows; nothing is copied but the codes that probes compare.
It counts as a tuple with the latest of its tuples' times, and takes part until the first of them leaves its own window: one instant,
stored per row, for each set of windows that a reader has. Its tuples outlive it, because whoever needs a match needs them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.arena import Arena
from dovetail.engine.columns import Column
from dovetail.engine.intake import Usage, free_bit
from dovetail.engine.kernels.rows import first_at_or_after
from dovetail.engine.keys import combine
from dovetail.engine.needs import AliasNeeds, stored_name
from dovetail.engine.rows import Rows
from dovetail.engine.window_store import GROWTH, Arrivals, Position, WindowStore
from dovetail.query.expressions import Column as ColumnRef
from dovetail.query.expressions import aliases, map_columns

_UNSORTED = 1.5
"""Matches held per match that is needed: they do not end in the order in which they come, and are let go when half are over."""
MATCH_BYTES, MEMBER_BYTES = 52 * GROWTH * _UNSORTED, 8 * GROWTH * _UNSORTED
"""What a stored match is expected to take, and what more for each of its tuples: its times, flags, one code and its index."""
Spans = tuple[tuple[str, int], ...]
"""For each source the microseconds that its tuples take part."""


class LinkedColumn(Column):
    """A column of one of the tuples that a match is made of."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType, link: str, target: WindowStore, column: str) -> None:
        super().__init__(rows, name, dtype)
        self._link, self._target, self._column = link, target, column

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Nothing to do: the tuple has it."""

    def take(self, places: Int64Array) -> pa.Array:
        return self._target.take(self._column, self._rows[self._link][places])

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def position(self) -> list[int]:
        return []

    def remove(self) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class Reader:
    """A join that reads the matches: the bit of those that it may see, and what it asks of them."""

    needs: AliasNeeds
    spans: Spans
    word: int
    bit: np.uint64
    usages: Mapping[str, Usage]
    """By source: a match is visible if each of its tuples is."""


class StateStore(WindowStore):
    """The matches of one join that others still need."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        spans: Spans,
        windows: Mapping[str, WindowStore],
        position: Position | None = None,
    ) -> None:
        super().__init__(arena, name, None, position)
        self.windows = windows
        self._spans = spans
        self._parts: dict[str, tuple[str, str]] = {}
        self._ends: dict[Spans, str] = {}
        self.readers: dict[str, Reader] = {}
        for source, window in windows.items():
            self.rows.add(self.link(source), np.int64)
            window.linked.append((self, source))
        self._add_ends(spans)

    @staticmethod
    def link(source: str) -> str:
        """The name of the array with the row numbers of a source's tuples."""
        return f"row:{source}"

    def ends(self, spans: Spans) -> str:
        """The name of the array with the instants until which matches take part, for one set of windows."""
        return self._ends[spans]

    def _add_ends(self, spans: Spans) -> None:
        if spans not in self._ends:
            self._ends[spans] = f"ends:{spans}"
            self.rows.add(self._ends[spans], np.int64)
            if not self.rows.attaching and len(self.rows):
                # The tuples of a match that has expired may be gone; whatever is read for them, it has ended.
                ended = self.living(self._ends[self._spans])
                last = [self._times(source) + micros for source, micros in spans]
                self.living(self._ends[spans])[:] = np.minimum.reduce([*last, ended])

    def _times(self, source: str) -> Int64Array:
        rows = self.windows[source].rows
        places = self.living(self.link(source)) - rows.base
        times: Int64Array = rows["ts"][np.maximum(places, 0)]
        return times

    def narrow(self, spans: Spans) -> None:
        """Keep matches no longer than some smaller windows."""
        self._add_ends(spans)
        self._spans = spans
        self._forget_ends()

    def narrow_reader(self, name: str, spans: Spans) -> None:
        """Let a reader have smaller windows."""
        self._add_ends(spans)
        self.readers[name].spans = spans
        self._forget_ends()

    def _forget_ends(self) -> None:
        needed = {reader.spans for reader in self.readers.values()} | {self._spans}
        for unused in [spans for spans in self._ends if spans not in needed]:
            self.rows.remove(self._ends.pop(unused))

    # -- readers ------------------------------------------------------------------------------------------------------------

    def add_reader(
        self,
        name: str,
        spans: Spans,
        needs: AliasNeeds,
        columns: Mapping[str, ColumnRef],
        usages: Mapping[str, Usage],
        place: tuple[int, int] | None,
    ) -> Reader:
        """Let a join read the matches that come from now on; `columns` are what the columns of its needs are."""
        word, bit = place or free_bit((reader.word, int(reader.bit)) for reader in self.readers.values())
        while self.flag_words <= word:
            self.add_flag_word()
        self._add_ends(spans)
        for named, expression in (needs.columns | needs.parts).items():
            of_source = map_columns(expression, lambda column: columns[column.name])
            (source,) = aliases(of_source)
            self._parts[named] = (source, stored_name(of_source))
            if named in needs.columns:
                window, link = self.windows[source], self.link(source)
                self.columns[named] = LinkedColumn(
                    self.rows, named, expression.type, link, window, stored_name(of_source)
                )
        self.readers[name] = Reader(needs, spans, word, np.uint64(bit), usages)
        self._settle_layout()
        return self.readers[name]

    def change_needs(self, name: str, needs: AliasNeeds) -> None:
        """Let a reader probe in another way; see `SharedWindow.change_needs`."""
        self.readers[name].needs.codes = {key for key in self.readers[name].needs.codes if len(key) == 1} | needs.codes
        self.readers[name].needs.indexes = needs.indexes
        self._settle_layout()

    def remove(self) -> None:
        """Give all arrays back, and the windows' attention."""
        for window in self.windows.values():
            window.linked = [link for link in window.linked if link[0] is not self]
        for key in list(self.codes):
            self.remove_key(key)
        for name in list(self.rows.arrays):
            self.rows.remove(name)

    def drop_reader(self, name: str) -> None:
        del self.readers[name]
        self._settle_layout()

    def _settle_layout(self) -> None:
        codes = {key for reader in self.readers.values() for key in reader.needs.codes}
        indexes = {key for reader in self.readers.values() for key in reader.needs.indexes}
        for key in [key for key in self.codes if key not in codes]:
            self.remove_key(key)
        for key in [key for key in self.indexes if key not in indexes]:
            self.remove_index(key)
        for key in sorted(codes, key=lambda key: (len(key), key)):  # parts before the keys that are mixed from them
            self.add_codes(key)
        for key in sorted(indexes):
            self.add_index(key)

    # -- matches ------------------------------------------------------------------------------------------------------------

    def add_matches(self, numbers: Mapping[str, Int64Array]) -> int:
        """Store matches, given the row number of each source's tuple; return the first one's number."""
        began = perf_counter()
        places = {source: numbers[source] - window.rows.base for source, window in self.windows.items()}
        times = {source: window.rows["ts"][places[source]] for source, window in self.windows.items()}
        parts = {}
        for key in self.codes:
            for part in key:
                if part not in parts:
                    source, name = self._parts[part]
                    window = self.windows[source]
                    parts[part] = window.rows[window.codes[(name,)]][places[source]]
        codes = {key: parts[key[0]] if len(key) == 1 else combine([parts[part] for part in key]) for key in self.codes}
        latest = np.maximum.reduce(list(times.values()))
        computed = dict.fromkeys(self.columns)  # linked, not kept
        first = self.append(Arrivals(latest, {}, computed, codes, self._flags(places)))
        begin = first - self.rows.base
        for source in self.windows:
            self.rows[self.link(source)][begin : begin + len(latest)] = numbers[source]
        for spans, name in self._ends.items():
            last = [times[source] + micros for source, micros in spans]
            np.minimum.reduce(last, out=self.rows[name][begin : begin + len(latest)])
        self.seconds += perf_counter() - began
        return first

    def _flags(self, places: Mapping[str, Int64Array]) -> list[UInt64Array | np.uint64]:
        flags: list[UInt64Array | np.uint64] = [np.uint64(0)] * self.flag_words
        for reader in self.readers.values():
            visible: BoolArray | None = None
            for source, usage in reader.usages.items():
                if usage.keys or usage.filters:
                    window = self.windows[source]
                    seen = (window.rows[window.flag_name(usage.word)][places[source]] & usage.bit) != 0
                    visible = seen if visible is None else visible & seen
            bits = reader.bit if visible is None else np.where(visible, reader.bit, np.uint64(0))
            flags[reader.word] = flags[reader.word] | bits
        return flags

    def renumber(self, source: str, alive: BoolArray) -> None:
        """A source's window is about to forget the rows that are not alive, and to number the others anew (`Rows.keep`).

        A match of a forgotten tuple has expired itself; what its number becomes does not matter.
        """
        rows = self.windows[source].rows
        numbers = self.living(self.link(source))
        if len(alive):
            numbers[:] = rows.head - 1 + np.cumsum(alive)[np.maximum(numbers - rows.tail, 0)]

    def expire_before(self, bound: int) -> None:
        """Forget matches that end before `bound`, in the windows of the reader with the largest."""
        rows, ends = self.rows, self._ends[self._spans]
        rows.tail = rows.base + first_at_or_after(rows[ends], rows.tail - rows.base, rows.head - rows.base, bound)
        self.rewrite_if_mostly(lambda: self.living(ends) >= bound)
