"""The first stages of a probe path in one call, as long as windows are probed by hash.

Stages are those of `extend`, and a chunk of partial results goes through all later ones before the next is made. Windows are known by
their addresses, for a path has as many as its join has inputs.
"""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.extend import gather_codes, probe_hash, probe_scan
from dovetail.engine.kernels.index import mix
from dovetail.engine.kernels.memory import codes, words

ADDED, SPAN, BIT, BASE, ROOM, CODE, TS, ENDS, FLAGS, HEADS, HEAD_COUNT, LINKS, SHIFT, LATEST, HELD, PART, PART_END = (
    range(17)
)
"""Columns of a table of stages: `extend.Added`; the first row of the window's arrays, and how many they hold; the addresses of these;
how many rows there are; and where the parts of the key are in a table of parts."""
OF, CODES, CODES_BASE, CODES_ROOM = range(4)
"""Columns of a table of parts: the column of the alias that has a code, and where codes are."""
AT, CURSOR, COUNT = range(3)
"""Columns of the state of a walk, by stage: the next partial result, the next row for it, and how many partial results there are.
Behind that of the last stage it has the stage to go on with; -1 when all is done."""


@kernel
def follow(
    stages: Int64Array, parts: Int64Array, state: Int64Array, chunks: Int64Array, mixed: UInt64Array, counts: Int64Array,
    limits: Int64Array, floors: Int64Array, first: int, stop: int, driver: int,
) -> tuple[int, bool]:  # fmt: skip
    """Take the driving tuples `first` to `stop` through all stages.

    Return how many partial results of the last one are in `chunks`, and whether to call again for others. The last of `chunks` has the
    partial result of nothing, `mixed` is room for codes, and `counts` are those of `PathRunner`.
    """
    end = len(stages)
    depth = state[end, 0]
    written = 0
    while depth >= 0:
        stage, at, cursor, count = stages[depth], state[depth, AT], state[depth, CURSOR], state[depth, COUNT]
        if at >= count:
            depth -= 1
            continue
        base, room, begin = stage[BASE], stage[ROOM], stage[PART]
        ts, ends, flags = words(stage[TS], room), words(stage[ENDS], room), codes(stage[FLAGS], room)
        bit = np.uint64(stage[BIT])
        partial = chunks[depth - 1]  # before the first stage the last one, which is of nothing
        if at == 0 and cursor < 0:
            counts[depth, 0] += count
            counts[depth, 3] += count * stage[HELD]
            if stage[PART_END] - begin > 1:
                for number in range(begin, stage[PART_END]):
                    part, out = parts[number], mixed[depth if number == begin else -1]
                    gather_codes(partial, count, part[OF], codes(part[CODES], part[CODES_ROOM]), part[CODES_BASE], out)
                    if number > begin:
                        mix(mixed[depth, :count], out[:count], mixed[depth, :count])
        if depth == 0:
            written, at, cursor, looked = probe_scan(
                partial, count, at, cursor, base, mixed[0, :0], ts, ends, flags, stage[ADDED], stage[SPAN], bit,
                mixed[0, :0], -1, 0, limits, floors, first, driver, stop, counts[0, :0], chunks[0],
            )  # fmt: skip
        else:
            wanted, source, wanted_base = mixed[depth], -1, 0
            if stage[PART_END] - begin == 1:
                wanted = codes(parts[begin, CODES], parts[begin, CODES_ROOM])
                source, wanted_base = parts[begin, OF], parts[begin, CODES_BASE]
            written, at, cursor, looked = probe_hash(
                partial, count, at, cursor, base, codes(stage[CODE], room), ts, ends, flags,
                stage[ADDED], stage[SPAN], bit,
                words(stage[HEADS], stage[HEAD_COUNT]), words(stage[LINKS], room), np.uint64(stage[SHIFT]),
                words(stage[LATEST], room),
                wanted, source, wanted_base, limits, floors, first, driver, chunks[depth],
            )  # fmt: skip
        state[depth, AT], state[depth, CURSOR] = at, cursor
        counts[depth, 1] += looked
        counts[depth, 2] += written
        if written > 0:
            depth += 1
            if depth == end:
                break
            state[depth, AT], state[depth, CURSOR], state[depth, COUNT] = 0, -1, written
        written = 0
    depth = end - 1
    while depth >= 0 and state[depth, AT] >= state[depth, COUNT]:
        depth -= 1
    state[end, 0] = depth
    return written, depth >= 0
