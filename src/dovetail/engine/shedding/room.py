"""How many tuples windows may hold under a cap, and how many of a batch may come at a time.

A cap in bytes is for arrays, with their room for more rows. Rows lie in arrays whose length is a power of two, so every window gets
the longest such arrays that all windows can have; three quarters are for tuples, the rest for those that have been shed and not yet
been overwritten, and for the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.config import Shedding
from dovetail.engine.storage.arena import HeapArena
from dovetail.engine.storage.columns import BytesColumn, NestedColumn
from dovetail.engine.storage.rows import SMALLEST_CAPACITY
from dovetail.engine.storage.window import WindowStore
from dovetail.errors import ConfigError, listed
from dovetail.plan.execution import ExecutionPlan
from dovetail.schema import StreamSchema

MAX_USES = 63
"""A tuple has a bit for each alias that reads its stream."""
_LEAST_SLICE = 4096
"""A batch is not cut into parts that are smaller, unless bytes are counted."""


@dataclass(frozen=True, slots=True)
class Room:
    """What windows may hold."""

    pools: tuple[int, ...]
    """By window: with which others it shares a cap."""
    caps: tuple[int, ...]
    """By pool: tuples."""
    slice: int
    """Tuples that may come at a time, in each window if bytes are counted, else in all."""
    limit: int | None = None
    """The length of arrays, if bytes are counted."""


def room_for(shedding: Shedding, windows: Sequence[WindowStore]) -> Room:
    """What a cap means for windows."""
    count = len(windows)
    if shedding.max_tuples is not None:
        if shedding.per == "session":
            return Room((0,) * count, (shedding.max_tuples,), max(_LEAST_SLICE, shedding.max_tuples))
        caps = (shedding.max_tuples,) * count
        return Room(tuple(range(count)), caps, max(_LEAST_SLICE, shedding.max_tuples))
    length = _length(shedding, windows)
    return Room(tuple(range(count)), (length * 3 // 4,) * count, length // 4, length)


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
    # There is half a head, of eight bytes, per row.
    return window.rows.width + 4 * len(window.indexes)


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
        long = [
            name.removeprefix(".")
            for name, column in store.columns.items()
            if isinstance(column, BytesColumn | NestedColumn)
        ]
        if long:
            raise ConfigError(
                f"Shedding(max_bytes={shedding.max_bytes}): window {window.stream!r} keeps {listed(long)}, whose values have any "
                "length: how many tuples fit is not known before they come",
                "use Shedding(max_tuples=...), or do not select or compare these columns",
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
