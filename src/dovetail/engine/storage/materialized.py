"""Materialized joins: windows whose rows are matches.

A match consists of the row numbers of its tuples, which stay in their streams' windows; only the codes that probes compare are
copied. Its event time is the latest of its tuples' times, and it expires when the first of them leaves its window: this instant is
stored per row, for each set of windows that a reader has. The tuples outlive the match, because every reader of a match also needs
its tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.kernels.times import first_at_or_after
from dovetail.engine.keys import combine
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.columns import StoredColumn
from dovetail.engine.storage.rows import Rows
from dovetail.engine.storage.window import GROWTH, WORD_BITS, WindowStore
from dovetail.plan.execution import MaterializedJoinPlan, StepSource, View
from dovetail.plan.needs import WindowContents, column_name
from dovetail.plan.steps import CountWindowPlan, Spans
from dovetail.query.expressions import Expression, aliases

_UNSORTED = 1.5
"""Matches held per match that is needed: they do not expire in insertion order, and are compacted when half have expired."""
MATCH_BYTES, MEMBER_BYTES = 52 * GROWTH * _UNSORTED, 8 * GROWTH * _UNSORTED
"""Expected bytes of a match (times, flags, one code and its index), and additional bytes for each of its tuples."""


class LinkedColumn(StoredColumn):
    """A column of one of a match's tuples, read from the tuple's window."""

    is_stored = False

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType, link: str, target: WindowStore, column: str) -> None:
        super().__init__(rows, name, dtype)
        self._link, self._target, self._column = link, target, column

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Do nothing: the tuple's window stores the value."""

    def take(self, indices: Int64Array) -> pa.Array:
        return self._target.take(self._column, self.rows[self._link][indices])

    def remove(self) -> None:
        """Do nothing: the column has no arrays."""


class MaterializedJoin(WindowStore):
    """The matches of one join step that other steps may still need."""

    def __init__(
        self, arena: Arena, plan: MaterializedJoinPlan, windows: Mapping[str, WindowStore], capacity: int | None = None
    ) -> None:
        """Start empty; `windows` are the windows of the step's sources."""
        super().__init__(arena, plan.name, None, capacity)
        self.plan = plan
        self.windows = windows
        self._key_parts: dict[str, tuple[str, str]] = {}
        """Source of each key part, and the part's name there, by name of the part."""
        self._ends: dict[Spans, str] = {}
        self._required_bits: list[tuple[int, list[tuple[str, int]]]] = []
        """For each reader its flag bit, and the flag bits that a match's tuples need for the reader to see the match."""
        for source in windows:
            self.rows.add(self.link(source), np.int64)

    @staticmethod
    def link(source: str) -> str:
        """Return the name of the array with the row numbers of a source's tuples."""
        return f"row:{source}"

    def ends(self, spans: Spans) -> str:
        """Return the name of the array with the matches' expiry times for one set of windows."""
        return self._ends[spans]

    def can_serve(self, plan: MaterializedJoinPlan) -> bool:
        """Whether the matches stored here serve `plan`: it has the same windows and no new reader."""
        return self.plan.spans == plan.spans and set(plan.readers) <= set(self.plan.readers)

    def set_readers(self, plan: MaterializedJoinPlan, views: Mapping[StepSource, View]) -> None:
        """Replace the readers by those of `plan`; `views` are the readers' views of the sources' tuples."""
        self.plan = plan
        self._required_bits = []
        for spans in (plan.spans, *(reader.spans for reader in plan.readers)):
            if spans not in self._ends:
                self.rows.add(f"ends:{spans}", np.int64)
                self._ends[spans] = f"ends:{spans}"
        for reader in plan.readers:
            views_by_source = {source: views[reader.step, source] for source in self.windows}
            bits = [
                (source, view.bit)
                for source, view in views_by_source.items()
                if view.keys or view.filters or view.first_batch
            ]
            self._required_bits.append((reader.bit, bits))
        self.extend(plan.kept, words=plan.words)

    def extend(self, contents: WindowContents, count_windows: Iterable[CountWindowPlan] = (), words: int = 0) -> None:
        for name, expression in {**contents.columns, **contents.parts}.items():
            (source,) = aliases(expression)
            self._key_parts[name] = (source, column_name(expression))
        super().extend(contents, count_windows, words)

    def trim(self, contents: WindowContents, count_windows: Iterable[CountWindowPlan] = ()) -> None:
        super().trim(contents, count_windows)
        used = {self.plan.spans, *(reader.spans for reader in self.plan.readers)}
        for unused in [spans for spans in self._ends if spans not in used]:
            self.rows.remove(self._ends.pop(unused))

    def _column(self, name: str, expression: Expression) -> StoredColumn:
        source, column = self._key_parts[name]
        return LinkedColumn(self.rows, name, expression.type, self.link(source), self.windows[source], column)

    # -- matches ------------------------------------------------------------------------------------------------------------

    def add_matches(self, row_numbers: Mapping[str, Int64Array]) -> int:
        """Store matches, given the row numbers of their tuples by source; return the first match's row number."""
        began = perf_counter()
        indices = {source: row_numbers[source] - window.rows.base for source, window in self.windows.items()}
        times = {source: window.rows["ts"][indices[source]] for source, window in self.windows.items()}
        parts = {}
        for key in self.codes:
            for part in key:
                if part not in parts:
                    source, name = self._key_parts[part]
                    window = self.windows[source]
                    parts[part] = window.rows[window.codes[(name,)]][indices[source]]
        codes = {key: parts[key[0]] if len(key) == 1 else combine([parts[part] for part in key]) for key in self.codes}
        latest = np.maximum.reduce(list(times.values()))
        first = self.append(NewRows(latest, {}, {}, codes, self._flags(indices)))
        begin = first - self.rows.base
        for source in self.windows:
            self.rows[self.link(source)][begin : begin + len(latest)] = row_numbers[source]
        for spans, name in self._ends.items():
            ends = [times[source] + micros for source, micros in spans]
            np.minimum.reduce(ends, out=self.rows[name][begin : begin + len(latest)])
        self.seconds += perf_counter() - began
        return first

    def _flags(self, indices: Mapping[str, Int64Array]) -> list[UInt64Array | np.uint64]:
        flags: list[UInt64Array | np.uint64] = [np.uint64(0)] * self.flag_words
        for bit, tuple_bits in self._required_bits:
            visible: BoolArray | None = None
            for source, tuple_bit in tuple_bits:
                window, mask = self.windows[source], np.uint64(1 << tuple_bit % WORD_BITS)
                is_set = (window.rows[window.flag_name(tuple_bit // WORD_BITS)][indices[source]] & mask) != 0
                visible = is_set if visible is None else visible & is_set
            word, mask = bit // WORD_BITS, np.uint64(1 << bit % WORD_BITS)
            flags[word] = flags[word] | (mask if visible is None else np.where(visible, mask, np.uint64(0)))
        return flags

    def renumber(self, source: str, alive: BoolArray) -> None:
        """Translate the row numbers of a source whose window is about to keep only the rows `alive`.

        Matches of removed tuples have expired; their row numbers do not matter.
        """
        rows = self.windows[source].rows
        row_numbers = self.live_values(self.link(source))
        if len(alive):
            row_numbers[:] = rows.head - 1 + np.cumsum(alive)[np.maximum(row_numbers - rows.tail, 0)]

    def expire_matches(self, bound: int) -> None:
        """Remove matches that expire before `bound` in the largest windows of any reader."""
        rows, ends = self.rows, self._ends[self.plan.spans]
        rows.tail = rows.base + first_at_or_after(rows[ends], rows.tail - rows.base, rows.head - rows.base, bound)
        self.compact_if_sparse(lambda: self.live_values(ends) >= bound)
