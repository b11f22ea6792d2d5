"""The stages of a probe path at run time: run one at a time, or the leading ones in one compiled call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.join.verify import Member
from dovetail.engine.kernels.extend import LookupCodes, TargetAlias, WindowArrays, gather_codes, probe_hash, probe_scan
from dovetail.engine.kernels.follow import (
    ALIAS,
    BASE,
    CAPACITY,
    CODE,
    CODES,
    CODES_BASE,
    CODES_CAPACITY,
    ENDS,
    FLAGS,
    HEAD_COUNT,
    HEADS,
    LINKS,
    MASK,
    PART,
    PART_END,
    PREFIX_MAX,
    SHIFT,
    SIZE,
    SPAN,
    TARGET,
    TS,
    follow,
)
from dovetail.engine.kernels.index import mix
from dovetail.engine.kernels.times import FOREVER, LONG_AGO
from dovetail.engine.storage.buffers import address_of
from dovetail.plan.needs import column_name, key_id
from dovetail.plan.query_plan import ProbePath, ProbeStage

_NO_CODES = np.zeros(0, np.uint64)
_FIRST_CAPACITY = 1024
_CHUNK = 2048
"""Partial results that the leading stages process at a time."""
_NEW_TUPLE_COST = 1 / 16
"""Assumed cost of reading a new tuple, in probes, when time is divided among stages."""


@dataclass(slots=True)
class Bounds:
    """Rows that driving tuples `first` to `stop` may see: a row per alias, a column for all or each tuple."""

    first: int
    stop: int
    limits: Int64Array
    floors: Int64Array


class Scratch:
    """Buffers for partial results: one matrix per depth, which the paths of a join use in turn."""

    def __init__(self, aliases: int, most_rows: int) -> None:
        self._most_rows = most_rows
        self.stages = [np.empty((min(_FIRST_CAPACITY, most_rows), aliases + 2), np.int64) for _ in range(aliases)]

    @cached_property
    def chunks(self) -> Int64Array:
        """Matrices of one chunk each for the leading stages; the last one holds the empty partial result."""
        aliases = len(self.stages)
        chunks = np.empty((aliases + 1, min(_CHUNK, self._most_rows), aliases + 2), np.int64)
        chunks[-1, 0, aliases:] = LONG_AGO, FOREVER
        return chunks

    @cached_property
    def codes(self) -> UInt64Array:
        """Buffers for the combined codes of multi-part keys, one chunk each."""
        return np.empty(self.chunks.shape[:2], np.uint64)

    def grow(self, depth: int) -> None:
        """Replace the matrix of a depth by a longer one; its contents are lost."""
        rows, width = self.stages[depth].shape
        if rows < self._most_rows:
            self.stages[depth] = np.empty((min(4 * rows, self._most_rows), width), np.int64)


class LeadingStages:
    """The new tuples of a path, and its probes by hash up to the first stage with conditions."""

    def __init__(self, path: ProbePath, members: Mapping[str, Member], scratch: Scratch) -> None:
        self._stages = _leading(path)
        self._members = members
        self._driver = members[path.driver].column
        self.depth = depth = len(self._stages)
        """Number of leading stages; 0 if the path does not begin with its new tuples."""
        self._windows = [members[stage.alias].store.rows for stage in self._stages]
        sources = [members[part.source.alias].store.rows for stage in self._stages for part in stage.key]
        self._read_rows = list({id(rows): rows for rows in (*self._windows, *sources)}.values())
        self._versions: list[int] = []
        self._table = np.zeros((depth, PART_END + 1), np.int64)
        self._parts = np.zeros((len(sources), CODES_CAPACITY + 1), np.int64)
        self._scratch = scratch
        self._start = np.array([[0, -1, 1], *[[0, -1, 0]] * depth], np.int64)
        self._state = self._start.copy()
        self._seconds = 0.0

    def run(self, bounds: Bounds, counts: Int64Array) -> Iterator[tuple[Int64Array, int]]:
        """Run driving tuples through the stages; yield matrices of partial results with their number of rows."""
        self._refresh()
        self._state[:] = self._start
        unfinished, chunks, codes = True, self._scratch.chunks, self._scratch.codes
        while unfinished:
            began = perf_counter()
            written, unfinished = follow(
                self._table, self._parts, self._state, chunks, codes, counts,
                bounds.limits, bounds.floors, bounds.first, bounds.stop, self._driver,
            )  # fmt: skip
            self._seconds += perf_counter() - began
            if written:
                yield chunks[self.depth - 1], written

    def flush_seconds(self, counts: Int64Array, seconds: list[float]) -> None:
        """Add the time since the last call to `seconds`, divided by the probes and rows read of each stage."""
        if self._seconds:
            work = counts[: self.depth, 0] + counts[: self.depth, 1] * np.where(
                np.arange(self.depth), 1.0, _NEW_TUPLE_COST
            )
            for depth, fraction in enumerate((work / max(work.sum(), 1.0)).tolist()):
                seconds[depth] += self._seconds * fraction
            self._seconds = 0.0

    def _refresh(self) -> None:
        """Update the addresses after a window has moved or grown, and the number of live rows."""
        versions = [rows.version for rows in self._read_rows]
        if versions != self._versions:
            end = 0
            for depth, stage in enumerate(self._stages):
                begin = end
                for part in stage.key:
                    member, name = self._members[part.source.alias], column_name(part.source.expression)
                    rows = member.store.rows
                    code = address_of(rows[member.store.codes[(name,)]])
                    columns = {ALIAS: member.column, CODES: code, CODES_BASE: rows.base, CODES_CAPACITY: rows.capacity}
                    self._parts[end, list(columns)] = list(columns.values())
                    end += 1
                columns = {**_columns(self._members[stage.alias], stage), PART: begin, PART_END: end}
                self._table[depth, list(columns)] = list(columns.values())
            self._versions = versions
        self._table[:, SIZE] = [rows.head - rows.tail for rows in self._windows]


def _leading(path: ProbePath) -> list[ProbeStage]:
    stages: list[ProbeStage] = []
    for stage in path.stages:
        if stage.access != ("hash" if stages else "new"):
            break
        stages.append(stage)
        if stage.conditions:
            break
    return stages


def _columns(member: Member, stage: ProbeStage) -> dict[int, int]:
    """Return the columns of the stage table of `kernels.follow` that a window determines."""
    rows, key = member.store.rows, key_id(stage)
    columns = {TARGET: member.column, SPAN: member.span, MASK: int(member.mask.view(np.int64))}
    columns |= {BASE: rows.base, CAPACITY: rows.capacity}
    arrays = {TS: rows["ts"], ENDS: rows[member.ends], FLAGS: rows[member.store.flag_name(member.word)]}
    arrays[PREFIX_MAX] = rows["prefix_max"]
    if stage.access == "hash":
        chain = member.store.chain(member.store.indexes[key])
        columns |= {HEAD_COUNT: len(chain.heads), SHIFT: int(chain.shift)}
        arrays |= {CODE: rows[member.store.codes[key]], HEADS: chain.heads, LINKS: chain.links}
    return columns | {column: address_of(array) for column, array in arrays.items()}


class StageRunner:
    """One stage at run time: extends partial results by rows of its window."""

    def __init__(self, path: ProbePath, depth: int, members: Mapping[str, Member], *, bounded: bool = False) -> None:
        """Run stage `depth` of `path`; `bounded`: within the bounds of the driving tuples, wherever these are."""
        self.stage = stage = path.stages[depth]
        member = members[stage.alias]
        self._store, self._rows, self._key = member.store, member.store.rows, key_id(stage)
        self._ends, self._flags = member.ends, member.store.flag_name(member.word)
        self._target = TargetAlias(member.column, member.span, member.mask)
        self._driver = members[path.driver].column
        joined = path.stages[:depth] if stage.access == "new" else ()
        self._joined = np.array([members[before.alias].column for before in joined], np.int64)
        self._after_driver = bounded or path.driver in path.order[:depth]
        self._parts = [(members[part.source.alias], column_name(part.source.expression)) for part in stage.key]
        self._source = self._parts[0][0].store.rows if len(self._parts) == 1 else None
        self._codes = np.empty(0, np.uint64)
        self._lookup = (*LookupCodes(_NO_CODES, -1, 0),)
        self._versions = (-1, -1)

    @property
    def window_size(self) -> int:
        return len(self._rows)

    def _before_driver(self) -> tuple[Int64Array, Int64Array]:
        """Return limits and floors of a stage before the driver's: all rows of the window.

        Only naive and general nested loops have such stages. The stage of the new tuples applies the bounds of the rows joined before.
        """
        shape = (self._target.column + 1, 1)
        return np.full(shape, self._rows.head), np.full(shape, self._rows.tail)

    def _refresh(self) -> None:
        """Update the arrays after a window has moved or grown. Plain tuples unpack faster than named ones."""
        rows, arrays = self._rows, self._rows.arrays
        if len(self._parts) == 1:
            member, name = self._parts[0]
            source = member.store.rows
            self._lookup = (*LookupCodes(source[member.store.codes[(name,)]], member.column, source.base),)
        code = arrays[self._store.codes[self._key]] if self._key else _NO_CODES
        window = WindowArrays(rows.base, code, arrays["ts"], arrays[self._ends], arrays[self._flags])
        self._window = (*window, *self._target)
        if self.stage.access == "hash":
            chain = self._store.chain(self._store.indexes[self._key])
            self._chained = (*window, *self._target, *chain, arrays["prefix_max"])
        self._versions = (rows.version, -1 if self._source is None else self._source.version)

    def _combined_codes(self, partial: Int64Array, count: int) -> UInt64Array:
        """Return the combined code of a multi-part key for each partial result."""
        if len(self._codes) < count:
            self._codes = np.empty(max(count, 2 * len(self._codes)), np.uint64)
        combined, part_codes = self._codes[:count], np.empty(count, np.uint64)
        for part, (member, name) in enumerate(self._parts):
            code, base = member.store.rows[member.store.codes[(name,)]], member.store.rows.base
            gather_codes(partial, count, member.column, code, base, part_codes if part else combined)
            if part:
                mix(combined, part_codes, combined)
        return combined

    def __call__(
        self, partial: Int64Array, count: int, at: int, cursor: int, bounds: Bounds, out: Int64Array
    ) -> tuple[int, int, int, int]:
        """Fill `out` from partial result `at`, row `cursor` on; return what the kernels return."""
        versions = self._versions
        if versions[0] != self._rows.version or (self._source is not None and versions[1] != self._source.version):
            self._refresh()
        lookup = (self._combined_codes(partial, count), -1, 0) if len(self._parts) > 1 else self._lookup
        new = self.stage.access == "new"
        limits, floors = (bounds.limits, bounds.floors) if new or self._after_driver else self._before_driver()
        if self.stage.access == "hash":
            return probe_hash(
                partial, count, at, cursor, *self._chained, *lookup, limits, floors, bounds.first, self._driver, out
            )
        return probe_scan(
            partial, count, at, cursor, *self._window, *lookup, limits, floors, bounds.first, self._driver,
            bounds.stop if new else -1, self._joined, out,
        )  # fmt: skip
