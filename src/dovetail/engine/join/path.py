"""One probe path over a batch: stage by stage, in chunks that bound memory, to row numbers.

A chunk of partial results goes through all later stages before the next one is made, so at most `stage_rows` of them exist at each
depth, whatever the size of the result. Following each tuple through all stages in one kernel was tried and is slower: its state
lies in memory where a stage keeps it in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.join.stages import Bounds, LeadingStages, Scratch, Search
from dovetail.engine.join.verify import Matches, Member, Verifier
from dovetail.engine.kernels.times import FOREVER, LONG_AGO
from dovetail.engine.kernels.verify import keep_marked
from dovetail.plan.query_plan import ProbePath, ProbeStage
from dovetail.query.expressions import Column, Expression

GIVEN_ROWS = 1 << 20
"""Results of a join that are held at most, but for those of one stage more, where somebody takes them as they are found."""


class SharedCounts(Protocol):
    """Counts what a path does in a tree of probes."""

    part: float
    """How much of what it makes it has to pay for; those who share the rest pay for that."""

    @property
    def produced(self) -> tuple[int, int]:
        """New tuples, and all that was made of them, since the last call of `settle`."""

    def note(self) -> None:
        """Remember what has been counted up to now."""

    def settle(self, counts: Int64Array, seconds: list[float], noted: Int64Array) -> None:
        """Add what was counted since the last call, and to `noted` what was when it was to be remembered."""


class PathRunner:
    """Carries out one `ProbePath`."""

    def __init__(self, path: ProbePath, members: Mapping[str, Member], scratch: Scratch) -> None:
        self.path = path
        self._counts = np.zeros((len(path.stages), 4), np.int64)
        self._seconds = [0.0] * len(path.stages)
        self.shared: SharedCounts | None = None
        """What is counted where the path begins in a tree of probes."""
        self._untimed = 0
        self.produced_lately: float | None = None
        """Partial and final results per new tuple, between the last two looks."""
        self._noted = self._counts.copy()
        self._members = members
        self._scratch = scratch
        self._searches = [Search(path, depth, members) for depth in range(len(path.stages))]
        self._leading = LeadingStages(path, members, scratch)
        self._verify = Verifier(path, members)
        self._begin = 0
        """The first match that has not been verified."""
        self._nothing = np.zeros((1, len(members) + 2), np.int64)
        self._nothing[0, -2:] = LONG_AGO, FOREVER

    def run(self, bounds: Bounds, matches: Matches) -> None:
        """Join the driving tuples with all windows and add what matches."""
        self._begin = len(matches)
        if self._leading.depth:
            for partial, count in self._leading.run(bounds, self._counts):
                self._go_on(self._leading.depth, partial, count, bounds, matches)
        else:
            self._stage(0, self._nothing, 1, bounds, matches)
        self._verify(matches, self._begin)

    def go_on_from(self, depth: int, partial: Int64Array, bounds: Bounds, matches: Matches) -> None:
        """Join partial results that have been through the stages before `depth`, but for the last one's conditions."""
        self._begin = len(matches)
        self._go_on(depth, partial, len(partial), bounds, matches)
        self._verify(matches, self._begin)

    def _go_on(self, depth: int, partial: Int64Array, count: int, bounds: Bounds, matches: Matches) -> None:
        last = self.path.stages[depth - 1]
        if last.conditions:
            began, before = perf_counter(), count
            count = self._satisfying(last, partial, count)
            self._seconds[depth - 1] += perf_counter() - began
            self._counts[depth - 1, 2] += count - before
        if count:
            self._stage(depth, partial, count, bounds, matches)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count nothing of what is done meanwhile."""
        counts = self._counts.copy()
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
        counts: list[list[int]] = self._counts.tolist()
        return counts

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
        self._leading.settle(self._counts, self._seconds)
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
        self._settle()
        new: list[list[int]] = (self._counts - self._noted).tolist()
        self._noted = self._counts.copy()
        if new[0][2]:
            self.produced_lately = sum(counted[2] for counted in new[1:]) / new[0][2]
        return new

    def forget(self) -> None:
        """Leave out of `since_last` what was counted up to now."""
        self._noted = self._counts.copy()
        if self.shared is not None:
            self.shared.note()

    @property
    def produced(self) -> tuple[int, int]:
        """New tuples so far, and all partial and final results of them, these included."""
        made = self._counts[:, 2].tolist()
        new, whole = made[0], sum(made)
        if self.shared is None:
            return new, whole
        more = self.shared.produced
        return new + more[0], whole + more[1]

    @property
    def part(self) -> float:
        """How much of `produced` it has to pay for."""
        return 1.0 if self.shared is None else self.shared.part

    def to_json(self) -> dict[str, Any]:
        """Counts, not times: equal sessions have equal snapshots."""
        access = [stage.access for stage in self.path.stages]
        return {"order": self.path.order, "access": access, "counts": self.counts, "noted": self._noted.tolist()}

    def go_on(self, other: PathRunner) -> None:
        """Go on counting, and timing, where another runner of the same path is."""
        self.restore(other.to_json())
        self._seconds, self._untimed = list(other.seconds), other._untimed

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Go on counting where another runner of the same path was."""
        if tuple(stored["order"]) == self.path.order:
            self._settle()
            self._counts, self._noted = (np.array(stored[name], np.int64) for name in ("counts", "noted"))
            self._untimed = int(self._counts[0, 2])

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
