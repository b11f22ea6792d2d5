"""Rows put into a window, all of its arrays in one call."""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.gather import write_extents
from dovetail.engine.kernels.index import insert
from dovetail.engine.kernels.memory import codes, copy, halves, words
from dovetail.engine.kernels.times import LONG_AGO, extend_prefix_max

KIND, TO, WIDTH, FROM, OTHER, ROOM, AT, SIZE, END = range(9)
"""Columns of a table of what is to be written: the kind; the address of an array, and the bytes of an entry; the address of what is
new, 0 where there is nothing to write. What the others are depends on the kind."""
COPY, FILL, TEXT, LATEST, CHAIN = range(5)
"""Kinds. Entries are copied, or all get the value `OTHER`. Of texts, starts go to `TO` and lengths to `OTHER`, `FROM` are offsets of
`WIDTH` bytes, and `SIZE` bytes go from `AT` to `ROOM`, which is heap position `END`. The running maximum of the times at `FROM`.
Chains: `TO` are links, `FROM` codes, and there are `ROOM` heads at `OTHER`, whose shift is `AT`."""
_SMALL = 4


@kernel
def append_rows(tasks: Int64Array, base: int, tail: int, first: int, stop: int, room: int) -> None:
    """Write rows `first` to `stop` of a window; `tail` is the oldest that lives, and arrays begin with `base` and hold `room`."""
    place, count = first - base, stop - first
    for number in range(len(tasks)):
        task = tasks[number]
        kind, width = task[KIND], task[WIDTH]
        if task[FROM] == 0:
            continue
        if kind == COPY:
            copy(task[TO] + place * width, task[FROM], count * width)
        elif kind == FILL:
            words(task[TO] + 8 * place, count)[:] = task[OTHER]
        elif kind == TEXT:
            starts, lengths = words(task[TO], room), words(task[OTHER], room)
            if width == _SMALL:
                write_extents(halves(task[FROM], count + 1), task[END], starts, lengths, place)
            else:
                write_extents(words(task[FROM], count + 1), task[END], starts, lengths, place)
            copy(task[ROOM], task[AT], task[SIZE])
        elif kind == LATEST:
            latest = words(task[TO], room)
            before = latest[place - 1] if first > tail else LONG_AGO
            extend_prefix_max(words(task[FROM], room), latest, place, place + count, before)
        else:
            heads, links, own = words(task[OTHER], task[ROOM]), words(task[TO], room), codes(task[FROM], room)
            insert(heads, links, np.uint64(task[AT]), own, base, tail, first, stop)
