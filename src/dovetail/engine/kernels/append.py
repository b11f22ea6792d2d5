"""Append rows to all arrays of a window in one call."""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.gather import write_extents
from dovetail.engine.kernels.index import insert
from dovetail.engine.kernels.memory import copy, int32_at, int64_at, uint64_at
from dovetail.engine.kernels.times import LONG_AGO, extend_prefix_max

KIND, TO, WIDTH, FROM, OTHER, ROOM, AT, SIZE, END = range(9)
"""Columns of a task table: the kind of task; the address of the target array and the bytes per entry; the address of the new values,
0 to skip the task. The meaning of the other columns depends on the kind."""
COPY, FILL, TEXT, LATEST, CHAIN = range(5)
"""Kinds of tasks. `COPY` copies the values; `FILL` sets all entries to `OTHER`. `TEXT` writes starts to `TO` and lengths to `OTHER`
from offsets of `WIDTH` bytes, and copies `SIZE` bytes from `AT` to `ROOM`, at heap position `END`. `LATEST` writes the running maximum
of the times at `FROM`. `CHAIN` inserts into a hash index with links `TO`, codes `FROM`, and `ROOM` heads at `OTHER`; `AT`: shift."""
_SMALL_OFFSET = 4


@kernel
def append_rows(tasks: Int64Array, base: int, tail: int, first: int, stop: int, room: int) -> None:
    """Write rows `first` to `stop`; `tail` is the oldest live row, arrays begin at `base` and hold `room`."""
    index, count = first - base, stop - first
    for i in range(len(tasks)):
        task = tasks[i]
        kind, width = task[KIND], task[WIDTH]
        if task[FROM] == 0:
            continue
        if kind == COPY:
            copy(task[TO] + index * width, task[FROM], count * width)
        elif kind == FILL:
            int64_at(task[TO] + 8 * index, count)[:] = task[OTHER]
        elif kind == TEXT:
            starts, lengths = int64_at(task[TO], room), int64_at(task[OTHER], room)
            if width == _SMALL_OFFSET:
                write_extents(int32_at(task[FROM], count + 1), task[END], starts, lengths, index)
            else:
                write_extents(int64_at(task[FROM], count + 1), task[END], starts, lengths, index)
            copy(task[ROOM], task[AT], task[SIZE])
        elif kind == LATEST:
            latest = int64_at(task[TO], room)
            before = latest[index - 1] if first > tail else LONG_AGO
            extend_prefix_max(int64_at(task[FROM], room), latest, index, index + count, before)
        else:
            heads, links, codes = (
                int64_at(task[OTHER], task[ROOM]),
                int64_at(task[TO], room),
                uint64_at(task[FROM], room),
            )
            insert(heads, links, np.uint64(task[AT]), codes, base, tail, first, stop)
