"""Append rows to all arrays of a window in one call."""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.gather import write_extents
from dovetail.engine.kernels.index import insert
from dovetail.engine.kernels.memory import copy, int32_at, int64_at, uint64_at
from dovetail.engine.kernels.times import LONG_AGO, extend_prefix_max

KIND, TO, WIDTH, FROM, OTHER, BYTES_TO, BYTES_FROM, SIZE, HEAP_POSITION = range(9)
"""Columns of a task table: the kind of task; the address of the target array and the bytes per entry; the address of the new values,
0 to skip the task. The meaning of the other columns depends on the kind."""
HEAD_COUNT, SHIFT = BYTES_TO, BYTES_FROM
"""The same columns in a `CHAIN` task."""
COLUMNS = HEAP_POSITION + 1
COPY, FILL, TEXT, PREFIX_MAX, CHAIN = range(5)
"""Kinds of tasks:

- `COPY` copies the values;
- `FILL` sets all entries to the value `OTHER`;
- `TEXT` writes starts to `TO` and lengths to `OTHER`, from offsets of `WIDTH` bytes; it copies `SIZE` bytes from `BYTES_FROM` to
  `BYTES_TO`, which is `HEAP_POSITION` in the heap;
- `PREFIX_MAX` writes the running maximum of the times at `FROM`;
- `CHAIN` inserts rows with the codes at `FROM` into a hash index with the links `TO`, and with `HEAD_COUNT` heads at `OTHER`.
"""
_SMALL_OFFSET_BYTES = 4


@kernel
def append_rows(tasks: Int64Array, base: int, tail: int, first: int, stop: int, capacity: int) -> None:
    """Write rows `first` to `stop`.

    `tail` is the oldest live row; arrays begin at row `base` and hold `capacity` rows.
    """
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
            starts, lengths = int64_at(task[TO], capacity), int64_at(task[OTHER], capacity)
            if width == _SMALL_OFFSET_BYTES:
                write_extents(int32_at(task[FROM], count + 1), task[HEAP_POSITION], starts, lengths, index)
            else:
                write_extents(int64_at(task[FROM], count + 1), task[HEAP_POSITION], starts, lengths, index)
            copy(task[BYTES_TO], task[BYTES_FROM], task[SIZE])
        elif kind == PREFIX_MAX:
            prefix_max = int64_at(task[TO], capacity)
            before = prefix_max[index - 1] if first > tail else LONG_AGO
            extend_prefix_max(int64_at(task[FROM], capacity), prefix_max, index, index + count, before)
        else:
            heads, links, codes = (
                int64_at(task[OTHER], task[HEAD_COUNT]),
                int64_at(task[TO], capacity),
                uint64_at(task[FROM], capacity),
            )
            insert(heads, links, np.uint64(task[SHIFT]), codes, base, tail, first, stop)
