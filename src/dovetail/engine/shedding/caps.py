"""The caps of windows in units, and how much of a batch may be added at a time.

A tuple takes one unit of a cap. A cap in bytes limits the arrays of windows, free capacity included. Array lengths are powers of two,
so every window gets the longest arrays that all windows can have. Three quarters of the rows are for tuples, the rest for shed rows
that are not yet overwritten and for the next slice.

Texts have any length. Each text column gets a heap of `TEXT_UNIT` bytes for each row, and a tuple takes one unit of the cap for each
`TEXT_UNIT` bytes of its longest text, so that neither rows nor heaps outgrow their limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import Int32Array, Int64Array
from dovetail.config import Shedding
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import HeapArena
from dovetail.engine.storage.columns import BytesColumn, NestedColumn
from dovetail.engine.storage.columns.base import NullableColumn
from dovetail.engine.storage.rows import SMALLEST_CAPACITY
from dovetail.engine.storage.window import WindowStore
from dovetail.errors import ConfigError, listed
from dovetail.plan.execution import ExecutionPlan
from dovetail.schema import StreamSchema

MAX_READERS = 63
"""A tuple has a bit for each alias that reads its stream."""
TEXT_UNIT = 32
"""Bytes of each text column in one unit of the cap."""
_NEVER_FITS = 1 << 30
"""Units of a tuple that is shed on arrival."""
_MIN_SLICE_UNITS = 4096
"""Slices of a batch are not smaller, unless the cap is in bytes."""


@dataclass(frozen=True, slots=True)
class ShedCaps:
    """Caps of the windows."""

    pools: tuple[int, ...]
    """By window: index of its cap."""
    max_units: tuple[int, ...]
    """By cap: units, one for each tuple without long texts."""
    slice_units: int
    """Units of a slice of a batch: of each stream if the cap is in bytes, else of all streams."""
    max_rows: int | None = None
    """Length of each window's arrays, if the cap is in bytes."""
    has_weights: bool = False
    """Whether tuples may take more than one unit."""

    def units_of(self, window: WindowStore) -> Int32Array | None:
        """Return the units of each of a window's tuples; None if each takes one."""
        texts = texts_of(window).values() if self.max_rows is not None else ()
        return self._units([column.live_lengths for column in texts])

    def max_units_of(self, window: WindowStore) -> int:
        """Return an upper bound of the units of a window's tuples, without reading them."""
        texts = texts_of(window).values() if self.max_rows is not None else ()
        return len(window.rows) + sum(column.allocated for column in texts) // TEXT_UNIT

    def weigh(self, arrived: NewRows, window: WindowStore) -> NewRows:
        """Return new tuples with their units. Those that never fit are shed on arrival, so their texts are emptied."""
        names = list(texts_of(window)) if self.max_rows is not None else []
        texts = [pc.fill_null(pc.binary_length(arrived.column(name)), 0).to_numpy() for name in names]
        units = self._units(texts)
        if units is None or (units != _NEVER_FITS).all():
            return replace(arrived, units=units)
        fits = pa.array(units != _NEVER_FITS)
        kept = {name: pc.if_else(fits, (values := arrived.column(name)), pa.scalar("", values.type)) for name in names}
        columns, computed = (
            {name: kept.get(prefix + name, values) for name, values in named.items()}
            for prefix, named in ((".", arrived.columns), ("", arrived.computed))
        )
        return replace(arrived, columns=columns, computed=computed, units=units)

    def _units(self, texts: Sequence[Int64Array]) -> Int32Array | None:
        if not texts:
            return None
        units = np.maximum(1, -(-np.maximum.reduce(texts) // TEXT_UNIT))
        return np.where(units > self.slice_units, _NEVER_FITS, units).astype(np.int32)

    def limit_arrays(self, window: WindowStore) -> None:
        """Limit the length of a window's arrays."""
        window.rows.limit = self.max_rows
        for column in texts_of(window).values():
            column.limit = None if self.max_rows is None else TEXT_UNIT * self.max_rows


def text_bytes(arrived: NewRows, window: WindowStore) -> int:
    """Return the bytes of new tuples' texts in the largest text column."""
    lengths = (pc.sum(pc.binary_length(arrived.column(name))).as_py() or 0 for name in texts_of(window))
    return max(lengths, default=0)


def has_room(window: WindowStore, count: int, text: int) -> bool:
    """Whether this many tuples, with this many bytes in a text column, fit into a window's arrays without compaction."""
    return window.rows.has_room(count) and all(column.has_room(text) for column in texts_of(window).values())


def texts_of(window: WindowStore) -> dict[str, BytesColumn]:
    """Return the text columns of a window by name."""
    return {name: column for name, column in window.columns.items() if isinstance(column, BytesColumn)}


def caps_for(shedding: Shedding, windows: Sequence[WindowStore]) -> ShedCaps:
    """Return the caps of windows under the options of a session."""
    count = len(windows)
    if shedding.max_tuples is not None:
        if shedding.per == "session":
            return ShedCaps((0,) * count, (shedding.max_tuples,), max(_MIN_SLICE_UNITS, shedding.max_tuples))
        max_units = (shedding.max_tuples,) * count
        return ShedCaps(tuple(range(count)), max_units, max(_MIN_SLICE_UNITS, shedding.max_tuples))
    length = _length(shedding, windows)
    has_weights = any(texts_of(window) for window in windows)
    return ShedCaps(tuple(range(count)), (length * 3 // 4,) * count, length // 4, length, has_weights)


def _length(shedding: Shedding, windows: Iterable[WindowStore]) -> int:
    """Return the longest array length that fits a cap in bytes; at least the smallest."""
    assert shedding.max_bytes is not None  # noqa: S101 - the caller checks
    widths = [_bytes_per_row(window) for window in windows]
    needed = sum(widths) if shedding.per == "session" else max(widths)
    length = SMALLEST_CAPACITY
    while 2 * length * needed <= shedding.max_bytes:
        length *= 2
    return length


def _bytes_per_row(window: WindowStore) -> int:
    # An index has half a chain head, of eight bytes, per row. Validity arrays are added with the first NULL.
    valid = sum(isinstance(column, NullableColumn) and not column.has_nulls for column in window.columns.values())
    return window.rows.width + valid + 4 * len(window.indexes) + TEXT_UNIT * len(texts_of(window))


def check_shedding_cap(
    shedding: Shedding, plan: ExecutionPlan, streams: Mapping[str, StreamSchema], shards: int | None = None
) -> None:
    """Raise `ConfigError` if a cap is below the minimum of a plan's windows; with `shards`, each has an equal part of it."""
    for stream in streams:
        readers = sum(source.stream == stream for step in plan.steps for source in step.sources)
        if readers > MAX_READERS:
            raise ConfigError(
                f"stream {stream!r} is read {readers} times by the queries; with Shedding(...) the maximum is {MAX_READERS}",
                "register fewer queries on it, or leave shedding out",
            )
    parts, each = shards or 1, f" in each of {shards} shards" if shards is not None else ""
    if shedding.max_tuples is not None:
        minimum = parts * (len(plan.windows) if shedding.per == "session" else 1)
        if shedding.max_tuples < minimum:
            raise ConfigError(
                f"Shedding(max_tuples={shedding.max_tuples}) is less than one tuple for each of {len(plan.windows)} windows{each}: "
                f"{listed(window.stream for window in plan.windows)}",
                f"give at least max_tuples={minimum}; a few hundred per window is a useful minimum",
            )
        return
    assert shedding.max_bytes is not None  # noqa: S101 - exactly one of the two is given
    stores = []
    for window in plan.windows:
        store = WindowStore(HeapArena(), window.name, streams[window.stream], numbered=shards is not None)
        store.extend(window.kept, window.expiry_tables, window.words)
        nested = [name.removeprefix(".") for name, column in store.columns.items() if isinstance(column, NestedColumn)]
        if nested:
            raise ConfigError(
                f"Shedding(max_bytes={shedding.max_bytes}): window {window.stream!r} keeps {listed(nested)}, but "
                "nested values have no size limit, so a byte cap cannot be enforced",
                "use Shedding(max_tuples=...), or do not select these columns",
            )
        stores.append(store)
    widths = [_bytes_per_row(store) for store in stores]
    minimum = parts * SMALLEST_CAPACITY * (sum(widths) if shedding.per == "session" else max(widths))
    if shedding.max_bytes < minimum:
        whose = "windows" if shedding.per == "session" else "the largest window"
        raise ConfigError(
            f"Shedding(max_bytes={shedding.max_bytes}) is less than {minimum} bytes, the size of the smallest "
            f"arrays of {whose}{each}, with {SMALLEST_CAPACITY} rows each",
            f"give at least max_bytes={minimum}, or use max_tuples",
        )
