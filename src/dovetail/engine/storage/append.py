"""New tuples put into a window: a table says where what they bring lies and where it goes, and one compiled call writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.append import (
    CHAIN,
    COPY,
    END,
    FILL,
    FROM,
    KIND,
    LATEST,
    OTHER,
    ROOM,
    TEXT,
    append_rows,
)
from dovetail.engine.storage.buffers import address_of
from dovetail.engine.storage.columns import BytesColumn, FixedColumn, StoredColumn
from dovetail.engine.storage.rows import Rows
from dovetail.plan.needs import KeyId


@dataclass(slots=True)
class NewRows:
    """Tuples about to enter a window, sorted by event time."""

    ts: Int64Array
    columns: Mapping[str, pa.Array]
    """The stream's columns, by their own names."""
    computed: Mapping[str, pa.Array]
    """Other columns of the window, by theirs."""
    codes: Mapping[KeyId, UInt64Array]
    flags: list[UInt64Array | np.uint64]
    """Per word, the flags of each row, or of all."""
    unseen: Int64Array | None = None
    """Event times of others that came with them and that nobody sees, if there were any and they were asked for."""
    numbers: Int64Array | None = None
    """By what they are known outside of the window, if they are."""

    def __len__(self) -> int:
        return len(self.ts)

    def column(self, name: str) -> pa.Array:
        """The values of a column, by its name in the window."""
        return self.computed[name] if name in self.computed else self.columns[name[1:]]

    def part(self, first: int, stop: int) -> NewRows:
        """Some of them."""
        if stop - first == len(self.ts):
            return self
        columns, computed = (
            {name: values.slice(first, stop - first) for name, values in named.items()}
            for named in (self.columns, self.computed)
        )
        flags = [word[first:stop] if isinstance(word, np.ndarray) else word for word in self.flags]
        codes = {key: code[first:stop] for key, code in self.codes.items()}
        numbers = self.numbers[first:stop] if self.numbers is not None else None
        return NewRows(self.ts[first:stop], columns, computed, codes, flags, numbers=numbers)


@dataclass(slots=True)
class HashIndex:
    """Heads of the chains of one key; the links are a per-row array."""

    head: Int64Array
    shift: np.uint64
    links: str


class Appender:
    """Writes new rows of one window; what it is given is the window's own, and changes with it."""

    def __init__(
        self,
        rows: Rows,
        columns: Mapping[str, StoredColumn],
        codes: Mapping[KeyId, str],
        indexes: Mapping[KeyId, HashIndex],
    ) -> None:
        self._rows, self._columns, self._codes, self._indexes = rows, columns, codes, indexes
        self._version = -1
        self._tasks = self._unchained = np.zeros((0, END + 1), np.int64)
        """What is written: texts, flags, then what is copied, and what follows from that."""
        self._texts: list[tuple[str, BytesColumn]] = []
        self._fixed: list[tuple[str, FixedColumn]] = []
        self._nested: list[tuple[str, StoredColumn]] = []
        self._flags, self._numbered = range(0), False

    def write(self, arrivals: NewRows, first: int, *, chained: bool) -> None:
        """Write rows from `first` on, for which there is room; `chained`: and what leads to them."""
        self._refresh()
        texts = [column.lay(arrivals.column(name)) for name, column in self._texts]
        self._refresh()  # bytes may have been moved to make room
        rows, tasks, stop = self._rows, self._tasks, first + len(arrivals.ts)
        for number, (offsets, *moved) in enumerate(texts):
            tasks[number, FROM], tasks[number, ROOM:] = offsets, moved
        for number, word in zip(self._flags, arrivals.flags, strict=True):
            if isinstance(word, np.ndarray):
                tasks[number, KIND], tasks[number, FROM] = COPY, address_of(word)
            else:
                tasks[number, KIND], tasks[number, FROM], tasks[number, OTHER] = FILL, 1, word.view(np.int64)
        fixed = [column.source(arrivals.column(name)) for name, column in self._fixed]
        copied = [*fixed, *[address_of(arrivals.codes[key]) for key in self._codes], address_of(arrivals.ts)]
        if self._numbered:
            assert arrivals.numbers is not None  # noqa: S101 - tuples of such windows have numbers
            copied.append(address_of(arrivals.numbers))
        tasks[self._flags.stop : self._flags.stop + len(copied), FROM] = copied
        append_rows(tasks if chained else self._unchained, rows.base, rows.tail, first, stop, rows.capacity)
        aside: list[tuple[str, StoredColumn]] = [
            each for each, task in zip(self._texts, texts, strict=True) if not task[0]
        ]
        aside += [each for each, address in zip(self._fixed, fixed, strict=True) if not address]
        for name, column in (*aside, *self._nested):
            column.append(arrivals.column(name), first - rows.base, stop - rows.base)

    def _refresh(self) -> None:
        """Look up where arrays lie, after they have moved or others have come."""
        rows = self._rows
        if rows.version == self._version:
            return
        at = {name: address_of(array) for name, array in rows.arrays.items()}
        kept = [(name, column) for name, column in self._columns.items() if column.is_kept]
        self._texts = [(name, column) for name, column in kept if isinstance(column, BytesColumn)]
        self._fixed = [(name, fixed) for name, fixed in kept if isinstance(fixed, FixedColumn)]
        self._nested = [(name, column) for name, column in kept if not column.width]
        words = [name for name in at if name.startswith("flags:")]
        self._flags, self._numbered = range(len(self._texts), len(self._texts) + len(words)), "number" in at
        tasks = []
        for _, text in self._texts:
            starts, lengths, *_ = text.extent
            tasks.append([TEXT, starts, text.width, 0, lengths])
        tasks += [[FILL, at[name], 8] for name in words]
        tasks += [[COPY, fixed.extent[0], fixed.width] for _, fixed in self._fixed]
        tasks += [[COPY, at[name], 8] for name in self._codes.values()]
        tasks += [[COPY, at[name], 8] for name in ("ts", "number") if name in at]
        tasks.append([LATEST, at["prefix_max"], 8, at["ts"]])
        for key, index in self._indexes.items():
            heads, shift = len(index.head), int(index.shift)
            code = at[self._codes[key]]
            tasks.append([CHAIN, at[index.links], 8, code, address_of(index.head), heads, shift])
        self._tasks = np.zeros((len(tasks), END + 1), np.int64)
        for number, task in enumerate(tasks):
            self._tasks[number, : len(task)] = task
        self._unchained = self._tasks[: len(tasks) - len(self._indexes)]
        self._version = rows.version
