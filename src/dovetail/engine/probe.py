"""One probe path over a batch: stage by stage, in chunks that bound memory, to row numbers.

A chunk of partial results goes through all later stages before the next one is made, so at most `stage_rows` of them exist at each
depth, whatever the size of the result. Following each tuple through all stages in one kernel was tried and is slower: its state
lies in memory where a stage keeps it in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.kernels.extend import Added, Wanted, WindowArrays, gather_codes, probe_hash, probe_scan
from dovetail.engine.kernels.index import mix
from dovetail.engine.kernels.times import FOREVER, LONG_AGO
from dovetail.engine.kernels.verify import keep_marked
from dovetail.engine.matches import Matches, Member, Verifier
from dovetail.plan.needs import key_id, stored_name
from dovetail.plan.nodes import ProbePath, ProbeStage
from dovetail.query.expressions import Column, Expression

_NO_CODES = np.zeros(0, np.uint64)
_FIRST_CAPACITY = 1024
GIVEN_ROWS = 1 << 20
"""Results of a join that are held at most, but for those of one stage more, where somebody takes them as they are found."""


@dataclass(slots=True)
class Bounds:
    """Which rows the driving tuples `first` to `stop` may see: one row per alias, one column for all of them or one for each."""

    first: int
    stop: int
    limits: Int64Array
    floors: Int64Array


class SharedCounts(Protocol):
    """Counts what a path does in a tree of probes."""

    @property
    def produced(self) -> tuple[int, int]:
        """New tuples, and all that was made of them, since the last call of `settle`."""

    def note(self) -> None:
        """Remember what has been counted up to now."""

    def settle(self, counts: list[list[int]], seconds: list[float], noted: list[list[int]]) -> None:
        """Add what was counted since the last call, and to `noted` what was when it was to be remembered."""


class Scratch:
    """Partial results between stages: a matrix for each depth, which the paths of a join use one after another."""

    def __init__(self, aliases: int, most_rows: int) -> None:
        self._most_rows = most_rows
        self.stages = [np.empty((min(_FIRST_CAPACITY, most_rows), aliases + 2), np.int64) for _ in range(aliases)]

    def grow(self, depth: int) -> None:
        """Make a matrix longer; what it holds is lost."""
        rows, width = self.stages[depth].shape
        if rows < self._most_rows:
            self.stages[depth] = np.empty((min(4 * rows, self._most_rows), width), np.int64)


class PathRunner:
    """Carries out one `ProbePath`."""

    def __init__(self, path: ProbePath, members: Mapping[str, Member], scratch: Scratch) -> None:
        self.path = path
        self._counts = [[0, 0, 0, 0] for _ in path.stages]
        self._seconds = [0.0] * len(path.stages)
        self.shared: SharedCounts | None = None
        """What is counted where the path begins in a tree of probes."""
        self._untimed = 0
        self.produced_lately: float | None = None
        """Partial and final results per new tuple, between the last two looks."""
        self._noted = [[0, 0, 0, 0] for _ in path.stages]
        self._members = members
        self._scratch = scratch
        self._searches = [_Search(path, depth, members) for depth in range(len(path.stages))]
        self._verify = Verifier(path, members)
        self._begin = 0
        """The first match that has not been verified."""
        self._nothing = np.zeros((1, len(members) + 2), np.int64)
        self._nothing[0, -2:] = LONG_AGO, FOREVER

    def run(self, bounds: Bounds, matches: Matches) -> None:
        """Join the driving tuples with all windows and add what matches."""
        self._begin = len(matches)
        self._stage(0, self._nothing, 1, bounds, matches)
        self._verify(matches, self._begin)

    def go_on_from(self, depth: int, partial: Int64Array, bounds: Bounds, matches: Matches) -> None:
        """Join partial results that have been through the stages before `depth`, but for the last one's conditions."""
        count, last = len(partial), self.path.stages[depth - 1]
        if last.conditions:
            began = perf_counter()
            count = self._satisfying(last, partial, count)
            self._seconds[depth - 1] += perf_counter() - began
            self._counts[depth - 1][2] += count - len(partial)
        if count:
            self._begin = len(matches)
            self._stage(depth, partial, count, bounds, matches)
            self._verify(matches, self._begin)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count nothing of what is done meanwhile."""
        counts = [list(counted) for counted in self._counts]
        yield
        self._counts = counts

    @property
    def verifies(self) -> bool:
        """Whether equal codes do not prove that keys are equal."""
        return self._verify.is_needed

    @property
    def counts(self) -> list[list[int]]:
        """Per stage so far: partial results that came in, rows looked at, matches, rows that the window held for each."""
        self._settle()
        return self._counts

    @property
    def seconds(self) -> list[float]:
        """Per stage, the stages behind it not included, since this runner was made."""
        self._settle()
        return self._seconds

    def share(self, counts: SharedCounts | None) -> None:
        """Begin in another tree of probes from here on, or in none."""
        self._settle()
        self.shared = counts

    def _settle(self) -> None:
        if self.shared is not None:
            self.shared.settle(self._counts, self._seconds, self._noted)

    @property
    def timed(self) -> int:
        """New tuples that `seconds` are about."""
        return self.counts[0][2] - self._untimed

    @property
    def totals(self) -> list[int]:
        """Probes, rows looked at and matches of all stages but the new tuples' own."""
        met = [counts for counts, stage in zip(self.counts, self.path.stages, strict=True) if stage.access != "new"]
        return [sum(column) for column in zip(*met, strict=True)][:3]

    def since_last(self) -> list[list[int]]:
        """What was counted since the last call."""
        new = [
            [n - o for n, o in zip(now, old, strict=True)] for now, old in zip(self.counts, self._noted, strict=True)
        ]
        self._noted = [list(counted) for counted in self.counts]
        if new[0][2]:
            self.produced_lately = sum(counted[2] for counted in new[1:]) / new[0][2]
        return new

    def forget(self) -> None:
        """Leave out of `since_last` what was counted up to now."""
        self._noted = [counted[:] for counted in self._counts]
        if self.shared is not None:
            self.shared.note()

    @property
    def produced(self) -> tuple[int, int]:
        """New tuples so far, and all partial and final results of them, these included."""
        new, whole = self._counts[0][2], sum([counted[2] for counted in self._counts])
        if self.shared is None:
            return new, whole
        more = self.shared.produced
        return new + more[0], whole + more[1]

    def to_json(self) -> dict[str, Any]:
        """Counts, not times: equal sessions have equal snapshots."""
        access = [stage.access for stage in self.path.stages]
        return {"order": self.path.order, "access": access, "counts": self.counts, "noted": self._noted}

    def go_on(self, other: PathRunner) -> None:
        """Go on counting, and timing, where another runner of the same path is."""
        self.restore(other.to_json())
        self._seconds, self._untimed = list(other.seconds), other._untimed

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Go on counting where another runner of the same path was."""
        if tuple(stored["order"]) == self.path.order:
            self._settle()
            self._counts, self._noted = ([list(c) for c in stored[name]] for name in ("counts", "noted"))
            self._untimed = self._counts[0][2]

    def _stage(self, depth: int, partial: Int64Array, count: int, bounds: Bounds, matches: Matches) -> None:
        if depth == len(self._searches):
            matches.add(partial, count)
            if matches.give is not None and len(matches) >= GIVEN_ROWS:
                self._verify(matches, self._begin)
                matches.hand_on()
                self._begin = 0
            return
        search = self._searches[depth]
        counts = self._counts[depth]
        counts[0] += count
        counts[3] += count * search.rows_held
        at, cursor = 0, -1
        while at < count:
            began = perf_counter()
            out = self._scratch.stages[depth]
            written, at, cursor, looked = search(partial, count, at, cursor, bounds, out)
            if search.stage.conditions:
                written = self._satisfying(search.stage, out, written)
            self._seconds[depth] += perf_counter() - began
            counts[1] += looked
            counts[2] += written
            if written:
                self._stage(depth + 1, out, written, bounds, matches)
            if at < count:
                self._scratch.grow(depth)

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
    """One stage at run time: its window, and where the codes to look for come from."""

    def __init__(self, path: ProbePath, depth: int, members: Mapping[str, Member]) -> None:
        self.stage = stage = path.stages[depth]
        member = members[stage.alias]
        self._store, self._rows, self._key = member.store, member.store.rows, key_id(stage)
        self._ends, self._flags = member.ends, member.store.flag_name(member.word)
        self._added = Added(member.place, member.span, member.bit)
        self._driver = members[path.driver].place
        joined = path.stages[:depth] if stage.access == "new" else ()
        self._joined = np.array([members[before.alias].place for before in joined], np.int64)
        self._started = path.driver in path.order[:depth]
        self._parts = [(members[part.source.alias], stored_name(part.source.expression)) for part in stage.key]
        self._source = self._parts[0][0].store.rows if len(self._parts) == 1 else None
        self._codes = np.empty(0, np.uint64)
        self._wanted = (*Wanted(_NO_CODES, -1, 0),)
        self._versions = (-1, -1)

    @property
    def rows_held(self) -> int:
        return len(self._rows)

    def _before_driver(self) -> tuple[Int64Array, Int64Array]:
        """Bounds while the driving tuple is not known yet: all rows there are."""
        shape = (self._added.column + 1, 1)
        return np.full(shape, self._rows.head), np.full(shape, self._rows.tail)

    def _refresh(self) -> None:
        """Look up arrays again after a window has moved or grown. Plain tuples of them are spread faster than named ones."""
        rows, arrays = self._rows, self._rows.arrays
        self._versions = (rows.version, -1 if self._source is None else self._source.version)
        if len(self._parts) == 1:
            member, name = self._parts[0]
            source = member.store.rows
            self._wanted = (*Wanted(source[member.store.codes[(name,)]], member.place, source.base),)
        code = arrays[self._store.codes[self._key]] if self._key else _NO_CODES
        window = WindowArrays(rows.base, code, arrays["ts"], arrays[self._ends], arrays[self._flags])
        self._window = (*window, *self._added)
        if self.stage.access == "hash":
            chain = self._store.chain(self._store.indexes[self._key])
            self._chained = (*window, *self._added, *chain, arrays["prefix_max"])

    def _mixed_codes(self, partial: Int64Array, count: int) -> UInt64Array:
        """For a key of several parts: the code to look for, for each partial result."""
        if len(self._codes) < count:
            self._codes = np.empty(max(count, 2 * len(self._codes)), np.uint64)
        wanted, more = self._codes[:count], np.empty(count, np.uint64)
        for number, (member, name) in enumerate(self._parts):
            code, base = member.store.rows[member.store.codes[(name,)]], member.store.rows.base
            gather_codes(partial, count, member.place, code, base, wanted if number == 0 else more)
            if number:
                mix(wanted, more, wanted)
        return wanted

    def __call__(
        self, partial: Int64Array, count: int, at: int, cursor: int, bounds: Bounds, out: Int64Array
    ) -> tuple[int, int, int, int]:
        """Fill `out`, from partial result `at`, row `cursor`, on; return as the kernels do."""
        versions = self._versions
        if versions[0] != self._rows.version or (self._source is not None and versions[1] != self._source.version):
            self._refresh()
        wanted = (self._mixed_codes(partial, count), -1, 0) if len(self._parts) > 1 else self._wanted
        new = self.stage.access == "new"
        limits, floors = (bounds.limits, bounds.floors) if new or self._started else self._before_driver()
        if self.stage.access == "hash":
            return probe_hash(
                partial, count, at, cursor, *self._chained, *wanted, limits, floors, bounds.first, self._driver, out
            )
        return probe_scan(
            partial, count, at, cursor, *self._window, *wanted, limits, floors, bounds.first, self._driver,
            bounds.stop if new else -1, self._joined, out,
        )  # fmt: skip
