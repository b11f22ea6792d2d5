"""Shedding at run time. Start reading at `Shedder.slices`.

Victims are chosen before the join, in event-time order, from key codes alone. A victim's last instant is just before the clock at
which it is shed; results with a later latest tuple are removed when they are gathered. So the join itself may take the batch in any
order. Shed rows are then hidden, and overwritten when arrays are full.

Until the cap is first reached, rows are only counted, and only in a batch that may reach it. From that event time on tuples are
tracked, starting with those that the windows hold then, wherever batches begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from dovetail._typing import BoolArray, Int64Array
from dovetail.config import Shedding
from dovetail.engine.change.adopt import InstalledPlan
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.kernels.tuple_table import FIFO, ShedTuples, TupleBatch
from dovetail.engine.shedding.caps import TEXT_UNIT, ShedCaps, caps_for, has_room, text_bytes
from dovetail.engine.shedding.layout import TableLayout, take
from dovetail.engine.shedding.result_losses import ResultLosses, SerializedLosses
from dovetail.engine.shedding.shedder_savepoint import HiddenRows, ShedderSavepoint
from dovetail.engine.shedding.slices import split_at_counts, split_batch, split_unseen
from dovetail.engine.shedding.tracked_windows import UNLIMITED, TrackedWindows, concat_shed
from dovetail.engine.shedding.tracker import Tracker
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import return_free_memory
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.progress import Progress
from dovetail.schema import StreamSchema
from dovetail.stats.recall import LossEstimate, Recall

_RETURN_INTERVAL = 1 << 16
"""Tuples after which freed memory is returned to the system: what batches need passes between objects that stay."""


class Shedder:
    """Keeps windows within their cap."""

    def __init__(self, shedding: Shedding, streams: Mapping[str, StreamSchema], *, can_roll_back: bool = True) -> None:
        self.shedding = shedding
        self.can_roll_back = can_roll_back
        """Whether a batch can be undone, for which a copy of the tracked tuples is kept."""
        self._streams = streams
        self._installed = InstalledPlan()
        self.counts: dict[str, tuple[int, int]] = {}
        """By stream: number of shed tuples, and the event time of the last shedding."""
        self.losses = ResultLosses(shedding.seed)
        self.tracked: TrackedWindows | None = None
        self._counter: tuple[TableLayout, Tracker] | None = None
        """Counts the windows' tuples during a batch that may reach the cap."""
        self.max_event_times: dict[str, int] = {}
        """By stream, after the last batch."""
        self._unseen: dict[str, Int64Array] = {}
        """By stream: event times of tuples of the batch that no query sees, from the next slice on."""
        self._last_slice_sizes: dict[str, int] = {}
        """By stream: tuples of the last slice of a batch."""
        self._hidden: list[HiddenRows] = []
        """Since the last savepoint."""
        self._tuples_since_return = 0
        """Tuples that were added since freed memory was returned to the system."""
        self.on_shed: Callable[[str, WindowStore, Int64Array], None] | None = None
        """Receives the rows of a stream's window that are shed, before they are hidden."""

    # -- plans ------------------------------------------------------------------------------------------------------------------

    def install(self, installed: InstalledPlan) -> None:
        """Continue with the windows and joins of another plan."""
        self._installed = installed
        caps = self.caps if installed.windows else None
        for stream, store in installed.windows.items():
            store.referrers.append((self, stream))
            assert caps is not None  # noqa: S101 - there are windows
            caps.limit_arrays(store)
        before = self.tracked
        is_shedding = before is not None or self.losses.is_counting
        layout = self.layout() if is_shedding else None
        self.losses.install(installed, layout, self._sample_capacity if is_shedding else 0)
        if before is None or layout is None or layout == before.layout:
            return
        held_rows = dict.fromkeys(layout.streams, np.zeros(0, np.int64))
        held_rows |= {stream: before.main.rows(position) for position, stream in enumerate(before.layout.streams)}
        self.tracked = self.new_tracked(layout)
        held = partial(layout.held_tuples, installed.windows, self.caps, held_rows)
        shed = self.tracked.start(held, self._max_event_times_of(layout))
        self.tracked.copy_pattern_counts(before)
        self._record_shed(layout, shed)
        self._hide_shed_rows()

    def new_tracked(self, layout: TableLayout) -> TrackedWindows:
        """Return trackers of empty windows."""
        return TrackedWindows(layout, self.caps, self.shedding, can_roll_back=self.can_roll_back)

    def _max_event_times_of(self, layout: TableLayout) -> Int64Array:
        """Return the largest event times in the order of a layout."""
        return np.array([self.max_event_times.get(stream, LONG_AGO) for stream in layout.streams], np.int64)

    def layout(self) -> TableLayout:
        """Return the layout of the installed plan."""
        return TableLayout.of(self._installed, self._streams)

    @property
    def caps(self) -> ShedCaps:
        """Caps of the windows."""
        return caps_for(self.shedding, self.windows)

    @property
    def _sample_capacity(self) -> int:
        """Tuples that samples may hold: a quarter of the caps."""
        return min(sum(self.caps.max_units), UNLIMITED) // 4

    # -- a batch ----------------------------------------------------------------------------------------------------------------

    def may_reach_cap(self, sizes: Mapping[str, int]) -> bool:
        """Whether the cap may be reached by this many more tuples of each stream."""
        windows = self._installed.windows
        if self.tracked is not None or not windows:
            return self.tracked is not None
        caps, held = self.caps, [0] * len(windows)
        for position, name in enumerate(sorted(windows)):
            held[caps.pools[position]] += caps.max_units_of(windows[name]) + sizes.get(name, 0)
        return any(count > cap for count, cap in zip(held, caps.max_units, strict=False))

    def slices(self, incoming: Mapping[str, NewRows]) -> Iterator[Mapping[str, NewRows]]:
        """Yield the batch in event-time slices; victims are chosen before each slice is yielded."""
        caps, windows = self.caps, self._installed.windows
        incoming = {stream: caps.weigh(arrived, windows[stream]) for stream, arrived in incoming.items()}
        if not self.may_reach_cap({stream: arrived.total_units for stream, arrived in incoming.items()}):
            if self.losses.samples:  # tuples were shed earlier, under another cap
                self.losses.add_tuples(self._tuple_batch(self.layout(), incoming, {}))
            yield incoming
            return
        if self.tracked is None:
            self._counter = self._new_counter(caps)
        self._unseen = {name: arrived.unseen for name, arrived in incoming.items() if arrived.unseen is not None}
        batch_slices = list(split_batch(incoming, caps.slice_units, per_stream=caps.max_rows is not None))
        for number, batch_slice in enumerate(batch_slices):
            for stream, arrived in batch_slice.items() if number or caps.max_rows is not None else ():
                self._compact_if_full(stream, len(arrived), text_bytes(arrived, windows[stream]))
            is_last = number == len(batch_slices) - 1
            unseen, self._unseen = split_unseen(self._unseen, batch_slice, is_last=is_last)
            for piece in self._shed_for(batch_slice, unseen):
                yield piece
                self._hide_shed_rows()
            self._last_slice_sizes = {stream: len(arrived) for stream, arrived in batch_slice.items()}
        self._counter = None

    def _new_counter(self, caps: ShedCaps) -> tuple[TableLayout, Tracker]:
        """Return a tracker of the windows' tuples that counts them until the cap is reached."""
        layout, windows = self.layout(), self._installed.windows
        counter = Tracker(
            layout.arrays(caps.pools, [UNLIMITED] * len(caps.max_units), seen=False),
            FIFO,
            0,
            has_weights=caps.has_weights,
        )
        counter.reserve(sum(len(windows[stream].rows) for stream in layout.streams))
        for tuples in layout.held_tuples(windows, caps, {}):
            counter.add_until_full(tuples, np.zeros(len(layout.streams), np.int64))
        counter.table.max_event_times[:] = self._max_event_times_of(layout)
        counter.expire()
        counter.table.readers.cap[:] = caps.max_units
        return layout, counter

    def _shed_for(
        self, batch_slice: Mapping[str, NewRows], unseen: Mapping[str, Int64Array]
    ) -> Iterator[Mapping[str, NewRows]]:
        """Choose the victims of a slice, and yield it; the part before the cap is first reached is yielded separately."""
        layout, _ = self._current_tracker()
        incoming = self._tuple_batch(layout, batch_slice, unseen)
        advancing = np.array([self._streams[name].progress_by is None for name in layout.streams], np.int64)
        shed_parts = list[ShedTuples]()
        if self._counter is not None:
            fitting = self._counter[1].add_until_full(incoming, advancing)
            if fitting == len(incoming.ts):
                self.losses.add_tuples(incoming)
                yield batch_slice
                return
            # Victims end before this event time, so they are in none of its results: tuples of one event time stay together.
            before = int(np.searchsorted(incoming.ts, incoming.ts[fitting]))
            fits, incoming = take(incoming, slice(before)), take(incoming, slice(before, None))
            counts = np.bincount(fits.window[fits.row >= 0], minlength=len(layout.streams))
            first, batch_slice = split_at_counts(batch_slice, dict(zip(layout.streams, counts.tolist(), strict=True)))
            if first:
                self.losses.add_tuples(fits)
                yield first
            shed_parts.append(self._start_tracking())
        assert self.tracked is not None  # noqa: S101 - `_start_tracking` sets it
        self._tuples_since_return += len(incoming.ts)
        self.losses.add_tuples(incoming)
        shed_parts.append(self.tracked.add_tuples(incoming, advancing))
        self._record_shed(layout, concat_shed(shed_parts))
        yield batch_slice

    def _tuple_batch(
        self, layout: TableLayout, batch_slice: Mapping[str, NewRows], unseen: Mapping[str, Int64Array]
    ) -> TupleBatch:
        """Return new tuples in order, with their future row numbers."""
        windows = self._installed.windows
        return layout.incoming(batch_slice, {stream: windows[stream].rows.head for stream in batch_slice}, unseen)

    def _record_shed(self, layout: TableLayout, shed: ShedTuples) -> None:
        """Record the last instants of shed rows, of which some are not yet appended, and count them."""
        for position, stream in enumerate(layout.streams):
            of_window = shed.window == position
            if of_window.any():
                self._set_row_ends(stream, shed.row[of_window], shed.end[of_window])

    def _start_tracking(self) -> ShedTuples:
        """Start tracking when the cap is first reached, with the tuples that windows hold then.

        Return the tuples that have to be shed at once, because they were added under a larger cap.
        """
        self._tuples_since_return = _RETURN_INTERVAL
        layout, counter = self._current_tracker()
        counter.expire()  # otherwise the removed tuples would depend on batch boundaries
        self._counter = None
        held_rows = {stream: counter.rows(position) for position, stream in enumerate(layout.streams)}
        max_event_times = counter.table.max_event_times
        del counter  # it takes memory
        held = partial(layout.held_tuples, self._installed.windows, self.caps, held_rows)
        self.losses.begin(layout, held, self._sample_capacity)
        self.tracked = self.new_tracked(layout)
        self.tracked.main.reserve(min(sum(map(len, held_rows.values())), sum(self.caps.max_units)))
        return self.tracked.start(held, max_event_times)

    def _set_row_ends(self, stream: str, rows: Int64Array, ends: Int64Array) -> None:
        """Set the last instants of a window's shed rows, of which some are not yet appended, and count them."""
        order = np.argsort(rows)
        self._installed.windows[stream].row_ends = rows[order], ends[order]
        before, _ = self.counts.get(stream, (0, 0))
        self.counts[stream] = before + len(rows), int(ends.max()) + 1

    def _hide_shed_rows(self) -> None:
        """Hide the rows that were shed during a slice."""
        for stream, store in self._installed.windows.items():
            if store.row_ends is not None:
                rows, _ = store.row_ends
                if self.on_shed is not None:
                    self.on_shed(stream, store, rows)
                # Recorded first, because an interrupt may come in between.
                self._hidden.append(HiddenRows(store, rows, store.visible_flags(rows)))
                store.hide(rows)
                store.row_ends = None

    def _compact_if_full(self, stream: str, count: int, text: int) -> None:
        """Remove shed rows from a window that has no room for more tuples; this cannot be rolled back.

        So it is done after a batch, and within a batch only if the cap is in bytes or the batch has several slices.
        """
        store = self._installed.windows[stream]
        if not has_room(store, count, text):
            layout, tracker = self._current_tracker()
            alive = np.zeros(len(store.rows), np.bool_)
            alive[tracker.rows(layout.streams.index(stream)) - store.rows.tail] = True
            if not alive.all():
                store.compact(alive)

    def _current_tracker(self) -> tuple[TableLayout, Tracker]:
        """Return the tracker of the windows' tuples: the counter, until the cap was reached."""
        if self._counter is not None:
            return self._counter
        assert self.tracked is not None  # noqa: S101 - `slices` sets one of the two
        return self.tracked.layout, self.tracked.main

    def renumber(self, source: str, alive: BoolArray) -> None:
        """Follow a window that drops rows that are not alive and renumbers the rest."""
        if self.tracked is None and self._counter is None:
            return
        layout, tracker = self._current_tracker()
        rows, position = self._installed.windows[source].rows, layout.streams.index(source)
        renumber = tracker.renumber if self.tracked is None else self.tracked.renumber
        renumber(position, range(rows.tail, rows.head), alive)

    def complete(self, progress: Progress) -> dict[str, Callable[[], Int64Array]]:
        """Remove expired tuples before the windows do, after a batch or when time has advanced.

        Return, by stream, functions that list the held rows. Some of these may have expired: out of order, a tuple stays until those
        that arrived before it have expired. If compaction of a window dropped it, the window's size would decide what is shed.
        """
        self.max_event_times = {stream: progress[stream].max_event_time for stream in self._installed.windows}
        self.losses.advance(self.max_event_times)
        list_held: dict[str, Callable[[], Int64Array]] = {}
        if self.tracked is not None:
            self.tracked.advance([self.max_event_times[stream] for stream in self.tracked.layout.streams])
            limit = self.caps.max_rows
            for position, stream in enumerate(self.tracked.layout.streams):
                store = self._installed.windows[stream]
                store.rows.is_tight = limit is None
                store.remove_before(self.tracked.main.first_row(position))
                count = self._last_slice_sizes.get(stream, 0) if limit is None else limit // 4
                self._compact_if_full(stream, count, TEXT_UNIT * count if limit is not None else 0)
                list_held[stream] = partial(self.tracked.main.rows, position)
            if self._tuples_since_return >= _RETURN_INTERVAL:
                self._tuples_since_return = 0
                return_free_memory()
        return list_held

    def warm_up(self) -> None:
        """Run the kernels that are rarely needed, so that they are compiled."""
        assert self.tracked is not None  # noqa: S101 - tuples have been shed
        for sample in self.losses.samples.values():
            sample.warm_up()
        main = self.tracked.main
        main.renumber(0, range(1 << 10), np.zeros(1 << 10, np.bool_))
        column = np.zeros(1, np.int64)
        main.min_hashes(
            TupleBatch(column, column, column, column.view(np.uint64)[:, None], column, np.ones(1, np.int32))
        )
        main.change_policy(main.policy)
        main.reserve(main.capacity)

    # -- metrics ----------------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes that shedding takes in addition to the windows."""
        tracked = self.tracked.nbytes if self.tracked is not None else 0
        return tracked + sum(sample.nbytes for sample in self.losses.samples.values())

    def bytes_of(self, stream: str) -> int:
        """Return a stream's part of `nbytes`, in proportion to the tuples that windows hold."""
        sizes = {name: len(store.rows) for name, store in self._installed.windows.items()}
        return self.nbytes * sizes.get(stream, 0) // max(1, sum(sizes.values()))

    def held(self, stream: str) -> int | None:
        """Return the number of held tuples of a stream, or None if it is not tracked."""
        if self.tracked is None or stream not in self.tracked.layout.streams:
            return None
        return len(self.tracked.main.rows(self.tracked.layout.streams.index(stream)))

    def recall(self, query: str) -> Recall:
        """Return a query's recall."""
        run = self._installed.queries[query]
        given = run.collectors[query].results
        if not any(source.stream in self.counts for source in run.step.sources):
            return Recall.of(given, LossEstimate())
        return Recall.of(given, self.losses.of(query))

    # -- serialization ----------------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        """Streams with windows, in the order of trackers."""
        return sorted(self._installed.windows)

    @property
    def windows(self) -> list[WindowStore]:
        """Windows of `streams`."""
        return [self._installed.windows[name] for name in self.streams]

    def numbers_kept(self, stream: str) -> Int64Array | None:
        """Return the log sequence numbers of the held tuples of a stream, ascending; None while all are held."""
        if self.tracked is None:
            return None
        rows = self.tracked.main.rows(self.tracked.layout.streams.index(stream))
        return np.sort(self._installed.windows[stream].numbers_of(rows))

    @property
    def result_counts(self) -> dict[str, int]:
        """Results so far by query."""
        return {name: run.collectors[name].results for name, run in self._installed.queries.items()}

    def restore_losses(self, serialized: SerializedLosses) -> None:
        """Continue serialized losses."""
        self.losses.restore(self.layout(), serialized, self._sample_capacity)

    def set_result_counts(self, results: Mapping[str, int]) -> None:
        """Set the results so far by query."""
        for name, run in self._installed.queries.items():
            run.collectors[name].results = results.get(name, 0)

    # -- savepoints -------------------------------------------------------------------------------------------------------------

    def savepoint(self) -> ShedderSavepoint:
        """Return a savepoint of the current state."""
        self._hidden = []
        tracked = None
        if self.tracked is not None and self.can_roll_back:
            tracked = self.tracked, self.tracked.savepoint()
        return ShedderSavepoint(tracked, dict(self.counts), self.losses.savepoint(), dict(self.max_event_times))

    def rollback(self, savepoint: ShedderSavepoint) -> None:
        """Restore the state at a savepoint."""
        for hidden in reversed(self._hidden):
            hidden.store.show(hidden.rows, hidden.flags)
        for store in self._installed.windows.values():
            store.row_ends = None
        self._hidden, self._counter, self.tracked = [], None, None
        if savepoint.tracked is not None:
            self.tracked, before = savepoint.tracked
            self.tracked.rollback(before)
        self.counts, self.max_event_times = dict(savepoint.counts), dict(savepoint.max_event_times)
        self.losses.rollback(savepoint.losses)
