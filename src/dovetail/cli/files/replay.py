"""Files pushed into a session in slices of event time, so that memory stays at the windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

import dovetail as dt
from dovetail.cli.files.data_file import DataFile

_BEFORE_ALL = -(1 << 62)
_AFTER_ALL = 1 << 60
"""An event time in microseconds after all others, and one that a session accepts."""
_JOINED_ROWS = 1 << 15
"""Rows that are joined before their results are yielded."""


@dataclass
class _Reader:
    """A file that is being read: the rows that are next, and the largest event time among them."""

    name: str
    pieces: Iterator[tuple[pa.Table, int]]
    event_time: str
    rows: pa.Table | None = None
    """None at the end."""
    latest: int = _BEFORE_ALL
    bytes_read: int = 0

    def read(self) -> None:
        """Read the next rows."""
        self.rows, self.bytes_read = next(self.pieces, (None, self.bytes_read))
        latest = None if self.rows is None else pc.max(self._times()).as_py()
        self.latest = _BEFORE_ALL if latest is None else latest

    def take_until(self, time: int) -> pa.Table:
        """Remove and return the rows up to an event time, and those without one."""
        assert self.rows is not None  # noqa: S101 - the caller has checked
        is_due = pc.fill_null(pc.less_equal(self._times(), time), fill_value=True)
        due, self.rows = self.rows.filter(is_due), self.rows.filter(pc.invert(is_due))
        return due

    def _times(self) -> pa.ChunkedArray:
        assert self.rows is not None  # noqa: S101 - the caller has checked
        times = self.rows.column(self.event_time)
        return times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())


def replay(
    session: dt.LocalSession,
    files: Sequence[DataFile],
    event_times: Mapping[str, str],
    on_progress: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[str, pa.Table]]:
    """Push files into a session; yield pairs of query and results as they are found.

    Each push has all rows up to the end of the piece that ends first, so the streams stay in step. The time of a stream that has
    ended goes on with the others, so that it does not keep their windows. `on_progress` gets the number of bytes read so far.
    """
    readers = [_Reader(file.name, file.pieces(), event_times[file.name]) for file in files]
    for reader in readers:
        reader.read()
    while waiting := [reader for reader in readers if reader.rows is not None]:
        until = min(reader.latest for reader in waiting)
        due = {reader.name: reader.take_until(until) for reader in waiting}
        yield from session.push_iter(
            {name: rows for name, rows in due.items() if rows.num_rows}, piece_rows=_JOINED_ROWS
        )
        for reader in waiting:
            if reader.latest <= until:
                reader.read()
        ended = [reader.name for reader in readers if reader.rows is None]
        if ended and until > _BEFORE_ALL:
            yield from session.advance(dict.fromkeys(ended, until)).items()
        on_progress(sum(reader.bytes_read for reader in readers))
    yield from session.advance({reader.name: _AFTER_ALL for reader in readers}).items()
