"""Stored sub-joins: a window whose rows are matches.

A match is the row numbers of its tuples, which stay in their streams' windows; nothing is copied but the codes that probes compare.
It counts as a tuple with the latest of its tuples' times, and takes part until the first of them leaves its own window: one instant,
stored per row, for each set of windows that a reader has. Its tuples outlive it, because whoever needs a match needs them too.
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
from dovetail.plan.execution import StoredPlan, User, View
from dovetail.plan.needs import Kept, stored_name
from dovetail.plan.steps import Ledger, Spans
from dovetail.query.expressions import Expression, aliases

_UNSORTED = 1.5
"""Matches held per match that is needed: they do not end in the order in which they come, and are let go when half are over."""
MATCH_BYTES, MEMBER_BYTES = 52 * GROWTH * _UNSORTED, 8 * GROWTH * _UNSORTED
"""What a stored match is expected to take, and what more for each of its tuples: its times, flags, one code and its index."""


class LinkedColumn(StoredColumn):
    """A column of one of the tuples that a match is made of."""

    is_kept = False

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType, link: str, target: WindowStore, column: str) -> None:
        super().__init__(rows, name, dtype)
        self._link, self._target, self._column = link, target, column

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Nothing to do: the tuple has it."""

    def take(self, places: Int64Array) -> pa.Array:
        return self._target.take(self._column, self.rows[self._link][places])

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def position(self) -> list[int]:
        return []

    def remove(self) -> None:
        """Nothing to do."""


class MaterializedJoin(WindowStore):
    """The matches of one step that others still need."""

    def __init__(
        self, arena: Arena, plan: StoredPlan, windows: Mapping[str, WindowStore], capacity: int | None = None
    ) -> None:
        """Start empty; `windows` are those of the step's sources."""
        super().__init__(arena, plan.name, None, capacity)
        self.plan = plan
        self.windows = windows
        self._parts: dict[str, tuple[str, str]] = {}
        """By name of a key's part: the source that has it, and its name there."""
        self._ends: dict[Spans, str] = {}
        self._checked: list[tuple[int, list[tuple[str, int]]]] = []
        """By reader: its bit, and the bits that tuples of some sources must have for it to see a match."""
        for source in windows:
            self.rows.add(self.link(source), np.int64)

    @staticmethod
    def link(source: str) -> str:
        """The name of the array with the row numbers of a source's tuples."""
        return f"row:{source}"

    def ends(self, spans: Spans) -> str:
        """The name of the array with the instants until which matches take part, for one set of windows."""
        return self._ends[spans]

    def can_become(self, plan: StoredPlan) -> bool:
        """Whether another plan asks for no matches, and shows them to nobody, beyond what is here."""
        return self.plan.spans == plan.spans and set(plan.readers) <= set(self.plan.readers)

    def read_by(self, plan: StoredPlan, views: Mapping[User, View]) -> None:
        """Serve the readers of a plan; `views` are those that they have of the sources' tuples."""
        self.plan = plan
        self._checked = []
        for spans in (plan.spans, *(reader.spans for reader in plan.readers)):
            if spans not in self._ends:
                self.rows.add(f"ends:{spans}", np.int64)
                self._ends[spans] = f"ends:{spans}"
        for reader in plan.readers:
            seen = {source: views[reader.step, source] for source in self.windows}
            bits = [(source, view.bit) for source, view in seen.items() if view.keys or view.filters or view.since]
            self._checked.append((reader.bit, bits))
        self.extend(plan.kept, words=plan.words)

    def extend(self, kept: Kept, ledgers: Iterable[Ledger] = (), words: int = 0) -> None:
        for name, expression in {**kept.columns, **kept.parts}.items():
            (source,) = aliases(expression)
            self._parts[name] = (source, stored_name(expression))
        super().extend(kept, ledgers, words)

    def trim(self, kept: Kept, ledgers: Iterable[Ledger] = ()) -> None:
        super().trim(kept, ledgers)
        used = {self.plan.spans, *(reader.spans for reader in self.plan.readers)}
        for unused in [spans for spans in self._ends if spans not in used]:
            self.rows.remove(self._ends.pop(unused))

    def _column(self, name: str, expression: Expression) -> StoredColumn:
        source, column = self._parts[name]
        return LinkedColumn(self.rows, name, expression.type, self.link(source), self.windows[source], column)

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
        first = self.append(NewRows(latest, {}, {}, codes, self._flags(places)))
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
        for bit, needed in self._checked:
            visible: BoolArray | None = None
            for source, tuple_bit in needed:
                window, own = self.windows[source], np.uint64(1 << tuple_bit % WORD_BITS)
                seen = (window.rows[window.flag_name(tuple_bit // WORD_BITS)][places[source]] & own) != 0
                visible = seen if visible is None else visible & seen
            word, shown = bit // WORD_BITS, np.uint64(1 << bit % WORD_BITS)
            flags[word] = flags[word] | (shown if visible is None else np.where(visible, shown, np.uint64(0)))
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
        rows, ends = self.rows, self._ends[self.plan.spans]
        rows.tail = rows.base + first_at_or_after(rows[ends], rows.tail - rows.base, rows.head - rows.base, bound)
        self.rewrite_if_mostly(lambda: self.living(ends) >= bound)
