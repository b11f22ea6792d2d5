"""Run one probe path over a batch, stage by stage, in chunks that bound memory.

A chunk of partial results passes all later stages before the next chunk is produced, so at most `stage_rows` of them exist at each
depth, whatever the size of the result. Passing each tuple through all stages in one kernel is slower: its state is then in memory,
where a stage keeps it in registers.
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
from dovetail.engine.join.reversed import ReversedProbe
from dovetail.engine.join.stages import Bounds, LeadingStages, Scratch, StageRunner
from dovetail.engine.join.verify import Matches, Member, Verifier
from dovetail.engine.kernels.times import FOREVER, LONG_AGO
from dovetail.engine.kernels.verify import keep_marked
from dovetail.plan.query_plan import ProbePath, ProbeStage
from dovetail.query.expressions import Column, Expression

EMIT_ROWS = 1 << 20
"""Matches of a join after which they are emitted, if results are emitted early; one more stage's output may be held."""


class TreeCounts(Protocol):
    """Counters of a path's stages in a probe tree."""

    cost_fraction: float
    """Fraction of its output charged to this path: paths divide the cost of a shared stage."""

    @property
    def produced(self) -> tuple[int, int]:
        """New tuples, and partial and final results including these, since the last call of `flush`."""

    def set_baseline(self) -> None:
        """Add everything counted so far to the baseline at the next `flush`."""

    def flush(self, counts: Int64Array, seconds: list[float], baseline: Int64Array) -> None:
        """Add the counts since the last call, and to `baseline` those up to the last `set_baseline`."""


class PathRunner:
    """Runs one `ProbePath` and counts what its stages do."""

    def __init__(self, path: ProbePath, members: Mapping[str, Member], scratch: Scratch) -> None:
        self.path = path
        self._counts = np.zeros((len(path.stages), 4), np.int64)
        self._seconds = [0.0] * len(path.stages)
        self.tree_counts: TreeCounts | None = None
        """Counters of the stages that run in a probe tree, if any do."""
        self._untimed = 0
        """New tuples from before the counters were restored, which `seconds` does not cover."""
        self.produced_per_tuple: float | None = None
        """Partial and final results per new tuple, between the last two reads of the counters."""
        self._baseline = self._counts.copy()
        self._members = members
        self._scratch = scratch
        self._stages = [StageRunner(path, depth, members) for depth in range(len(path.stages))]
        self._leading = LeadingStages(path, members, scratch)
        self._reversed = ReversedProbe(path, members, scratch) if self._leading.depth > 1 else None
        self._verify = Verifier(path, members)
        self._unverified = 0
        """The first match that has not been verified."""
        self._empty_result = np.zeros((1, len(members) + 2), np.int64)
        self._empty_result[0, -2:] = LONG_AGO, FOREVER

    def run(self, bounds: Bounds, matches: Matches) -> None:
        """Join the driving tuples with all windows and append to `matches`."""
        self._unverified = len(matches)
        if self._reversed is not None and self._reversed.pays(bounds):
            for partial, count in self._reversed.run(bounds, self._counts, self._seconds):
                self._continue(2, partial, count, bounds, matches)
        elif self._leading.depth:
            for partial, count in self._leading.run(bounds, self._counts):
                self._continue(self._leading.depth, partial, count, bounds, matches)
        else:
            self._stage(0, self._empty_result, 1, bounds, matches)
        self._verify(matches, self._unverified)

    def run_from(self, depth: int, partial: Int64Array, bounds: Bounds, matches: Matches) -> None:
        """Join partial results that have passed the stages before `depth`, except the last one's conditions."""
        self._unverified = len(matches)
        self._continue(depth, partial, len(partial), bounds, matches)
        self._verify(matches, self._unverified)

    def _continue(self, depth: int, partial: Int64Array, count: int, bounds: Bounds, matches: Matches) -> None:
        last = self.path.stages[depth - 1]
        if last.conditions:
            began, before = perf_counter(), count
            count = self._filter_conditions(last, partial, count)
            self._seconds[depth - 1] += perf_counter() - began
            self._counts[depth - 1, 2] += count - before
        if count:
            self._stage(depth, partial, count, bounds, matches)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Discard what is counted inside the `with` block."""
        counts = self._counts.copy()
        yield
        self._counts = counts

    @property
    def needs_verification(self) -> bool:
        """Whether equal codes do not prove that keys are equal."""
        return self._verify.is_needed

    @property
    def counts(self) -> list[list[int]]:
        """Totals per stage: probes, rows read, matches, and the window's size summed over the probes."""
        self._flush_counts()
        counts: list[list[int]] = self._counts.tolist()
        return counts

    @property
    def seconds(self) -> list[float]:
        """Time per stage, excluding later stages, since the runner was created."""
        self._flush_counts()
        return self._seconds

    @property
    def runs_in_tree(self) -> bool:
        return self.tree_counts is not None

    def set_tree_counts(self, counts: TreeCounts | None) -> None:
        """Count the first stages in `counts`, those of a probe tree; None: run all stages here."""
        self._flush_counts()
        self.tree_counts = counts

    def _flush_counts(self) -> None:
        self._leading.flush_seconds(self._counts, self._seconds)
        if self.tree_counts is not None:
            self.tree_counts.flush(self._counts, self._seconds, self._baseline)

    @property
    def timed_tuples(self) -> int:
        """Number of new tuples that `seconds` covers."""
        return self.counts[0][2] - self._untimed

    @property
    def totals(self) -> list[int]:
        """Probes, rows read and matches of all stages except the new tuples' own."""
        probed = [counts for counts, stage in zip(self.counts, self.path.stages, strict=True) if stage.access != "new"]
        return [sum(column) for column in zip(*probed, strict=True)][:3]

    def take_recent_counts(self) -> list[list[int]]:
        """Return the counts since the last call."""
        self._flush_counts()
        recent: list[list[int]] = (self._counts - self._baseline).tolist()
        self._baseline = self._counts.copy()
        if recent[0][2]:
            self.produced_per_tuple = sum(counts[2] for counts in recent[1:]) / recent[0][2]
        return recent

    def discard_recent_counts(self) -> None:
        """Exclude everything counted so far from the next `take_recent_counts`."""
        self._baseline = self._counts.copy()
        if self.tree_counts is not None:
            self.tree_counts.set_baseline()

    @property
    def produced(self) -> tuple[int, int]:
        """New tuples so far, and all partial and final results including these."""
        by_stage = self._counts[:, 2].tolist()
        new, total = by_stage[0], sum(by_stage)
        if self.tree_counts is None:
            return new, total
        tree_new, tree_total = self.tree_counts.produced
        return new + tree_new, total + tree_total

    @property
    def cost_fraction(self) -> float:
        """Fraction of `produced` charged to this path."""
        return 1.0 if self.tree_counts is None else self.tree_counts.cost_fraction

    def to_json(self) -> dict[str, Any]:
        """Serialize the counts but not the times, so that equal sessions have equal snapshots."""
        access = [stage.access for stage in self.path.stages]
        return {"order": self.path.order, "access": access, "counts": self.counts, "noted": self._baseline.tolist()}

    def copy_counters(self, other: PathRunner) -> None:
        """Continue the counts and times of another runner of the same path."""
        self.restore(other.to_json())
        self._seconds, self._untimed = list(other.seconds), other._untimed

    def restore(self, serialized: Mapping[str, Any]) -> None:
        """Continue the serialized counts of a runner of the same path."""
        if tuple(serialized["order"]) == self.path.order:
            self._flush_counts()
            self._counts, self._baseline = (np.array(serialized[name], np.int64) for name in ("counts", "noted"))
            self._untimed = int(self._counts[0, 2])

    def _stage(self, depth: int, partial: Int64Array, count: int, bounds: Bounds, matches: Matches) -> None:
        if depth == len(self._stages):
            matches.add(partial, count)
            if matches.emit is not None and len(matches) >= EMIT_ROWS:
                self._verify(matches, self._unverified)
                matches.flush()
                self._unverified = 0
            return
        runner = self._stages[depth]
        counts = self._counts[depth]
        counts[0] += count
        counts[3] += count * runner.window_size
        at, cursor = 0, -1
        while at < count:
            began = perf_counter()
            out = self._scratch.stages[depth]
            written, at, cursor, rows_read = runner(partial, count, at, cursor, bounds, out)
            if runner.stage.conditions:
                written = self._filter_conditions(runner.stage, out, written)
            self._seconds[depth] += perf_counter() - began
            counts[1] += rows_read
            counts[2] += written
            if written:
                self._stage(depth + 1, out, written, bounds, matches)
            if at < count:
                self._scratch.grow(depth)

    def _filter_conditions(self, stage: ProbeStage, partial: Int64Array, count: int) -> int:
        """Drop partial results that do not satisfy a stage's conditions; return the number of those left."""
        for condition in stage.conditions:
            if count:
                count = self._filter(condition.expression, partial, count)
        return count

    def _filter(self, expression: Expression, partial: Int64Array, count: int) -> int:
        def resolve(column: Column) -> pa.Array:
            member = self._members[column.alias]
            return member.store.take(f".{column.name}", partial[:count, member.column])

        mask = is_true(evaluate(expression, resolve, count))
        return count if mask.all() else keep_marked(partial, count, mask.astype(np.int64))
