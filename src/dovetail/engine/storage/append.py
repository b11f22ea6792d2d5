"""Append new tuples to a window: one compiled call writes all arrays, given a table of addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail._typing import Int32Array, Int64Array, UInt64Array
from dovetail.engine.kernels.append import (
    BYTES_TO,
    CHAIN,
    COLUMNS,
    COPY,
    FILL,
    FROM,
    KIND,
    OTHER,
    PREFIX_MAX,
    TEXT,
    append_rows,
)
from dovetail.engine.storage.buffers import address_of
from dovetail.engine.storage.columns import BytesColumn, FixedColumn, StoredColumn
from dovetail.engine.storage.columns.texts import NOT_COPIED
from dovetail.engine.storage.rows import Rows
from dovetail.plan.needs import KeyId


@dataclass(slots=True)
class NewRows:
    """Tuples to append to a window, sorted by event time."""

    ts: Int64Array
    columns: Mapping[str, pa.Array]
    """The stream's columns, by name in the stream."""
    computed: Mapping[str, pa.Array]
    """Computed columns, by name in the window."""
    codes: Mapping[KeyId, UInt64Array]
    flags: list[UInt64Array | np.uint64]
    """Flag words: an array with one word per row, or one word for all rows."""
    unseen: Int64Array | None = None
    """Event times of the batch's tuples that no view sees; None if there are none or they were not requested."""
    numbers: Int64Array | None = None
    """Numbers of the tuples in the shard's log, if the window keeps them."""
    units: Int32Array | None = None
    """Units of a memory cap that each tuple takes; None if each takes one."""

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def total_units(self) -> int:
        """Units of a memory cap that the tuples take."""
        return len(self.ts) if self.units is None else int(self.units.sum())

    def column(self, name: str) -> pa.Array:
        """Return the values of a column, by its name in the window."""
        return self.computed[name] if name in self.computed else self.columns[name[1:]]

    def slice(self, first: int, stop: int) -> NewRows:
        """Return rows `first` to `stop`."""
        if stop - first == len(self.ts):
            return self
        columns, computed = (
            {name: values.slice(first, stop - first) for name, values in named.items()}
            for named in (self.columns, self.computed)
        )
        flags = [word[first:stop] if isinstance(word, np.ndarray) else word for word in self.flags]
        codes = {key: code[first:stop] for key, code in self.codes.items()}
        numbers = self.numbers[first:stop] if self.numbers is not None else None
        units = self.units[first:stop] if self.units is not None else None
        return NewRows(self.ts[first:stop], columns, computed, codes, flags, numbers=numbers, units=units)


@dataclass(slots=True)
class HashIndex:
    """Chain heads of one key's hash index; the links are a per-row array."""

    heads: Int64Array
    shift: np.uint64
    links: str


class Appender:
    """Writes new rows to the arrays of one window.

    The window owns the mappings that are passed here and may change them.
    """

    def __init__(
        self,
        rows: Rows,
        columns: Mapping[str, StoredColumn],
        codes: Mapping[KeyId, str],
        indexes: Mapping[KeyId, HashIndex],
    ) -> None:
        self._rows, self._columns, self._codes, self._indexes = rows, columns, codes, indexes
        self._version = -1
        self._tasks = self._unchained = np.zeros((0, COLUMNS), np.int64)
        """Task table: texts, flags, copied arrays, `prefix_max`, hash indexes; `_unchained` is the part before the hash indexes."""
        self._texts: list[tuple[str, BytesColumn]] = []
        self._fixed: list[tuple[str, FixedColumn]] = []
        self._nested: list[tuple[str, StoredColumn]] = []
        self._flags, self._has_numbers = range(0), False
        self._filled: list[np.uint64 | None] = []
        """By flag word: the word in the task table, if it fills all rows with one."""

    def write(self, arrivals: NewRows, first: int, *, chained: bool) -> None:
        """Write rows from `first` on, for which there is room; `chained`: also into the hash indexes."""
        rows = self._rows
        if rows.version != self._version:
            self._refresh()
        texts = [column.reserve_text(arrivals.column(name)) for name, column in self._texts]
        if rows.version != self._version:  # a heap has moved to make room
            self._refresh()
        tasks, stop = self._tasks, first + len(arrivals.ts)
        for task, (offsets, *extent) in enumerate(texts):
            tasks[task, FROM], tasks[task, BYTES_TO:] = offsets, extent
        for task, before, word in zip(self._flags, self._filled, arrivals.flags, strict=True):
            if word is not before:
                self._write_flags(task, word)
        fixed = [column.source_address(arrivals.column(name)) for name, column in self._fixed]
        sources = [*fixed, *[address_of(arrivals.codes[key]) for key in self._codes], address_of(arrivals.ts)]
        if self._has_numbers:
            assert arrivals.numbers is not None  # noqa: S101 - tuples of such windows have numbers
            sources.append(address_of(arrivals.numbers))
        tasks[self._flags.stop : self._flags.stop + len(sources), FROM] = sources
        append_rows(tasks if chained else self._unchained, rows.base, rows.tail, first, stop, rows.capacity)
        remaining: list[tuple[str, StoredColumn]] = []
        if NOT_COPIED in texts:
            remaining += [text for text, extent in zip(self._texts, texts, strict=True) if extent == NOT_COPIED]
        if 0 in fixed:
            remaining += [column for column, address in zip(self._fixed, fixed, strict=True) if not address]
        for name, column in (*remaining, *self._nested):
            column.append(arrivals.column(name), first - rows.base, stop - rows.base)

    def _write_flags(self, task: int, word: UInt64Array | np.uint64) -> None:
        """Set what a task writes as flags: a word for each row, or one for all."""
        tasks, index = self._tasks, task - self._flags.start
        self._filled[index] = None  # until the task is complete: an interrupt must not leave another word in it
        if isinstance(word, np.ndarray):
            tasks[task, KIND], tasks[task, FROM] = COPY, address_of(word)
        else:
            tasks[task, KIND], tasks[task, FROM], tasks[task, OTHER] = FILL, 1, word.view(np.int64)
            self._filled[index] = word

    def _refresh(self) -> None:
        """Rebuild the task table after arrays have moved or been added."""
        rows = self._rows
        addresses = {name: address_of(array) for name, array in rows.arrays.items()}
        stored_columns = [(name, column) for name, column in self._columns.items() if column.is_stored]
        self._texts = [(name, column) for name, column in stored_columns if isinstance(column, BytesColumn)]
        self._fixed = [(name, fixed) for name, fixed in stored_columns if isinstance(fixed, FixedColumn)]
        self._nested = [(name, column) for name, column in stored_columns if not column.width]
        words = [name for name in addresses if name.startswith("flags:")]
        self._flags, self._filled = range(len(self._texts), len(self._texts) + len(words)), [None] * len(words)
        self._has_numbers = "number" in addresses
        tasks = []
        for _, text in self._texts:
            starts, lengths, *_ = text.addresses
            tasks.append([TEXT, starts, text.width, 0, lengths])
        tasks += [[FILL, addresses[name], 8] for name in words]
        tasks += [[COPY, fixed.addresses[0], fixed.width] for _, fixed in self._fixed]
        tasks += [[COPY, addresses[name], 8] for name in self._codes.values()]
        tasks += [[COPY, addresses[name], 8] for name in ("ts", "number") if name in addresses]
        tasks.append([PREFIX_MAX, addresses["prefix_max"], 8, addresses["ts"]])
        for key, index in self._indexes.items():
            head_count, shift = len(index.heads), int(index.shift)
            code = addresses[self._codes[key]]
            tasks.append([CHAIN, addresses[index.links], 8, code, address_of(index.heads), head_count, shift])
        self._tasks = np.zeros((len(tasks), COLUMNS), np.int64)
        for row, task in zip(self._tasks, tasks, strict=True):
            row[: len(task)] = task
        self._unchained = self._tasks[: len(tasks) - len(self._indexes)]
        self._version = rows.version
