"""One probe path over a batch: stage by stage, in chunks that bound memory, to row numbers.

A chunk of partial results goes through all later stages before the next one is made, so at most `stage_rows` of them exist at each
depth, whatever the size of the result. Following each tuple through all stages in one kernel was tried and is slower: its state
lies in memory where a stage keeps it in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.kernels.index import mix
from dovetail.engine.kernels.probe import gather_codes, keep_marked, probe_hash, probe_scan, scan_new
from dovetail.engine.kernels.rows import FOREVER
from dovetail.engine.matches import Matches, Member, Verifier
from dovetail.engine.needs import key_id, stored_name
from dovetail.engine.window_store import LONG_AGO
from dovetail.plan.nodes import ProbePath, ProbeStage
from dovetail.query.expressions import Column, Expression

_NO_CODES = np.zeros(0, np.uint64)
_FIRST_CAPACITY = 1024


@dataclass(slots=True)
class Bounds:
    """Which rows the driving tuples `first` to `stop` may see: one row per alias, one column for all of them or one for each."""

    first: int
    stop: int
    limits: Int64Array
    floors: Int64Array


class PathRunner:
    """Carries out one `ProbePath`."""

    def __init__(self, path: ProbePath, members: Mapping[str, Member], stage_rows: int) -> None:
        self.path = path
        self.counts = [[0, 0, 0] for _ in path.stages]
        """Per stage so far: partial results that came in, rows looked at, matches."""
        self._members = members
        self._searches = [_Search(path, depth, members, stage_rows) for depth in range(len(path.stages))]
        self._verify = Verifier(path, members)
        self._nothing = np.zeros((1, len(members) + 2), np.int64)
        self._nothing[0, -2:] = LONG_AGO, FOREVER

    def run(self, bounds: Bounds, matches: Matches) -> None:
        """Join the driving tuples with all windows and add what matches."""
        begin = len(matches)
        self._stage(0, self._nothing, 1, bounds, matches)
        self._verify(matches, begin)

    def _stage(self, depth: int, partial: Int64Array, count: int, bounds: Bounds, matches: Matches) -> None:
        if depth == len(self._searches):
            matches.add(partial, count)
            return
        search = self._searches[depth]
        counts = self.counts[depth]
        counts[0] += count
        at, cursor = 0, -1
        while at < count:
            written, at, cursor, looked = search(partial, count, at, cursor, bounds)
            if search.stage.conditions:
                written = self._satisfying(search.stage, search.out, written)
            counts[1] += looked
            counts[2] += written
            if written:
                self._stage(depth + 1, search.out, written, bounds, matches)
            if at < count:
                search.grow()

    def _satisfying(self, stage: ProbeStage, partial: Int64Array, count: int) -> int:
        for condition in stage.conditions:
            if count:
                count = self._keep_true(condition.expression, partial, count)
        return count

    def _keep_true(self, expression: Expression, partial: Int64Array, count: int) -> int:
        def resolve(column: Column) -> pa.Array:
            member = self._members[column.alias]
            return member.store.take(f".{column.name}", partial[:count, member.place])

        true = is_true(evaluate(expression, resolve, count))
        return count if true.all() else keep_marked(partial, count, true.astype(np.int64))


class _Search:
    """One stage at run time: its window, where the codes to look for come from, and scratch for its output."""

    def __init__(self, path: ProbePath, depth: int, members: Mapping[str, Member], stage_rows: int) -> None:
        self.stage = stage = path.stages[depth]
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
