"""A stream's window: columns, codes, hash indexes, the ends of count windows, and expiry.

Rows are appended in batches and removed once no result can need them. A row number stays valid throughout a batch, unless shedding
makes room between two slices of it. Rows usually arrive in event-time order but need not: `prefix_max` lets a probe stop early in
either case. Expiry moves `tail` past the expired rows at the front. If the expired rows after `tail` outnumber the live ones (one
tuple with a wrong clock can keep `tail` from moving), the window is compacted: the live rows get new row numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.kernels.gather import ByteValues
from dovetail.engine.kernels.index import Chain, insert
from dovetail.engine.kernels.times import (
    LONG_AGO,
    Partitions,
    close_partition_windows,
    close_row_windows,
    extend_prefix_max,
    first_at_or_after,
)
from dovetail.engine.keys import combine
from dovetail.engine.storage.append import Appender, HashIndex, NewRows
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.buffers import valid_mask
from dovetail.engine.storage.columns import BytesColumn, StoredColumn, TimeColumn, column_for
from dovetail.engine.storage.rows import Rows
from dovetail.errors import StateError
from dovetail.plan.needs import KeyId, WindowContents
from dovetail.plan.steps import CountWindowPlan
from dovetail.query.expressions import Expression
from dovetail.query.model import CountWindow
from dovetail.schema import StreamSchema

GROWTH = 2.8
"""Expected capacity per row: arrays grow to twice the length of their rows, and grow again only when full."""
TEXT = 16
"""Expected bytes of a text value."""
WORD_BITS = 64
"""Flags per word."""
Position = dict[str, Any]
"""The bounds of a store's arrays and columns, as JSON."""
_SMALLEST_REWRITE = 4096
"""Rows below which a window is compacted only if its arrays are oversized."""
_NO_BYTES = ByteValues(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, np.zeros(0, np.uint8))


@dataclass(slots=True)
class CountWindowEnds:
    """The ends of one count window: names of their arrays, and the index of partitions if there are any."""

    plan: CountWindowPlan
    ends: str
    arrays: tuple[str, ...] = ()
    index: HashIndex | None = None


class RowReferrer(Protocol):
    """A holder of a window's row numbers, which must be translated when the window is compacted."""

    def renumber(self, source: str, alive: BoolArray) -> None: ...


class WindowStore:
    """Rows that future results may need: the tuples of a stream, or the matches of a materialized join."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        schema: StreamSchema | None = None,
        capacity: int | None = None,
        *,
        numbered: bool = False,
    ) -> None:
        """Start empty, with room for `capacity` rows; `schema` names the event-time column.

        `numbered`: store each tuple's number in the shard's log.
        """
        self.name = name
        self.event_time: tuple[str, pa.DataType] | None = None
        """The name of the event-time column, and its type in microseconds; None for a materialized join."""
        if schema is not None:
            zone = schema.columns.field(schema.event_time).type.tz
            self.event_time = f".{schema.event_time}", pa.timestamp("us", zone)
        self._arena = arena
        self.rows = Rows(arena, name, capacity)
        self.rows.add("ts", np.int64)
        self.rows.add("prefix_max", np.int64)
        self._has_numbers = numbered
        if numbered:
            self.rows.add("number", np.int64)
        self.columns: dict[str, StoredColumn] = {}
        self.codes: dict[KeyId, str] = {}
        self.indexes: dict[KeyId, HashIndex] = {}
        self.count_window_ends: dict[CountWindow, CountWindowEnds] = {}
        self.referrers: list[tuple[RowReferrer, str]] = []
        """Holders of this window's row numbers, and the source name each uses for the window."""
        self.seconds = 0.0
        """Time spent preparing and appending rows; the callers add to it."""
        self.row_ends: tuple[Int64Array, Int64Array] | None = None
        """Set while a batch is joined that sheds some of the rows: their row numbers, ascending, and their last instants."""
        self._flag_names: list[str] = []
        self._appender = Appender(self.rows, self.columns, self.codes, self.indexes)
        self._compact_from = _SMALLEST_REWRITE
        """Rows from which to check whether to compact: twice the live rows at the last check."""

    # -- layout -------------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Integers that, together with the arrays, restore the store."""
        return {"rows": self.rows.position, "columns": {name: column.position for name, column in self.columns.items()}}

    def resume(self, position: Position) -> None:
        """Take over the arrays of another store whose position was `position`."""
        for name, column in self.columns.items():
            column.resume(position["columns"][name])
        self.rows.resume(position["rows"])  # last: `Rows.add` overwrites the rows before `head`

    def extend(self, contents: WindowContents, count_windows: Iterable[CountWindowPlan] = (), words: int = 0) -> None:
        """Add missing arrays; existing rows get the codes and links that follow from other arrays."""
        while self.flag_words < words:
            self.rows.add(self.flag_name(self.flag_words), np.uint64)
            self._flag_names = [*self._flag_names, self.flag_name(self.flag_words)]
        for name, expression in contents.columns.items():
            if name not in self.columns:
                self.columns[name] = self._column(name, expression)
        for key in contents.codes:
            self._add_codes(key)
        for key in contents.indexes:
            self._add_index(key)
        for plan in count_windows:
            self._add_count_window(plan)

    def trim(self, contents: WindowContents, count_windows: Iterable[CountWindowPlan] = ()) -> None:
        """Remove all arrays that are not listed."""
        for name in [name for name in self.columns if name not in contents.columns]:
            self.columns.pop(name).remove()
        for key in [key for key in self.indexes if key not in contents.indexes]:
            self._remove_index(key)
        for key in [key for key in self.codes if key not in contents.codes]:
            self.rows.remove(self.codes.pop(key))
        for window in self.count_window_ends.keys() - {plan.window for plan in count_windows}:
            window_ends = self.count_window_ends.pop(window)
            for name in (window_ends.ends, *window_ends.arrays):
                self.rows.remove(name)
            if window_ends.index is not None:
                self._arena.free(self._heads(window_ends.index.links))

    def remove(self) -> None:
        """Free all arrays."""
        self.trim(WindowContents({}, {}, (), ()))
        for name in list(self.rows.arrays):
            self.rows.remove(name)

    def _column(self, name: str, expression: Expression) -> StoredColumn:
        if (name, expression.type) == self.event_time:
            return TimeColumn(self.rows, name, expression.type)
        return column_for(self.rows, name, expression.type)

    def _add_codes(self, key: KeyId) -> None:
        if key in self.codes:
            return
        name = f"code:{json.dumps(key)}"
        self.rows.add(name, np.uint64)
        if len(key) > 1 and len(self.rows):
            parts = [self.rows[self.codes[(part,)]] for part in key]
            self.rows[name][:] = combine(parts)
        self.codes[key] = name  # last: an interrupt must not leave a key without its array

    def _add_index(self, key: KeyId) -> None:
        if key not in self.indexes:
            links = f"next:{json.dumps(key)}"
            self.rows.add(links, np.int64)
            index = self._empty_index(links)
            self._fill_index(key, index, self.rows.tail)
            self.indexes[key] = index

    def _remove_index(self, key: KeyId) -> None:
        links = self.indexes.pop(key).links
        self.rows.remove(links)
        self._arena.free(self._heads(links))

    @property
    def flag_words(self) -> int:
        return len(self._flag_names)

    @staticmethod
    def flag_name(word: int) -> str:
        return f"flags:{word}"

    def flags(self, bit: int) -> tuple[UInt64Array, np.uint64]:
        """Return the live rows' flag words that contain flag number `bit`, and the mask that selects it."""
        words: UInt64Array = self.live_values(self.flag_name(bit // WORD_BITS)).view(np.uint64)
        return words, np.uint64(1 << bit % WORD_BITS)

    def _add_count_window(self, plan: CountWindowPlan) -> None:
        """Add the ends of a count window. They stay unset for existing rows, which no query reads."""
        if plan.window in self.count_window_ends:
            return
        label = f"{plan.window.partition_by or ''}:{plan.window.rows}"
        window_ends = CountWindowEnds(plan, f"last:{label}")
        self.rows.add(window_ends.ends, np.int64)
        if plan.key:
            window_ends.arrays = tuple(
                f"{kind}:{label}" for kind in ("following", "oldest_inside", "later", "filled", "null")
            )
            for array in window_ends.arrays:
                self.rows.add(array, np.int64)
            window_ends.index = self._empty_index(window_ends.arrays[0], -1)
        self.count_window_ends[plan.window] = window_ends

    # -- content ------------------------------------------------------------------------------------------------------------

    def append(self, arrivals: NewRows) -> int:
        """Append rows and return the first one's row number."""
        capacity = self.rows.capacity
        first = self.rows.extend(len(arrivals.ts))
        if len(arrivals.ts):
            has_grown = self.rows.capacity != capacity
            self._appender.write(arrivals, first, chained=not has_grown)
            if has_grown:
                self.rebuild_chains()
            else:
                for window_ends in self.count_window_ends.values():
                    self._close_windows(window_ends, first)
        return first

    def _heads(self, links: str) -> str:
        return f"{self.name}.head:{links}"

    def _empty_index(self, links: str, no_link: int = 0) -> HashIndex:
        # At most half of the capacity is live after a move, so that chains have about one live row.
        bits = max(1, (self.rows.capacity // 2 - 1).bit_length())
        heads = self._arena.allocate(self._heads(links), np.int64, 1 << bits, no_link)
        if len(heads) != 1 << bits:
            raise StateError(f"an index of window {self.name!r} has {len(heads)} heads; expected {1 << bits}")
        return HashIndex(heads, np.uint64(64 - bits), links)

    def _fill_index(self, key: KeyId, index: HashIndex, first: int) -> None:
        rows = self.rows
        code = rows[self.codes[key]]
        insert(*self.chain(index), code, rows.base, rows.tail, first, rows.head)

    def chain(self, index: HashIndex) -> Chain:
        """Return the arrays of an index."""
        return Chain(index.heads, self.rows[index.links], index.shift)

    def rebuild_chains(self) -> None:
        """Rebuild all links between rows: hash indexes and the ends of count windows."""
        for key, index in self.indexes.items():
            self.indexes[key] = self._empty_index(index.links)
            self._fill_index(key, self.indexes[key], self.rows.tail)
        for window_ends in self.count_window_ends.values():
            if window_ends.index is not None:
                window_ends.index = self._empty_index(window_ends.arrays[0], -1)
            self._close_windows(window_ends, self.rows.tail)
        self.rows.version += 1

    def _close_windows(self, window_ends: CountWindowEnds, first: int) -> None:
        """Set the end of each row that a row from `first` on pushes out of a count window."""
        rows = self.rows
        ts, ends, size = rows["ts"], rows[window_ends.ends], window_ends.plan.window.rows
        if window_ends.index is None:
            oldest = rows.tail - rows.base
            close_row_windows(ts, ends, first - rows.base, rows.head - rows.base, oldest, size)
            return
        partitions = Partitions(*(rows[name] for name in window_ends.arrays[1:]))
        column = self.columns[window_ends.plan.column]
        new = np.arange(first - rows.base, rows.head - rows.base)
        valid = valid_mask(column.take(new))
        partitions.null[new] = 0 if valid is None else ~valid
        values = column.values if isinstance(column, BytesColumn) else _NO_BYTES
        code, chain = rows[self.codes[window_ends.plan.key]], self.chain(window_ends.index)
        close_partition_windows(
            ts, ends, rows.base, first, rows.head, rows.tail, size, code, *partitions, *values, *chain
        )

    def take(self, column: str, row_numbers: Int64Array) -> pa.Array:
        return self.columns[column].take(row_numbers - self.rows.base)

    @property
    def allocated(self) -> int:
        """Bytes of all arrays, spare capacity included."""
        heads = sum(index.heads.nbytes for index in self.indexes.values())
        return self.rows.capacity * self.rows.width + heads + sum(column.allocated for column in self.columns.values())

    @property
    def bytes_per_row(self) -> float:
        """Expected bytes per row, spare capacity included; a text counts as `TEXT` bytes."""
        texts = sum(isinstance(column, BytesColumn) for column in self.columns.values())
        # An index has half a head per row of capacity.
        return GROWTH * (self.rows.width + 4 * len(self.indexes) + TEXT * texts)

    # -- expiry -------------------------------------------------------------------------------------------------------------

    def expire_before(self, bound: int, list_held: Callable[[], Int64Array] | None = None) -> None:
        """Remove tuples with an event time below `bound`; compaction leaves the rows that `list_held` returns."""
        rows = self.rows
        rows.tail = rows.base + first_at_or_after(rows["ts"], rows.tail - rows.base, rows.head - rows.base, bound)

        def alive() -> BoolArray:
            mask: BoolArray = self.live_values("ts") >= bound
            if list_held is not None:
                mask[list_held() - rows.tail] = True
            return mask

        self.compact_if_sparse(alive)

    def remove_before(self, row: int) -> None:
        """Remove the rows before `row`."""
        self.rows.tail = max(self.rows.tail, row)

    def live_values(self, name: str) -> Int64Array:
        """Return the live rows' entries of one array."""
        values: Int64Array = self.rows[name][self.rows.tail - self.rows.base : self.rows.head - self.rows.base]
        return values

    def numbers_of(self, row_numbers: Int64Array) -> Int64Array:
        """Return the rows' numbers in the shard's log, or, if not kept, their positions among the live rows."""
        indices = row_numbers - self.rows.tail
        numbers: Int64Array = self.live_values("number")[indices] if self._has_numbers else indices
        return numbers

    def rows_of(self, numbers: Int64Array) -> Int64Array:
        """Return the row numbers that `numbers_of` maps to `numbers`; raise a `StateError` if one is missing."""
        indices = numbers
        if self._has_numbers and len(self.rows):
            live_numbers = self.live_values("number")
            order = np.argsort(live_numbers, kind="stable")
            indices = order[np.searchsorted(live_numbers, numbers, sorter=order).clip(max=len(live_numbers) - 1)]
        row_numbers: Int64Array = indices + self.rows.tail
        inside = (indices >= 0) & (indices < len(self.rows))
        if not inside.all() or not np.array_equal(self.numbers_of(row_numbers), numbers):
            raise StateError(f"window {self.name!r} does not contain all tuples of the shedding state")
        return row_numbers

    def expire_where(self, alive: Callable[[], BoolArray]) -> None:
        """Remove the tuples that `alive` does not mark, if the window is long enough to compact."""
        if len(self.rows) >= self._compact_from:
            mask = alive()
            if mask.any():
                self.rows.tail += int(mask.argmax())
                mask = mask[int(mask.argmax()) :]
            else:
                self.rows.tail = self.rows.head
                mask = mask[:0]
            self.compact_if_sparse(lambda: mask)

    def compact_if_sparse(self, alive: Callable[[], BoolArray]) -> None:
        """Compact the window if fewer than half of its rows are `alive`, or if its arrays are oversized."""
        oversized = self.rows.is_oversized
        if len(self.rows) < self._compact_from and not oversized:
            return
        mask = alive()
        live_count = int(np.count_nonzero(mask))
        if oversized or 2 * live_count < len(self.rows):
            self.compact(mask)
        self._compact_from = max(_SMALLEST_REWRITE, 2 * live_count)

    def compact(self, alive: BoolArray) -> None:
        """Remove the rows that are not `alive` and renumber the rest."""
        self.rows.is_moving = True
        for column in self.columns.values():
            column.before_compact(alive)
        for referrer, source in self.referrers:
            referrer.renumber(source, alive)
        self.rows.compact(alive)
        extend_prefix_max(self.rows["ts"], self.rows["prefix_max"], 0, len(self.rows), LONG_AGO)
        self.rebuild_chains()
        self.rows.is_moving = False

    def visible_flags(self, row_numbers: Int64Array) -> list[UInt64Array]:
        """Return the flags of rows, one array per word."""
        return [self.rows[name][row_numbers - self.rows.base] for name in self._flag_names]

    def hide(self, row_numbers: Int64Array) -> None:
        """Hide rows from all views."""
        for name in self._flag_names:
            self.rows[name][row_numbers - self.rows.base] = 0

    def show(self, row_numbers: Int64Array, flags: list[UInt64Array]) -> None:
        """Restore the flags of hidden rows."""
        for name, words in zip(self._flag_names, flags, strict=True):
            self.rows[name][row_numbers - self.rows.base] = words
