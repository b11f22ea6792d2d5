"""One probe path over a batch: stage by stage, in chunks that bound memory, to matrices of row numbers.

A chunk of partial results goes through all later stages before the next one is made, so at most `stage_rows` partial results exist
at each depth, whatever the size of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    transpose,
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


class Matches:
    """Row numbers of the results of one query in one batch: a row per alias, a column per result."""

    def __init__(self, aliases: int) -> None:
        self._rows = np.empty((aliases, _FIRST_CAPACITY), np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, partial: Int64Array, count: int) -> None:
        end = self._count + count
        if end > self._rows.shape[1]:
            longer = np.empty((len(self._rows), max(end, 2 * self._rows.shape[1])), np.int64)
            longer[:, : self._count] = self._rows[:, : self._count]
            self._rows = longer
        transpose(partial, count, self._rows, self._count)
        self._count = end

    def of(self, place: int) -> Int64Array:
        """The row numbers of one alias."""
        return self._rows[place, : self._count]


class _Search:
    """One stage at run time: its window, where the codes to look for come from, and scratch for its output."""

    def __init__(self, path: ProbePath, depth: int, members: Mapping[str, Member], stage_rows: int) -> None:
        self.stage = stage = path.stages[depth]
        self.counts = StageCounts()
        member = members[stage.alias]
        self._rows, self._place, self._span, self._bit = member.store.rows, member.place, member.span, member.bit
        self._ends, self._flags = member.ends, member.store.flag_name(member.word)
        self._store, self._key = member.store, key_id(stage)
        self._code = member.store.codes[self._key] if stage.key else ""
        self._driver = members[path.driver].place
        self._joined = np.array([members[before.alias].place for before in path.stages[:depth]], np.int64)
        self._started = path.driver in path.order[:depth]
        self._parts = [(members[part.source.alias], stored_name(part.source.expression)) for part in stage.key]
        self._codes = np.empty(0, np.uint64)
        self._most_rows = stage_rows
        self.out = np.empty((min(_FIRST_CAPACITY, stage_rows), len(members) + 2), np.int64)

    def grow(self) -> None:
        """Make the output longer for the next call."""
        if len(self.out) < self._most_rows:
            self.out = np.empty((min(4 * len(self.out), self._most_rows), self.out.shape[1]), np.int64)

    def _before_driver(self) -> tuple[Int64Array, Int64Array]:
        """Bounds while the driving tuple is not known yet: all rows there are."""
        shape = (self._place + 1, 1)
        return np.full(shape, self._rows.head), np.full(shape, self._rows.tail)

    def _wanted(self, partial: Int64Array, count: int) -> tuple[UInt64Array, int, int]:
        """Codes to look for, and the alias whose rows they are indexed by (-1: one for each partial result)."""
        if not self._parts:
            return _NO_CODES, -1, 0
        if len(self._parts) == 1:
            member, name = self._parts[0]
            return member.store.rows.arrays[member.store.codes[(name,)]], member.place, member.store.rows.base
        if len(self._codes) < count:
            self._codes = np.empty(max(count, 2 * len(self._codes)), np.uint64)
        wanted, more = self._codes[:count], np.empty(count, np.uint64)
        for number, (member, name) in enumerate(self._parts):
            code, base = member.store.rows[member.store.codes[(name,)]], member.store.rows.base
            gather_codes(partial, count, member.place, code, base, wanted if number == 0 else more)
            if number:
                mix(wanted, more, wanted)
        return wanted, -1, 0

    def __call__(
        self, partial: Int64Array, count: int, at: int, cursor: int, bounds: Bounds
    ) -> tuple[int, int, int, int]:
        """Fill `out` from partial result `at`, row `cursor`, on; return as the kernels do."""
        arrays, base = self._rows.arrays, self._rows.base
        wanted, source, source_base = self._wanted(partial, count)
        code = arrays[self._code] if self._code else _NO_CODES
        ts, last, flags = arrays["ts"], arrays[self._ends], arrays[self._flags]
        if self.stage.access == "new":
            return scan_new(
                partial, count, at, cursor, wanted, source, source_base, self._joined, bounds.limits, bounds.floors,
                bounds.first, bounds.stop, self._place, self._span, self._bit, base, code, ts, last, flags, self.out,
            )  # fmt: skip
        limits, floors = (bounds.limits, bounds.floors) if self._started else self._before_driver()
        if self.stage.access == "scan":
            return probe_scan(
                partial, count, at, cursor, wanted, source, source_base, limits, floors, self._driver, bounds.first,
                self._place, self._span, self._bit, base, code, ts, last, flags, self.out,
            )  # fmt: skip
        index = self._store.indexes[self._key]
        return probe_hash(
            partial, count, at, cursor, wanted, source, source_base, limits, floors, self._driver, bounds.first,
            self._place, self._span, self._bit, base, index.shift, index.head, arrays[index.links], code,
            ts, arrays["prefix_max"], last, flags, self.out,
        )  # fmt: skip


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
        self._members = members
        self._final_checks = final_checks
        self._searches = [_Search(path, depth, members, stage_rows) for depth in range(len(path.stages))]
        self._verify = [(stage, part) for stage in path.stages for part in must_verify(stage)]
        self._nothing = np.zeros((1, len(members) + 2), np.int64)
        self._nothing[0, -2:] = LONG_AGO, FOREVER

    @property
    def counts(self) -> list[StageCounts]:
        return [search.counts for search in self._searches]

    def run(self, bounds: Bounds, matches: Matches) -> None:
        """Join the driving tuples with all windows and add what matches."""
        self._stage(0, self._nothing, 1, bounds, matches)

    def _stage(self, depth: int, partial: Int64Array, count: int, bounds: Bounds, matches: Matches) -> None:
        if depth == len(self._searches):
            matches.add(partial, self._verified(partial, count))
            return
        search = self._searches[depth]
        counts = search.counts
        counts.probes += count
        at, cursor = 0, -1
        while at < count:
            written, at, cursor, looked = search(partial, count, at, cursor, bounds)
            counts.looked += looked
            if search.stage.conditions:
                written = self._satisfying(search.stage, search.out, written)
            counts.matches += written
            if written:
                self._stage(depth + 1, search.out, written, bounds, matches)
            if at < count:
                search.grow()

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
