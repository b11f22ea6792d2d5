"""One probe path over a batch: stage by stage, in chunks that bound memory, to matrices of row numbers.

A chunk of partial results goes through all later stages before the next one is made, so at most `stage_rows` partial results exist
at each depth, whatever the size of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.columns import BytesColumn
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.kernels.index import mix
from dovetail.engine.kernels.probe import (
    gather_codes,
    keep_equal_codes,
    keep_marked,
    probe_hash,
    probe_scan,
    scan_new,
)
from dovetail.engine.kernels.rows import FOREVER
from dovetail.engine.kernels.values import mark_equal_bytes
from dovetail.engine.keys import is_exact
from dovetail.engine.needs import key_id, must_verify, stored_name
from dovetail.engine.window_store import LONG_AGO, WindowStore
from dovetail.plan.nodes import KeyPart, ProbePath, ProbeStage
from dovetail.query.expressions import Column, Expression
from dovetail.query.model import CountWindow, Window

_NO_CODES = np.zeros(0, np.uint64)
_FIRST_CAPACITY = 1024


@dataclass(frozen=True, slots=True)
class Member:
    """One alias of a query at run time."""

    place: int
    """Its column in the matrices of row numbers."""
    store: WindowStore
    window: Window
    word: int
    bit: np.uint64

    @property
    def span(self) -> int:
        """Microseconds of a time window; -1 for a count window, whose ends are stored."""
        return -1 if isinstance(self.window, CountWindow) else self.window.micros

    @property
    def ends(self) -> str:
        return self.store.ledgers[self.window].ends if isinstance(self.window, CountWindow) else "ts"


@dataclass(slots=True)
class StageCounts:
    """What one stage has done so far."""

    probes: int = 0
    looked: int = 0
    matches: int = 0


@dataclass(slots=True)
class Bounds:
    """Which rows the driving tuples `first` to `stop` may see: one row per alias, one column for all of them or one for each."""

    first: int
    stop: int
    limits: Int64Array
    floors: Int64Array


@dataclass(slots=True)
class _Depth:
    """Scratch of one stage."""

    rows: Int64Array
    codes: UInt64Array = field(default_factory=lambda: np.empty(0, np.uint64))

    def grow(self, most: int) -> None:
        if len(self.rows) < most:
            self.rows = np.empty((min(4 * len(self.rows), most), self.rows.shape[1]), np.int64)


class PathRunner:
    """Carries out one `ProbePath`."""

    def __init__(
        self,
        path: ProbePath,
        members: Mapping[str, Member],
        final_checks: tuple[Expression, ...],
        stage_rows: int,
    ) -> None:
        self.path = path
        self.counts = [StageCounts() for _ in path.stages]
        self._members = members
        self._final_checks = final_checks
        self._stage_rows = stage_rows
        width = len(members) + 2
        self._depths = [_Depth(np.empty((min(_FIRST_CAPACITY, stage_rows), width), np.int64)) for _ in path.stages]
        self._verify = [(stage, part) for stage in path.stages for part in must_verify(stage)]

    def run(self, bounds: Bounds, emit: Callable[[Int64Array], None]) -> None:
        """Join the driving tuples with all windows and `emit` matrices of row numbers, valid during the call only."""
        nothing = np.zeros((1, len(self._members) + 2), np.int64)
        nothing[0, -2], nothing[0, -1] = LONG_AGO, FOREVER
        self._stage(0, nothing, 1, bounds, emit)

    def _stage(self, depth: int, partial: Int64Array, count: int, bounds: Bounds, emit: Callable[[Int64Array], None]) -> None:
        if depth == len(self.path.stages):
            kept = self._verified(partial, count)
            if kept:
                emit(partial[:kept])
            return
        stage, counts, scratch = self.path.stages[depth], self.counts[depth], self._depths[depth]
        counts.probes += count
        search = self._search(depth, partial, count, bounds)
        at, cursor = 0, -1
        while at < count:
            written, at, cursor, looked = search(at, cursor, scratch.rows)
            counts.looked += looked
            written = self._satisfying(stage, scratch.rows, written)
            counts.matches += written
            if written:
                self._stage(depth + 1, scratch.rows, written, bounds, emit)
            if at < count:
                scratch.grow(self._stage_rows)

    def _search(
        self, depth: int, partial: Int64Array, count: int, bounds: Bounds
    ) -> Callable[[int, int, Int64Array], tuple[int, int, int, int]]:
        """The kernel of a stage with everything but the place to go on and the output filled in."""
        stage = self.path.stages[depth]
        member = self._members[stage.alias]
        rows = member.store.rows
        wanted = self._wanted_codes(depth, partial, count) if stage.key else _NO_CODES
        code = rows[member.store.codes[key_id(stage)]] if stage.key else _NO_CODES
        ts, last, flags, base = rows["ts"], rows[member.ends], rows[member.store.flag_name(member.word)], rows.base
        driver = self._members[self.path.driver].place
        if stage.access == "new":
            joined = np.array([self._members[s.alias].place for s in self.path.stages[:depth]], np.int64)
            return lambda at, cursor, out: scan_new(
                partial, count, at, cursor, wanted, joined, bounds.limits, bounds.floors, bounds.first, bounds.stop,
                member.place, member.span, member.bit, base, code, ts, last, flags, out,
            )  # fmt: skip
        started = any(s.access == "new" for s in self.path.stages[:depth])
        limit = bounds.limits[member.place] if started else np.array([rows.head])
        floor = bounds.floors[member.place] if started else np.array([rows.tail])
        if stage.access == "scan":
            return lambda at, cursor, out: probe_scan(
                partial, count, at, cursor, wanted, limit, floor, driver, bounds.first,
                member.place, member.span, member.bit, base, code, ts, last, flags, out,
            )  # fmt: skip
        index = member.store.indexes[key_id(stage)]
        following, prefix_max = rows[index.links], rows["prefix_max"]
        return lambda at, cursor, out: probe_hash(
            partial, count, at, cursor, wanted, limit, floor, driver, bounds.first,
            member.place, member.span, member.bit, base, index.shift, index.head, following, code, ts, prefix_max, last, flags, out,
        )  # fmt: skip

    def _wanted_codes(self, depth: int, partial: Int64Array, count: int) -> UInt64Array:
        scratch = self._depths[depth]
        if len(scratch.codes) < count:
            scratch.codes = np.empty(max(count, 2 * len(scratch.codes)), np.uint64)
        wanted = scratch.codes[:count]
        for number, part in enumerate(self.path.stages[depth].key):
            source = self._members[part.source.alias]
            code = source.store.rows[source.store.codes[(stored_name(part.source.expression),)]]
            if number == 0:
                gather_codes(partial, count, source.place, code, source.store.rows.base, wanted)
            else:
                more = np.empty(count, np.uint64)
                gather_codes(partial, count, source.place, code, source.store.rows.base, more)
                mix(wanted, more, wanted)
        return wanted

    def _satisfying(self, stage: ProbeStage, partial: Int64Array, count: int) -> int:
        for condition in stage.conditions:
            count = self._keep_true(condition.expression, partial, count)
        return count

    def _keep_true(self, expression: Expression, partial: Int64Array, count: int) -> int:
        if count == 0:
            return 0

        def resolve(column: Column) -> pa.Array:
            member = self._members[column.alias]
            return member.store.take(f".{column.name}", partial[:count, member.place])

        true = is_true(evaluate(expression, resolve, count))
        return count if true.all() else keep_marked(partial, count, true.astype(np.int64))

    def _verified(self, partial: Int64Array, count: int) -> int:
        """Compare the values behind hashed codes, then whatever only values can decide."""
        for stage, part in self._verify:
            count = self._keep_equal(stage, part, partial, count)
        for expression in self._final_checks:
            count = self._keep_true(expression, partial, count)
        return count

    def _keep_equal(self, stage: ProbeStage, part: KeyPart, partial: Int64Array, count: int) -> int:
        left, right = self._members[part.source.alias], self._members[stage.alias]
        left_name, right_name = stored_name(part.source.expression), stored_name(part.target)
        if is_exact(part.target.type):
            left_code = left.store.rows[left.store.codes[(left_name,)]]
            right_code = right.store.rows[right.store.codes[(right_name,)]]
            bases = left.store.rows.base, right.store.rows.base
            return keep_equal_codes(partial, count, left.place, left_code, bases[0], right.place, right_code, bases[1])
        left_column, right_column = left.store.columns[left_name], right.store.columns[right_name]
        if isinstance(left_column, BytesColumn) and isinstance(right_column, BytesColumn):
            marks = np.empty(count, np.int64)
            mark_equal_bytes(
                partial, count,
                left.place, left.store.rows.base, left_column.starts, left_column.lengths, left_column.heap_base, left_column.heap,
                right.place, right.store.rows.base, right_column.starts, right_column.lengths, right_column.heap_base,
                right_column.heap, marks,
            )  # fmt: skip
            return keep_marked(partial, count, marks)
        left_values = left.store.take(left_name, partial[:count, left.place])
        right_values = right.store.take(right_name, partial[:count, right.place])
        return keep_marked(partial, count, is_true(pa.compute.equal(left_values, right_values)).astype(np.int64))
