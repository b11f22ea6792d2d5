"""A stream's window: columns, codes, hash indexes, the ends of count windows, and expiry.

Rows are appended in batches and only forgotten once no result can need them, so a row number stays good for the whole of a
batch. Rows are expected, not required, to come in event-time order: `prefix_max` lets a probe stop early without assuming it.
Expiry moves `tail` past a prefix; when the rows behind it that have expired outnumber the living (one tuple with a wrong clock is
enough), the window is rewritten without them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.arena import Arena
from dovetail.engine.columns import BytesColumn, Column, TimeColumn, column_for, valid_mask
from dovetail.engine.kernels.index import insert
from dovetail.engine.kernels.rows import (
    close_partition_windows,
    close_row_windows,
    extend_prefix_max,
    first_at_or_after,
)
from dovetail.engine.keys import combine
from dovetail.engine.rows import Rows
from dovetail.query.model import CountWindow
from dovetail.schema import StreamSchema

GROWTH = 2.8
"""Room per row: arrays are made twice as long as their rows, and filled to the end before they are made longer."""
TEXT = 16
"""Bytes that a text is expected to have."""
LONG_AGO = -(1 << 62)
"""A time before every event."""
KeyId = tuple[str, ...]
"""The parts of a key, each named by its expression."""
Position = dict[str, Any]
"""Where a store's arrays begin and end, as JSON."""
_SMALLEST_REWRITE = 4096


@dataclass(slots=True)
class Arrivals:
    """Tuples about to enter a window, sorted by event time."""

    ts: Int64Array
    columns: Mapping[str, pa.Array]
    """The stream's columns, by their own names."""
    computed: Mapping[str, pa.Array]
    """Other columns of the window, by theirs."""
    codes: Mapping[KeyId, UInt64Array]
    flags: list[UInt64Array | np.uint64]
    """Per word, the flags of each row, or of all."""

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(slots=True)
class HashIndex:
    """Heads of the chains of one key; the links are a per-row array."""

    head: Int64Array
    shift: np.uint64
    links: str


@dataclass(slots=True)
class Ledger:
    """What `[PARTITION BY c ROWS n]` keeps per row, and the heads of its own chains."""

    window: CountWindow
    ends: str
    key: KeyId | None = None
    column: str = ""
    index: HashIndex | None = None
    arrays: tuple[str, ...] = field(default=())


class Linked(Protocol):
    """Keeps row numbers of a window."""

    def renumber(self, source: str, alive: BoolArray) -> None: ...


class WindowStore:
    """The tuples of one stream that some result may still need."""

    def __init__(self, arena: Arena, name: str, schema: StreamSchema | None, position: Position | None = None) -> None:
        """Start empty, or attach to another's arrays in the arena, at its `position`; `schema` says which column is the time."""
        self.name = name
        self._time = schema and (
            f".{schema.event_time}",
            pa.timestamp("us", schema.columns.field(schema.event_time).type.tz),
        )
        self._arena = arena
        self._position = position
        self.rows = Rows(arena, name, position["rows"] if position else None)
        self.rows.add("ts", np.int64)
        self.rows.add("prefix_max", np.int64)
        self.columns: dict[str, Column] = {}
        self.codes: dict[KeyId, str] = {}
        self.indexes: dict[KeyId, HashIndex] = {}
        self.ledgers: dict[CountWindow, Ledger] = {}
        self.linked: list[tuple[Linked, str]] = []
        """Who keeps row numbers of this window, and as which source."""
        self.seconds = 0.0
        """Spent on new rows, by whoever adds them."""
        self._flag_names: list[str] = []
        self._rewrite_at = _SMALLEST_REWRITE

    # -- layout -------------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """What another store needs, beside the arrays, to attach."""
        return {"rows": self.rows.position, "columns": {name: column.position for name, column in self.columns.items()}}

    def attached(self) -> None:
        """End of attaching: what is added from now on is new."""
        self._position = None
        self.rows.attaching = False

    def add_column(self, name: str, dtype: pa.DataType) -> None:
        if name not in self.columns:
            position = self._position["columns"][name] if self._position else ()
            is_time = (name, dtype) == self._time
            self.columns[name] = (
                TimeColumn(self.rows, name, dtype) if is_time else column_for(self.rows, name, dtype, position)
            )

    def remove_column(self, name: str) -> None:
        self.columns.pop(name).remove()

    def add_codes(self, key: KeyId) -> None:
        if key not in self.codes:
            name = f"code:{json.dumps(key)}"
            self.rows.add(name, np.uint64)
            self.codes[key] = name  # when it is there: an interrupt may come before
            if len(key) > 1 and self._position is None and len(self.rows):
                parts = [self.rows[self.codes[(part,)]] for part in key]
                self.rows[self.codes[key]][:] = combine(parts)

    def add_index(self, key: KeyId) -> None:
        self.add_codes(key)
        if key not in self.indexes:
            links = f"next:{json.dumps(key)}"
            self.rows.add(links, np.int64, -1)
            self.indexes[key] = self._empty_index(links)
            if self._position is None:
                self._fill_index(key, self.rows.tail)

    def remove_index(self, key: KeyId) -> None:
        links = self.indexes.pop(key).links
        self.rows.remove(links)
        self._arena.free(f"{self.name}.head:{links}")

    def remove_key(self, key: KeyId) -> None:
        if key in self.indexes:
            self.remove_index(key)
        self.rows.remove(self.codes.pop(key))

    def add_flag_word(self) -> None:
        name = self.flag_name(self.flag_words)
        self.rows.add(name, np.uint64)
        self._flag_names.append(name)

    @property
    def flag_words(self) -> int:
        return len(self._flag_names)

    @staticmethod
    def flag_name(word: int) -> str:
        return f"flags:{word}"

    def clear_flag(self, word: int, bit: int) -> None:
        self.rows[self.flag_name(word)][:] &= ~np.uint64(bit)

    def add_count_window(self, window: CountWindow, key: KeyId | None, column: str) -> None:
        """Keep the ends of `window`; `key` and `column` name the partition's code and value."""
        if window in self.ledgers:
            return
        label = f"{window.partition_by or ''}:{window.rows}"
        ledger = Ledger(window, f"last:{label}")
        self.rows.add(ledger.ends, np.int64)
        if key is not None:
            ledger.key, ledger.column = key, column
            ledger.arrays = tuple(
                f"{kind}:{label}" for kind in ("following", "oldest_inside", "later", "filled", "null")
            )
            for array in ledger.arrays:
                self.rows.add(array, np.int64)
            ledger.index = self._empty_index(ledger.arrays[0])
        self.ledgers[window] = ledger

    def remove_count_window(self, window: CountWindow) -> None:
        ledger = self.ledgers.pop(window)
        for name in (ledger.ends, *ledger.arrays):
            self.rows.remove(name)
        if ledger.index is not None:
            self._arena.free(f"{self.name}.head:{ledger.index.links}")

    # -- content ------------------------------------------------------------------------------------------------------------

    def append(self, arrivals: Arrivals) -> int:
        """Add rows and return the first one's number."""
        rows, count = self.rows, len(arrivals.ts)
        capacity = rows.capacity
        first = rows.extend(count)
        if count == 0:
            return first
        arrays, place = rows.arrays, first - rows.base
        stop = place + count
        arrays["ts"][place:stop] = arrivals.ts
        for name, flags in zip(self._flag_names, arrivals.flags, strict=True):
            arrays[name][place:stop] = flags
        computed = arrivals.computed
        for name, column in self.columns.items():
            column.append(computed[name] if name in computed else arrivals.columns[name[1:]], place, stop)
        for key, name in self.codes.items():
            arrays[name][place:stop] = arrivals.codes[key]
        prefix_max = arrays["prefix_max"]
        largest = prefix_max[place - 1] if place > rows.tail - rows.base else LONG_AGO
        extend_prefix_max(arrays["ts"], prefix_max, place, stop, largest)
        if rows.capacity != capacity:
            self._rebuild_chains()
        else:
            for key, index in self.indexes.items():
                insert(
                    index.head,
                    arrays[index.links],
                    arrays[self.codes[key]],
                    first,
                    first + count,
                    rows.base,
                    index.shift,
                )
            for ledger in self.ledgers.values():
                self._close_windows(ledger, first)
        return first

    def _empty_index(self, links: str) -> HashIndex:
        # At most half of the capacity is alive after a move, so chains hold about one living row.
        bits = max(1, (self.rows.capacity // 2 - 1).bit_length())
        name = f"{self.name}.head:{links}"
        if self._position is not None:
            head = self._arena.open(name, np.int64, 1 << bits)
        else:
            head = self._arena.allocate(name, np.int64, 1 << bits)
            head[:] = -1
        return HashIndex(head, np.uint64(64 - bits), links)

    def _fill_index(self, key: KeyId, first: int) -> None:
        index, rows = self.indexes[key], self.rows
        insert(index.head, rows[index.links], rows[self.codes[key]], first, rows.head, rows.base, index.shift)

    def _rebuild_chains(self) -> None:
        for key, index in self.indexes.items():
            self.indexes[key] = self._empty_index(index.links)
            self._fill_index(key, self.rows.tail)
        for ledger in self.ledgers.values():
            if ledger.index is not None:
                ledger.index = self._empty_index(ledger.arrays[0])
            self._close_windows(ledger, self.rows.tail)

    def _close_windows(self, ledger: Ledger, first: int) -> None:
        rows = self.rows
        ts, ends, size = rows["ts"], rows[ledger.ends], ledger.window.rows
        if ledger.index is None or ledger.key is None:
            oldest = rows.tail - rows.base
            close_row_windows(ts, ends, first - rows.base, rows.head - rows.base, oldest, size)
            return
        following, oldest_inside, later, filled, null = (rows[name] for name in ledger.arrays)
        column = self.columns[ledger.column]
        fresh = np.arange(first - rows.base, rows.head - rows.base)
        valid = valid_mask(column.take(fresh))
        null[fresh] = 0 if valid is None else ~valid
        nothing = np.zeros(0, np.int64)
        starts, lengths, data, data_base = nothing, nothing, np.zeros(0, np.uint8), 0
        if isinstance(column, BytesColumn):
            starts, lengths, data, data_base = column.starts, column.lengths, column.heap, column.heap_base
        close_partition_windows(
            ts, ends, rows[self.codes[ledger.key]], null, starts, lengths, data, data_base,
            ledger.index.head, following, oldest_inside, later, filled,
            first, rows.head, rows.tail, rows.base, ledger.index.shift, size,
        )  # fmt: skip

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

    def living(self, name: str) -> Int64Array:
        """One array's entries for the living rows."""
        values: Int64Array = self.rows[name][self.rows.tail - self.rows.base : self.rows.head - self.rows.base]
        return values

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
            for column in self.columns.values():
                column.before_keep(mask)
            for other, source in self.linked:
                other.renumber(source, mask)
            self.rows.keep(mask)
            largest = LONG_AGO
            extend_prefix_max(self.rows["ts"], self.rows["prefix_max"], 0, living, largest)
            self._rebuild_chains()
        self._rewrite_at = max(_SMALLEST_REWRITE, 2 * living)
