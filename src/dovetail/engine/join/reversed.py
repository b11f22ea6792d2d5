"""Make the first probe of a path from the other side: general lazy hash joins (Golab, Özsu, 3.4).

New tuples need not be outermost. If a batch has many new tuples and the first window that they probe is small, it takes fewer probes
to scan that window and to look up each of its rows among the new tuples. No index of their own is needed: chains run newest first, so
in the index of the driver's window a probe that stops at the first new row finds new tuples only. Both ways lead to the same partial
results, in another order, and the path continues from there.

The engine chooses by the sizes of each batch and window, which it knows exactly. The paper allows new tuples at any position; further
in than the second they could save at most the scan of the small window, and only if its matches with another one are fewer still.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.join.stages import Bounds, Scratch, StageRunner
from dovetail.engine.join.verify import Member
from dovetail.engine.kernels.times import FOREVER, LONG_AGO
from dovetail.plan.needs import key_id
from dovetail.plan.query_plan import KeyPart, ProbePath, ProbeStage
from dovetail.query.model import Key

MIN_RATIO = 2.0
"""New tuples per row of the probed window from which a batch is joined from the other side.

Probing the index of a large window from rows of a small one costs up to twice as much as the opposite.
"""
MIN_NEW_TUPLES = 512
"""New tuples below which the fixed cost of two more calls outweighs the saved probes."""


class ReversedProbe:
    """The first probe of one path, from the rows of the probed window."""

    def __init__(self, path: ProbePath, members: Mapping[str, Member], scratch: Scratch) -> None:
        """Reverse the first two stages of `path`: its new tuples, and a probe by hash."""
        driver, probed = path.stages[0], path.stages[1]
        self._driver, self._probed = members[driver.alias], members[probed.alias]
        parts = [KeyPart(part.source.expression, Key(probed.alias, part.target)) for part in probed.key]
        # In the order that `PathBuilder` gives the parts of the driver's own key.
        parts.sort(key=lambda part: str(part.target))
        stages = (
            ProbeStage(probed.alias, "scan", (), ()),
            ProbeStage(driver.alias, "hash", tuple(parts), ()),
        )
        self._key = key_id(stages[1])
        self._path, self._members, self._scratch = ProbePath(probed.alias, stages), members, scratch
        self._runners: list[StageRunner] = []
        self._empty = np.zeros((1, len(members) + 2), np.int64)
        self._empty[0, -2:] = LONG_AGO, FOREVER

    def pays(self, bounds: Bounds) -> bool:
        """Whether these driving tuples are joined with less work from the other side."""
        count = bounds.stop - bounds.first
        return (
            count >= MIN_NEW_TUPLES
            and bounds.limits.shape[1] == 1
            and count >= MIN_RATIO * len(self._probed.store.rows)
            and self._key in self._driver.store.indexes
        )

    def run(self, bounds: Bounds, counts: Int64Array, seconds: list[float]) -> Iterator[tuple[Int64Array, int]]:
        """Join the driving tuples with the window; yield matrices of partial results, with their rows.

        `counts` and `seconds` are those of the path's stages. A probe counts for each new tuple, as if it had been made by it, because
        selectivities are measured by these counts; rows read are those that were read.
        """
        if not self._runners:
            self._runners = [StageRunner(self._path, depth, self._members, bounded=True) for depth in range(2)]
        column = self._driver.column
        bounds.limits[column, 0], bounds.floors[column, 0] = bounds.stop, bounds.first
        new = self._visible_new_tuples(bounds)
        counts[0] += 1, bounds.stop - bounds.first, new, len(self._driver.store.rows)
        counts[1, 0] += new
        counts[1, 3] += new * len(self._probed.store.rows)
        for scanned, rows in self._stage(0, self._empty, 1, bounds, counts, seconds):
            for partial, written in self._stage(1, scanned, rows, bounds, counts, seconds):
                counts[1, 2] += written
                yield partial, written

    def _stage(
        self, depth: int, partial: Int64Array, count: int, bounds: Bounds, counts: Int64Array, seconds: list[float]
    ) -> Iterator[tuple[Int64Array, int]]:
        at, cursor = 0, -1
        while at < count:
            began, out = perf_counter(), self._scratch.stages[depth]
            written, at, cursor, rows_read = self._runners[depth](partial, count, at, cursor, bounds, out)
            seconds[1] += perf_counter() - began
            counts[1, 1] += rows_read
            if written:
                yield out, written
            if at < count:
                self._scratch.grow(depth)

    def _visible_new_tuples(self, bounds: Bounds) -> int:
        """Return how many driving tuples the path's alias sees."""
        store = self._driver.store
        first, stop = bounds.first - store.rows.base, bounds.stop - store.rows.base
        flags = store.rows[store.flag_name(self._driver.word)][first:stop]
        return int(np.count_nonzero(flags & self._driver.mask))
