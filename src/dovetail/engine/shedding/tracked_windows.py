"""The trackers that decide once the cap was reached: one of the windows' tuples, and those of the policies that `auto` compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dovetail._typing import Array, BoolArray, Int64Array
from dovetail.config import Shedding
from dovetail.engine.kernels.tuple_table import ARRIVAL_ORDER, FIFO, RANDOM, ShedTuples, TupleBatch
from dovetail.engine.shedding import POLICIES
from dovetail.engine.shedding.auto import PolicySelector
from dovetail.engine.shedding.caps import ShedCaps
from dovetail.engine.shedding.layout import TableLayout, take
from dovetail.engine.shedding.tracker import CompressedArrays, Tracker
from dovetail.engine.storage.arena import return_free_memory

UNLIMITED = 1 << 60
_LOG_FACTOR = 2
"""Checkpoint again when the log has this many times the capacity."""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """The state of all trackers at one time."""

    tables: tuple[CompressedArrays, ...]
    policy: int
    selector_state: list[list[float]]


@dataclass(frozen=True, slots=True)
class TrackedSavepoint:
    """State of the trackers at a savepoint: a checkpoint, and the number of changes logged since."""

    checkpoint: _Checkpoint
    changes: int


def concat_shed(parts: Sequence[ShedTuples]) -> ShedTuples:
    """Concatenate shed tuples."""
    none = ShedTuples(*np.zeros((3, 0), np.int64))
    return ShedTuples(*(np.concatenate(values) for values in zip(none, *parts, strict=True)))


def _narrowed(values: Array) -> Array:
    """Return integers that are not negative in as few bytes as the largest needs."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


class _LoggedBatch:
    """A logged batch of tuples, for replay."""

    def __init__(self, tracked: TrackedWindows, incoming: TupleBatch, advancing: Int64Array) -> None:
        self._tracked, self._advancing = tracked, advancing
        is_seen = incoming.row >= 0
        self._first_rows = [int(incoming.row[of_window[0]]) for of_window in self._by_window(incoming.window, is_seen)]
        self._first_time, self._code_shape = int(incoming.ts.min()) if len(incoming.ts) else 0, incoming.codes.shape
        self._columns = CompressedArrays(
            {
                "window": incoming.window.astype(np.int16),
                "is_seen": is_seen,
                "time": _narrowed(incoming.ts - self._first_time),
                "codes": incoming.codes if tracked.has_codes else incoming.codes[:0],
                "seen": _narrowed(incoming.seen),
                "units": _narrowed(incoming.units),
            }.items()
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the tuples."""
        return self._columns.nbytes

    @staticmethod
    def _by_window(window: Int64Array, is_seen: BoolArray) -> list[Int64Array]:
        """Return the positions of each window's tuples that some query sees; their row numbers are consecutive."""
        return [np.flatnonzero((window == position) & is_seen) for position in np.unique(window[is_seen])]

    def __call__(self) -> None:
        columns = self._columns.decompress()
        window, is_seen, codes = columns["window"].astype(np.int64), columns["is_seen"], columns["codes"]
        row, ts = np.full(len(window), -1), columns["time"].astype(np.int64) + self._first_time
        for first, of_window in zip(self._first_rows, self._by_window(window, is_seen), strict=True):
            row[of_window] = np.arange(first, first + len(of_window))
        if not self._tracked.has_codes:
            codes = np.zeros(self._code_shape, np.uint64)
        seen, units = columns["seen"].astype(np.int64), columns["units"].astype(np.int32)
        self._tracked._add_tuples(TupleBatch(window, row, ts, codes, seen, units), self._advancing)  # noqa: SLF001 - same module


class TrackedWindows:
    """Trackers of the windows' tuples.

    Rollback restores the last checkpoint and replays the changes logged since; decisions depend on nothing else. So checkpoints can
    be rare, and a savepoint is cheap.
    """

    def __init__(self, layout: TableLayout, caps: ShedCaps, shedding: Shedding, *, can_roll_back: bool = True) -> None:
        """Start with empty windows; unless it `can_roll_back`, changes are not logged."""
        self.layout, self._can_roll_back = layout, can_roll_back
        seed, auto = shedding.seed, shedding.policy == "auto"
        self.selector = PolicySelector(layout, caps, shedding) if auto else None
        policy = self.selector.policy if self.selector is not None else POLICIES[shedding.policy].code
        patterns = self.selector is not None and self.selector.needs_patterns
        by_key = auto or policy not in (FIFO, RANDOM)
        dead_keys_first = shedding.dead_keys_first
        readers = layout.arrays(caps.pools, caps.max_units, by_key=by_key, dead_keys_first=dead_keys_first)
        self.has_codes = by_key or len(readers.epoch) > 0
        """Whether decisions depend on the codes of keys."""
        self.main = Tracker(
            readers, policy, seed, patterns=patterns, has_weights=caps.has_weights, may_change=self.selector is not None
        )
        """Tracks the tuples that windows hold."""
        self._checkpoint: _Checkpoint | None = None
        self._log: list[Callable[[], object]] = []
        """Changes since the checkpoint."""
        self._logged_tuples = 0
        """Tuples in the log."""

    @property
    def trackers(self) -> list[Tracker]:
        """The tracker of the windows, then those of the selector."""
        return [self.main, *(self.selector.trackers.values() if self.selector is not None else ())]

    @property
    def nbytes(self) -> int:
        """Bytes of the trackers, the checkpoint and the log."""
        copies = self._checkpoint.tables if self._checkpoint is not None else ()
        batches = (change for change in self._log if isinstance(change, _LoggedBatch))
        return sum(part.nbytes for parts in (self.trackers, copies, batches) for part in parts)

    def start(self, held: Callable[[], Iterator[TupleBatch]], max_event_times: Int64Array) -> ShedTuples:
        """Start with the tuples that windows hold and the streams' largest event times; return the tuples that do not fit."""
        advancing = np.ones(len(max_event_times), np.int64)
        shed_parts = [self.main.add_tuples(tuples, advancing) for tuples in held()]
        if self.selector is not None:
            self.selector.start(held(), advancing)
            self.main.change_policy(self.selector.policy)
        for tracker in self.trackers:
            tracker.table.results[:] = 0
            tracker.table.max_event_times[:] = max_event_times
        return concat_shed(shed_parts)

    def copy_pattern_counts(self, before: TrackedWindows) -> None:
        """Add the pattern counts that `before` has for the same readers."""
        old, new = before.main.table, self.main.table
        if old.pattern_results.shape[1] != new.pattern_results.shape[1]:
            return
        old_positions = {
            (reader.step, reader.source): position for position, reader in enumerate(before.layout.readers)
        }
        for position, reader in enumerate(self.layout.readers):
            old_position = old_positions.get((reader.step, reader.source))
            if old_position is not None:
                new.pattern_results[position] += old.pattern_results[old_position]
                new.pattern_tuples[position] += old.pattern_tuples[old_position]
        self.main.change_policy(self.main.policy)

    def add_tuples(self, incoming: TupleBatch, advancing: Int64Array) -> ShedTuples:
        """Add new tuples; return those that windows have shed."""
        if self._can_roll_back:
            self._logged_tuples += len(incoming.ts)
            self._log.append(_LoggedBatch(self, incoming, advancing))
        return self._add_tuples(incoming, advancing)

    def _add_tuples(self, incoming: TupleBatch, advancing: Int64Array) -> ShedTuples:
        """Add tuples, and let `auto` re-evaluate at fixed tuple counts, wherever batches begin."""
        if self.selector is None:
            return self.main.add_tuples(incoming, advancing)
        shed, min_hashes = list[ShedTuples](), self.main.min_hashes(incoming)
        start, count = 0, len(incoming.ts)
        while start < count:
            span = slice(start, start + self.selector.tuples_to_next_evaluation)
            part = take(incoming, span)
            start = span.stop
            shed.append(self.main.add_tuples(part, advancing))
            self.selector.add_tuples(part, advancing, min_hashes[span])
            if self.selector.tuples_to_next_evaluation == 0 and (better := self.selector.reevaluate()) is not None:
                policy = self.selector.policy
                self.main.change_policy(policy, better if policy == ARRIVAL_ORDER else None)
        return concat_shed(shed)

    def advance(self, max_event_times: Sequence[int]) -> None:
        """Advance streams to these event times and remove expired tuples."""
        if self._can_roll_back:
            self._log.append(partial(self._advance, max_event_times))
        self._advance(max_event_times)

    def _advance(self, max_event_times: Sequence[int]) -> None:
        for tracker in self.trackers:
            np.maximum(tracker.table.max_event_times, max_event_times, out=tracker.table.max_event_times)
            tracker.expire()

    def renumber(self, window: int, rows: range, alive: BoolArray) -> None:
        """Drop rows of a window that are not alive and renumber the rest, starting at `rows.stop`."""
        if self._can_roll_back:
            self._log.append(partial(self.main.renumber, window, rows, alive))
        self.main.renumber(window, rows, alive)

    def savepoint(self) -> TrackedSavepoint:
        """Return a savepoint; only the latest one can be rolled back to."""
        if self._checkpoint is None or self._logged_tuples > _LOG_FACTOR * self.main.capacity:
            self._checkpoint = None  # an interrupt may come before the new one is complete
            tables = tuple(tracker.copy() for tracker in self.trackers)
            selector_state = self.selector.state if self.selector is not None else []
            self._log, self._logged_tuples = [], 0
            return_free_memory()
            self._checkpoint = _Checkpoint(tables, self.main.policy, selector_state)
        return TrackedSavepoint(self._checkpoint, len(self._log))

    def rollback(self, savepoint: TrackedSavepoint) -> None:
        """Undo all changes since the latest savepoint."""
        checkpoint, changes = savepoint.checkpoint, self._log[: savepoint.changes]
        self.main.policy = checkpoint.policy
        for tracker, table in zip(self.trackers, checkpoint.tables, strict=True):
            tracker.rollback(table)
        if self.selector is not None:
            self.selector.restore(checkpoint.selector_state)
        for change in changes:
            change()
        self._log = changes
