"""Run the leading stages of a probe path, those that probe by hash, in one call.

The stages are those of `extend`. A chunk of partial results passes all later stages before the next chunk is produced. Windows are
passed by address, because a path has as many as its join has inputs.
"""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.extend import gather_codes, probe_hash, probe_scan
from dovetail.engine.kernels.index import mix
from dovetail.engine.kernels.memory import int64_at, uint64_at

TARGET, SPAN, MASK, BASE, CAPACITY, CODE, TS, ENDS, FLAGS = range(9)
HEADS, HEAD_COUNT, LINKS, SHIFT, PREFIX_MAX, SIZE, PART, PART_END = range(9, 17)
"""Columns of the stage table: `extend.TargetAlias`; first row and capacity of the window's arrays; their addresses, with the number of
heads and the shift of the hash index; number of live rows; and the range of the key's parts in the part table."""
ALIAS, CODES, CODES_BASE, CODES_CAPACITY = range(4)
"""Columns of the part table: column of the alias that has a code; address, first row and capacity of its codes."""
AT, CURSOR, COUNT = range(3)
"""Columns of the state, by stage: next partial result, next row for it, number of partial results. The entry after the last stage is
the stage to continue with; -1 when all are done."""


@kernel
def follow(
    stages: Int64Array, parts: Int64Array, state: Int64Array, chunks: Int64Array, mixed: UInt64Array, counts: Int64Array,
    limits: Int64Array, floors: Int64Array, first: int, stop: int, driver: int,
) -> tuple[int, bool]:  # fmt: skip
    """Run the driving tuples `first` to `stop` through all stages.

    Return how many partial results of the last stage are in `chunks`, and whether to call again for more. The last of `chunks` holds
    the empty partial result, `mixed` is scratch space for combined codes, and `counts` are those of `PathRunner`.
    """
    end = len(stages)
    depth = state[end, 0]
    written = 0
    while depth >= 0:
        stage, at, cursor, count = stages[depth], state[depth, AT], state[depth, CURSOR], state[depth, COUNT]
        if at >= count:
            depth -= 1
            continue
        base, capacity, begin = stage[BASE], stage[CAPACITY], stage[PART]
        ts, ends = int64_at(stage[TS], capacity), int64_at(stage[ENDS], capacity)
        flags = uint64_at(stage[FLAGS], capacity)
        mask = np.uint64(stage[MASK])
        partial = chunks[depth - 1]  # for the first stage this is the last chunk, the empty partial result
        if at == 0 and cursor < 0:
            counts[depth, 0] += count
            counts[depth, 3] += count * stage[SIZE]
            if stage[PART_END] - begin > 1:
                for k in range(begin, stage[PART_END]):
                    part, out = parts[k], mixed[depth if k == begin else -1]
                    gather_codes(
                        partial, count, part[ALIAS], uint64_at(part[CODES], part[CODES_CAPACITY]), part[CODES_BASE], out
                    )
                    if k > begin:
                        mix(mixed[depth, :count], out[:count], mixed[depth, :count])
        if depth == 0:
            written, at, cursor, rows_read = probe_scan(
                partial, count, at, cursor, base, mixed[0, :0], ts, ends, flags, stage[TARGET], stage[SPAN], mask,
                mixed[0, :0], -1, 0, limits, floors, first, driver, stop, counts[0, :0], chunks[0],
            )  # fmt: skip
        else:
            lookup, source, lookup_base = mixed[depth], -1, 0
            if stage[PART_END] - begin == 1:
                lookup = uint64_at(parts[begin, CODES], parts[begin, CODES_CAPACITY])
                source, lookup_base = parts[begin, ALIAS], parts[begin, CODES_BASE]
            written, at, cursor, rows_read = probe_hash(
                partial, count, at, cursor, base, uint64_at(stage[CODE], capacity), ts, ends, flags,
                stage[TARGET], stage[SPAN], mask,
                int64_at(stage[HEADS], stage[HEAD_COUNT]), int64_at(stage[LINKS], capacity), np.uint64(stage[SHIFT]),
                int64_at(stage[PREFIX_MAX], capacity),
                lookup, source, lookup_base, limits, floors, first, driver, chunks[depth],
            )  # fmt: skip
        state[depth, AT], state[depth, CURSOR] = at, cursor
        counts[depth, 1] += rows_read
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
