"""A stream's window: columns, codes, hash indexes, the ends of count windows, and expiry.

Rows are appended in batches and only forgotten once no result can need them, so a row number stays good for the whole of a
batch. Rows are expected, not required, to come in event-time order: `prefix_max` lets a probe stop early without assuming it.
Expiry moves `tail` past a prefix; when the rows behind it that have expired outnumber the living (one tuple with a wrong clock is
enough), the window is rewritten without them.
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
from dovetail.plan.needs import Kept, KeyId
from dovetail.plan.steps import Ledger
from dovetail.query.expressions import Expression
from dovetail.query.model import CountWindow
from dovetail.schema import StreamSchema

GROWTH = 2.8
"""Room per row: arrays are made twice as long as their rows, and filled to the end before they are made longer."""
TEXT = 16
"""Bytes that a text is expected to have."""
WORD_BITS = 64
"""Flags in a word."""
Position = dict[str, Any]
"""Where a store's arrays begin and end, as JSON."""
_SMALLEST_REWRITE = 4096
_NO_BYTES = ByteValues(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, np.zeros(0, np.uint8))


@dataclass(slots=True)
class RunningLedger:
    """The arrays of a `Ledger`, and the heads of its own chains if it counts partitions."""

    plan: Ledger
    ends: str
    arrays: tuple[str, ...] = ()
    index: HashIndex | None = None


class Linked(Protocol):
    """Keeps row numbers of a window."""

    def renumber(self, source: str, alive: BoolArray) -> None: ...


class WindowStore:
    """Rows that some result may still need: the tuples of a stream, or stored matches."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        schema: StreamSchema | None = None,
        capacity: int | None = None,
        *,
        numbered: bool = False,
    ) -> None:
        """Start empty, with room for `capacity` rows; `schema` says which column is the time.

        `numbered`: keep the numbers by which rows are known outside of the window.
        """
        self.name = name
        self._time = schema and (
            f".{schema.event_time}",
            pa.timestamp("us", schema.columns.field(schema.event_time).type.tz),
        )
        self._arena = arena
        self.rows = Rows(arena, name, capacity)
        self.rows.add("ts", np.int64)
        self.rows.add("prefix_max", np.int64)
        self._numbered = numbered
        if numbered:
            self.rows.add("number", np.int64)
        self.columns: dict[str, StoredColumn] = {}
        self.codes: dict[KeyId, str] = {}
        self.indexes: dict[KeyId, HashIndex] = {}
        self.ledgers: dict[CountWindow, RunningLedger] = {}
        self.linked: list[tuple[Linked, str]] = []
        """Who keeps row numbers of this window, and as which source."""
        self.seconds = 0.0
        """Spent on new rows, by whoever adds them."""
        self.lives: tuple[int, Int64Array] | None = None
        """While a batch is joined that sheds some of the rows: the number of the first, and the last instant of each."""
        self._flag_names: list[str] = []
        self._appender = Appender(self.rows, self.columns, self.codes, self.indexes)
        self._rewrite_at = _SMALLEST_REWRITE

    # -- layout -------------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """What another store needs, beside the arrays, to go on."""
        return {"rows": self.rows.position, "columns": {name: column.position for name, column in self.columns.items()}}

    def resume(self, position: Position) -> None:
        """Go on where another store was that had the same arrays."""
        for name, column in self.columns.items():
            column.resume(position["columns"][name])
        self.rows.resume(position["rows"])  # last: an array that is added to rows is filled

    def extend(self, kept: Kept, ledgers: Iterable[Ledger] = (), words: int = 0) -> None:
        """Keep what is missing, also of the rows that are there already as far as it follows from what is kept."""
        while self.flag_words < words:
            self.rows.add(self.flag_name(self.flag_words), np.uint64)
            self._flag_names = [*self._flag_names, self.flag_name(self.flag_words)]
        for name, expression in kept.columns.items():
            if name not in self.columns:
                self.columns[name] = self._column(name, expression)
        for key in kept.codes:
            self._add_codes(key)
        for key in kept.indexes:
            self._add_index(key)
        for ledger in ledgers:
            self._add_ledger(ledger)

    def trim(self, kept: Kept, ledgers: Iterable[Ledger] = ()) -> None:
        """Keep no more than this."""
        for name in [name for name in self.columns if name not in kept.columns]:
            self.columns.pop(name).remove()
        for key in [key for key in self.indexes if key not in kept.indexes]:
            self._remove_index(key)
        for key in [key for key in self.codes if key not in kept.codes]:
            self.rows.remove(self.codes.pop(key))
        for window in self.ledgers.keys() - {ledger.window for ledger in ledgers}:
            running = self.ledgers.pop(window)
            for name in (running.ends, *running.arrays):
                self.rows.remove(name)
            if running.index is not None:
                self._arena.free(self._heads(running.index.links))

    def remove(self) -> None:
        """Give all arrays back."""
        self.trim(Kept({}, {}, (), ()))
        for name in list(self.rows.arrays):
            self.rows.remove(name)

    def _column(self, name: str, expression: Expression) -> StoredColumn:
        if (name, expression.type) == self._time:
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
        self.codes[key] = name  # when it is there: an interrupt may come before

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
        """The living rows' words that a bit is in, and the bit in them."""
        word: UInt64Array = self.living(self.flag_name(bit // WORD_BITS)).view(np.uint64)
        return word, np.uint64(1 << bit % WORD_BITS)

    def _add_ledger(self, plan: Ledger) -> None:
        """Keep the ends of a count window; of rows that are there already they are not known, and nobody asks."""
        if plan.window in self.ledgers:
            return
        label = f"{plan.window.partition_by or ''}:{plan.window.rows}"
        ledger = RunningLedger(plan, f"last:{label}")
        self.rows.add(ledger.ends, np.int64)
        if plan.key:
            ledger.arrays = tuple(
                f"{kind}:{label}" for kind in ("following", "oldest_inside", "later", "filled", "null")
            )
            for array in ledger.arrays:
                self.rows.add(array, np.int64)
            ledger.index = self._empty_index(ledger.arrays[0], -1)
        self.ledgers[plan.window] = ledger

    # -- content ------------------------------------------------------------------------------------------------------------

    def append(self, arrivals: NewRows) -> int:
        """Add rows and return the first one's number."""
        capacity = self.rows.capacity
        first = self.rows.extend(len(arrivals.ts))
        if len(arrivals.ts):
            has_grown = self.rows.capacity != capacity
            self._appender.write(arrivals, first, chained=not has_grown)
            if has_grown:
                self.rebuild_chains()
            else:
                for ledger in self.ledgers.values():
                    self._close_windows(ledger, first)
        return first

    def _heads(self, links: str) -> str:
        return f"{self.name}.head:{links}"

    def _empty_index(self, links: str, nowhere: int = 0) -> HashIndex:
        # At most half of the capacity is alive after a move, so chains hold about one living row.
        bits = max(1, (self.rows.capacity // 2 - 1).bit_length())
        head = self._arena.allocate(self._heads(links), np.int64, 1 << bits, nowhere)
        if len(head) != 1 << bits:
            raise StateError(f"an index of window {self.name!r} has {len(head)} heads; expected {1 << bits}")
        return HashIndex(head, np.uint64(64 - bits), links)

    def _fill_index(self, key: KeyId, index: HashIndex, first: int) -> None:
        rows = self.rows
        code = rows[self.codes[key]]
        insert(*self.chain(index), code, rows.base, rows.tail, first, rows.head)

    def chain(self, index: HashIndex) -> Chain:
        """The arrays of an index."""
        return Chain(index.head, self.rows[index.links], index.shift)

    def rebuild_chains(self) -> None:
        """Make all that leads from row to row anew."""
        for key, index in self.indexes.items():
            self.indexes[key] = self._empty_index(index.links)
            self._fill_index(key, self.indexes[key], self.rows.tail)
        for ledger in self.ledgers.values():
            if ledger.index is not None:
                ledger.index = self._empty_index(ledger.arrays[0], -1)
            self._close_windows(ledger, self.rows.tail)
        self.rows.version += 1

    def _close_windows(self, ledger: RunningLedger, first: int) -> None:
        rows = self.rows
        ts, ends, size = rows["ts"], rows[ledger.ends], ledger.plan.window.rows
        if ledger.index is None:
            oldest = rows.tail - rows.base
            close_row_windows(ts, ends, first - rows.base, rows.head - rows.base, oldest, size)
            return
        partitions = Partitions(*(rows[name] for name in ledger.arrays[1:]))
        column = self.columns[ledger.plan.column]
        fresh = np.arange(first - rows.base, rows.head - rows.base)
        valid = valid_mask(column.take(fresh))
        partitions.null[fresh] = 0 if valid is None else ~valid
        values = column.values if isinstance(column, BytesColumn) else _NO_BYTES
        code, chain = rows[self.codes[ledger.plan.key]], self.chain(ledger.index)
        close_partition_windows(
            ts, ends, rows.base, first, rows.head, rows.tail, size, code, *partitions, *values, *chain
        )

    def take(self, column: str, row_numbers: Int64Array) -> pa.Array:
        return self.columns[column].take(row_numbers - self.rows.base)

    @property
    def nbytes(self) -> int:
        """Bytes of the living rows, indexes included."""
        heads = sum(index.head.nbytes for index in self.indexes.values())
        return self.rows.nbytes + heads + sum(column.nbytes for column in self.columns.values())

    @property
    def allocated(self) -> int:
        """Bytes of all arrays, room for more rows included."""
        heads = sum(index.head.nbytes for index in self.indexes.values())
        return self.rows.capacity * self.rows.width + heads + sum(column.allocated for column in self.columns.values())

    @property
    def bytes_per_row(self) -> float:
        """What a row is expected to take, room for more rows included; texts are taken to be short."""
        texts = sum(isinstance(column, BytesColumn) for column in self.columns.values())
        # There is half a head per row of capacity.
        return GROWTH * (self.rows.width + 4 * len(self.indexes) + TEXT * texts)

    # -- expiry -------------------------------------------------------------------------------------------------------------

    def expire_before(self, bound: int) -> None:
        """Forget tuples with an event time below `bound`."""
        rows = self.rows
        place = first_at_or_after(rows["ts"], rows.tail - rows.base, rows.head - rows.base, bound)
        rows.tail = rows.base + place
        self.rewrite_if_mostly(lambda: self.living("ts") >= bound)

    def forget_before(self, row: int) -> None:
        """Forget rows before one."""
        self.rows.tail = max(self.rows.tail, row)

    def living(self, name: str) -> Int64Array:
        """One array's entries for the living rows."""
        values: Int64Array = self.rows[name][self.rows.tail - self.rows.base : self.rows.head - self.rows.base]
        return values

    def numbers_of(self, row_numbers: Int64Array) -> Int64Array:
        """By what rows are known outside of the window: their numbers there, or else how many come before them."""
        places = row_numbers - self.rows.tail
        numbers: Int64Array = self.living("number")[places] if self._numbered else places
        return numbers

    def rows_of(self, numbers: Int64Array) -> Int64Array:
        """The rows that are known by some numbers; a `StateError` if there are none."""
        places = numbers
        if self._numbered and len(self.rows):
            known = self.living("number")
            order = np.argsort(known, kind="stable")
            places = order[np.searchsorted(known, numbers, sorter=order).clip(max=len(known) - 1)]
        found: Int64Array = places + self.rows.tail
        inside = (places >= 0) & (places < len(self.rows))
        if not inside.all() or not np.array_equal(self.numbers_of(found), numbers):
            raise StateError(f"window {self.name!r} does not have the tuples that are known for shedding")
        return found

    def expire_where(self, alive: Callable[[], BoolArray]) -> None:
        """Forget tuples that `alive` (asked only when it may pay) does not mark."""
        if len(self.rows) >= self._rewrite_at:
            mask = alive()
            if mask.any():
                self.rows.tail += int(mask.argmax())
                mask = mask[int(mask.argmax()) :]
            else:
                self.rows.tail = self.rows.head
                mask = mask[:0]
            self.rewrite_if_mostly(lambda: mask)

    def rewrite_if_mostly(self, alive: Callable[[], BoolArray]) -> None:
        """Rewrite the window if less than half of a long one is alive, or if it has become far shorter than its arrays."""
        roomy = self.rows.is_roomy
        if len(self.rows) < self._rewrite_at and not roomy:
            return
        mask = alive()
        living = int(np.count_nonzero(mask))
        if roomy or 2 * living < len(self.rows):
            self.rewrite(mask)
        self._rewrite_at = max(_SMALLEST_REWRITE, 2 * living)

    def rewrite(self, alive: BoolArray) -> None:
        """Forget the rows that are not alive, and number the others anew."""
        self.rows.moving = True
        for column in self.columns.values():
            column.before_keep(alive)
        for other, source in self.linked:
            other.renumber(source, alive)
        self.rows.keep(alive)
        extend_prefix_max(self.rows["ts"], self.rows["prefix_max"], 0, len(self.rows), LONG_AGO)
        self.rebuild_chains()
        self.rows.moving = False

    def hide(self, row_numbers: Int64Array) -> list[UInt64Array]:
        """Let nobody see some rows any more; return their flags."""
        places = row_numbers - self.rows.base
        flags = [self.rows[name][places] for name in self._flag_names]
        for name in self._flag_names:
            self.rows[name][places] = 0
        return flags

    def show(self, row_numbers: Int64Array, flags: list[UInt64Array]) -> None:
        """Take `hide` back."""
        for name, words in zip(self._flag_names, flags, strict=True):
            self.rows[name][row_numbers - self.rows.base] = words
