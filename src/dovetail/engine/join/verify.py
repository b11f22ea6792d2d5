"""Store the matches of a join as row numbers, and verify that keys with equal codes are equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from dovetail._typing import Int64Array
from dovetail.engine.evaluate import is_true
from dovetail.engine.kernels.extend import transpose
from dovetail.engine.kernels.verify import keep_marked_results, mark_equal_bytes, mark_equal_codes
from dovetail.engine.storage.columns import BytesColumn
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WORD_BITS, WindowStore
from dovetail.plan.needs import column_name, parts_to_verify
from dovetail.plan.query_plan import ProbePath
from dovetail.query.model import CountWindow, MaterializedWindow, TimeWindow, Window
from dovetail.schema import is_exact

_FIRST_CAPACITY = 1024


@dataclass(frozen=True, slots=True)
class Member:
    """One alias of a query at run time."""

    column: int
    """Its column in the matrices of row numbers."""
    store: WindowStore
    window: Window
    bit: int
    """Number of the flag that marks the rows that the alias may see."""

    @property
    def word(self) -> int:
        return self.bit // WORD_BITS

    @property
    def mask(self) -> np.uint64:
        return np.uint64(1 << self.bit % WORD_BITS)

    @property
    def span(self) -> int:
        """Microseconds of a time window; -1 if the ends of the rows are stored."""
        return self.window.micros if isinstance(self.window, TimeWindow) else -1

    @property
    def ends(self) -> str:
        """Name of the array with the last instant of each row, if the ends are stored; else `ts`."""
        if isinstance(self.window, CountWindow):
            return self.store.count_window_ends[self.window].ends
        if isinstance(self.window, MaterializedWindow) and isinstance(self.store, MaterializedJoin):
            return self.store.ends(self.window.spans)
        return "ts"


class MatchTable:
    """Addresses and lengths of the matches of several joins, so that one kernel can append to all of them."""

    def __init__(self, joins: int) -> None:
        self.counts, self.capacities, self.addresses, self.emitted = (np.zeros(joins, np.int64) for _ in range(4))
        """`emitted`: matches passed to `Matches.emit` since the last `clear`."""


class Matches:
    """Row numbers of matches: a row per alias, a column per match."""

    def __init__(self, aliases: int) -> None:
        self._table, self._index = MatchTable(1), 0
        self._use(np.empty((aliases, _FIRST_CAPACITY), np.int64))
        self._previous_count = 0
        """Count at the last `clear`: the next growth reserves as much, which costs nothing until it is used."""
        self.emit: Callable[[], None] | None = None
        """Outputs the verified matches before the batch is complete; None if all matches are kept until the end."""

    def __len__(self) -> int:
        return self.count

    @property
    def total(self) -> int:
        """Number of matches since the last `clear`, including emitted ones."""
        table, index = self._table, self._index
        return table.emitted.item(index) + table.counts.item(index)

    @property
    def count(self) -> int:
        return self._table.counts.item(self._index)

    @count.setter
    def count(self, count: int) -> None:
        self._table.counts[self._index] = count

    def attach(self, table: MatchTable, index: int) -> None:
        """Keep address and count in entry `index` of a shared table from now on."""
        count, emitted = self.count, self._table.emitted[self._index]
        self._table, self._index = table, index
        self._use(self.rows)
        self.count, table.emitted[index] = count, emitted

    def _use(self, rows: Int64Array) -> None:
        self.rows = rows
        self._table.capacities[self._index] = rows.shape[1]
        self._table.addresses[self._index] = rows.ctypes.data

    def clear(self, max_capacity: int) -> None:
        """Remove all matches, and free the memory if it has room for more than `max_capacity`."""
        table, index = self._table, self._index
        self._previous_count, table.counts[index], table.emitted[index] = int(table.counts[index]), 0, 0
        if self.rows.shape[1] > max_capacity:
            self._use(np.empty((len(self.rows), min(_FIRST_CAPACITY, max_capacity)), np.int64))

    def flush(self) -> None:
        """Emit all matches to make room."""
        assert self.emit is not None  # noqa: S101 - called only if results are emitted early
        self.emit()
        self._table.emitted[self._index] += self.count
        self.count = 0

    def reserve(self, count: int) -> None:
        """Make room for `count` more matches."""
        needed = self.count + count
        if needed > self.rows.shape[1]:
            longer = np.empty((len(self.rows), max(needed, self._previous_count, 2 * self.rows.shape[1])), np.int64)
            longer[:, : self.count] = self.rows[:, : self.count]
            self._use(longer)

    def add(self, partial: Int64Array, count: int) -> None:
        """Append the first `count` partial results, which are complete."""
        before = self.count
        if before + count > self.rows.shape[1]:
            self.reserve(count)
        transpose(partial, count, self.rows, before)
        self.count = before + count

    def of(self, column: int, begin: int = 0) -> Int64Array:
        """Return the row numbers of one alias, from match `begin` on."""
        return self.rows[column, begin : self.count]


class Verifier:
    """Compares key values where equal codes do not prove equality: hashes, and codes of multi-part keys."""

    def __init__(self, path: ProbePath, members: Mapping[str, Member]) -> None:
        self._checks: Sequence[tuple[Member, str, Member, str, bool]] = [
            (
                members[part.source.alias],
                column_name(part.source.expression),
                members[stage.alias],
                column_name(part.target),
                is_exact(part.target.type),
            )
            for stage in path.stages
            for part in parts_to_verify(stage)
        ]

    @property
    def is_needed(self) -> bool:
        return bool(self._checks)

    def __call__(self, matches: Matches, begin: int) -> None:
        """Drop the matches from `begin` on whose keys differ although their codes are equal."""
        for left, left_name, right, right_name, exact in self._checks:
            if len(matches) > begin:
                left_rows, right_rows = matches.of(left.column, begin), matches.of(right.column, begin)
                marks = self._equal(left, left_name, left_rows, right, right_name, right_rows, exact=exact)
                if not marks.all():
                    matches.count = keep_marked_results(matches.rows, begin, marks)

    @staticmethod
    def _equal(
        left: Member,
        left_name: str,
        left_rows: Int64Array,
        right: Member,
        right_name: str,
        right_rows: Int64Array,
        *,
        exact: bool,
    ) -> Int64Array:
        marks = np.empty(len(left_rows), np.int64)
        left_base, right_base = left.store.rows.base, right.store.rows.base
        if exact:
            left_code = left.store.rows[left.store.codes[(left_name,)]]
            right_code = right.store.rows[right.store.codes[(right_name,)]]
            mark_equal_codes(left_rows, left_base, left_code, right_rows, right_base, right_code, marks)
            return marks
        a, b = left.store.columns[left_name], right.store.columns[right_name]
        if isinstance(a, BytesColumn) and isinstance(b, BytesColumn):
            mark_equal_bytes(left_rows, left_base, *a.values, right_rows, right_base, *b.values, marks)
            return marks
        equal = pc.equal(a.take(left_rows - left_base), b.take(right_rows - right_base))
        return is_true(equal).astype(np.int64)
