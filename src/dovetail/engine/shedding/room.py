"""How many tuples windows may hold under a cap, and how many of a batch may come at a time.

A cap in bytes is for arrays, with their room for more rows. Rows lie in arrays whose length is a power of two, so every window gets
the longest such arrays that all windows can have; three quarters are for tuples, the rest for those that have been shed and not yet
been overwritten, and for the next ones.

Texts have any length. Each text column gets a heap with `TEXT_UNIT` bytes for each row, and a tuple takes a unit of the cap for each
`TEXT_UNIT` bytes of its longest text, so that neither rows nor heaps become longer than they may.
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

MAX_USES = 63
"""A tuple has a bit for each alias that reads its stream."""
TEXT_UNIT = 32
"""Bytes of each text column that one unit of the cap pays for."""
_NEVER_FITS = 1 << 30
"""Units of a tuple that is shed when it arrives."""
_LEAST_SLICE = 4096
"""A batch is not cut into parts that are smaller, unless bytes are counted."""


@dataclass(frozen=True, slots=True)
class Room:
    """What windows may hold."""

    pools: tuple[int, ...]
    """By window: with which others it shares a cap."""
    caps: tuple[int, ...]
    """By pool: units, one for each tuple that has no long texts."""
    slice: int
    """Units that may come at a time, in each window if bytes are counted, else in all."""
    limit: int | None = None
    """The length of arrays, if bytes are counted."""
    weighed: bool = False
    """Whether tuples may take more than one unit."""

    def units_of(self, window: WindowStore) -> Int32Array | None:
        """How much of the cap a window's tuples take; None if each takes one unit."""
        texts = texts_of(window).values() if self.limit is not None else ()
        return self._units([column.live_lengths for column in texts])

    def most_units_of(self, window: WindowStore) -> int:
        """At least so much of the cap as a window's tuples take, found without looking at each."""
        texts = texts_of(window).values() if self.limit is not None else ()
        return len(window.rows) + sum(column.allocated for column in texts) // TEXT_UNIT

    def weigh(self, arrived: NewRows, window: WindowStore) -> NewRows:
        """Note how much of the cap new tuples take. Those that never fit are shed when they arrive: their texts are left out."""
        names = list(texts_of(window)) if self.limit is not None else []
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
        return np.where(units > self.slice, _NEVER_FITS, units).astype(np.int32)

    def limit_arrays(self, window: WindowStore) -> None:
        """Let a window's arrays become no longer than they may."""
        window.rows.limit = self.limit
        for column in texts_of(window).values():
            column.limit = None if self.limit is None else TEXT_UNIT * self.limit


def text_bytes(arrived: NewRows, window: WindowStore) -> int:
    """Bytes of new tuples' texts, in the column that has most."""
    lengths = (pc.sum(pc.binary_length(arrived.column(name))).as_py() or 0 for name in texts_of(window))
    return max(lengths, default=0)


def has_room(window: WindowStore, count: int, text: int) -> bool:
    """Whether so many tuples, with so many bytes in a text column, fit into a window's arrays without moving what is there."""
    return window.rows.has_room(count) and all(column.has_room(text) for column in texts_of(window).values())


def texts_of(window: WindowStore) -> dict[str, BytesColumn]:
    """The text columns of a window."""
    return {name: column for name, column in window.columns.items() if isinstance(column, BytesColumn)}


def room_for(shedding: Shedding, windows: Sequence[WindowStore]) -> Room:
    """What a cap means for windows."""
    count = len(windows)
    if shedding.max_tuples is not None:
        if shedding.per == "session":
            return Room((0,) * count, (shedding.max_tuples,), max(_LEAST_SLICE, shedding.max_tuples))
        caps = (shedding.max_tuples,) * count
        return Room(tuple(range(count)), caps, max(_LEAST_SLICE, shedding.max_tuples))
    length = _length(shedding, windows)
    weighed = any(texts_of(window) for window in windows)
    return Room(tuple(range(count)), (length * 3 // 4,) * count, length // 4, length, weighed)


def _length(shedding: Shedding, windows: Iterable[WindowStore]) -> int:
    """The length of arrays that fits; at least the smallest."""
    assert shedding.max_bytes is not None  # noqa: S101 - asked of caps in bytes only
    widths = [_bytes_per_row(window) for window in windows]
    needed = sum(widths) if shedding.per == "session" else max(widths)
    length = SMALLEST_CAPACITY
    while 2 * length * needed <= shedding.max_bytes:
        length *= 2
    return length


def _bytes_per_row(window: WindowStore) -> int:
    # There is half a head, of eight bytes, per row; arrays of valid values are added when the first NULL comes.
    valid = sum(isinstance(column, NullableColumn) and not column.has_nulls for column in window.columns.values())
    return window.rows.width + valid + 4 * len(window.indexes) + TEXT_UNIT * len(texts_of(window))


def check_room(
    shedding: Shedding, plan: ExecutionPlan, streams: Mapping[str, StreamSchema], shards: int | None = None
) -> None:
    """Refuse a cap that is below what a plan's windows need to work at all; each of some `shards`, if there are any, has a part."""
    for stream in streams:
        uses = sum(source.stream == stream for step in plan.steps for source in step.sources)
        if uses > MAX_USES:
            raise ConfigError(
                f"stream {stream!r} is read {uses} times by the queries; with Shedding(...) at most {MAX_USES} times are possible",
                "register fewer queries on it, or leave shedding out",
            )
    parts, each = shards or 1, f" in each of {shards} shards" if shards is not None else ""
    if shedding.max_tuples is not None:
        least = parts * (len(plan.windows) if shedding.per == "session" else 1)
        if shedding.max_tuples < least:
            raise ConfigError(
                f"Shedding(max_tuples={shedding.max_tuples}) is less than one tuple for each of {len(plan.windows)} windows{each}: "
                f"{listed(window.stream for window in plan.windows)}",
                f"give at least max_tuples={least}; useful are some hundreds per window",
            )
        return
    assert shedding.max_bytes is not None  # noqa: S101 - one of the two is given
    stores = []
    for window in plan.windows:
        store = WindowStore(HeapArena(), window.name, streams[window.stream], numbered=shards is not None)
        store.extend(window.kept, window.expiry_tables, window.words)
        nested = [name.removeprefix(".") for name, column in store.columns.items() if isinstance(column, NestedColumn)]
        if nested:
            raise ConfigError(
                f"Shedding(max_bytes={shedding.max_bytes}): window {window.stream!r} keeps {listed(nested)}, whose nested values have "
                "any size: how many tuples fit is not known before they come",
                "use Shedding(max_tuples=...), or do not select these columns",
            )
        stores.append(store)
    widths = [_bytes_per_row(store) for store in stores]
    least = parts * SMALLEST_CAPACITY * (sum(widths) if shedding.per == "session" else max(widths))
    if shedding.max_bytes < least:
        whose = "windows" if shedding.per == "session" else "the largest window"
        raise ConfigError(
            f"Shedding(max_bytes={shedding.max_bytes}) is less than the smallest arrays of {whose} take{each}, {least} bytes for "
            f"{SMALLEST_CAPACITY} rows each",
            f"give at least max_bytes={least}, or use max_tuples",
        )
