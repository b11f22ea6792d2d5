"""Shedding at run time: when it begins, what goes, and how windows let go of it.

What goes is decided before anything is joined, tuple by tuple in event-time order, over codes alone. A tuple that is shed when
another comes at time T has its last instant right before T: results whose latest tuple is of T or later do not have it. So a batch is
joined as ever, in whatever order, and results outside the lives of their tuples are left out when they are gathered. Shed rows are
then hidden, and overwritten when arrays are full.

Until the cap is reached for the first time nothing is followed: windows are counted, and only if a batch may reach it. From then on
tuples are, beginning with those that are in the windows at that instant, whatever the batches were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.config import Shedding
from dovetail.engine.change.adopt import InstalledPlan
from dovetail.engine.kernels.roster import FIFO, Incoming, Shed
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.shedding.cuts import cut, divided
from dovetail.engine.shedding.following import UNLIMITED, Following, FollowingMark
from dovetail.engine.shedding.result_losses import LossesSavepoint, ResultLosses, StoredLosses
from dovetail.engine.shedding.room import TEXT_UNIT, Room, has_room, room_for, text_bytes
from dovetail.engine.shedding.shape import RosterShape, chosen, joined
from dovetail.engine.shedding.tracker import Tracker
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.progress import Progress
from dovetail.schema import StreamSchema
from dovetail.stats.recall import LossEstimate, Recall


@dataclass(frozen=True, slots=True)
class ShedderMark:
    """Where shedding stood, to go back to."""

    following: tuple[Following, FollowingMark] | None
    counts: Mapping[str, tuple[int, int]]
    losses: LossesSavepoint
    heads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Hidden:
    """Rows that were hidden, and what they showed."""

    store: WindowStore
    rows: Int64Array
    flags: list[UInt64Array]


class Shedder:
    """Keeps windows within their cap."""

    def __init__(self, shedding: Shedding, streams: Mapping[str, StreamSchema]) -> None:
        self.shedding = shedding
        self._streams = streams
        self._installed = InstalledPlan()
        self.counts: dict[str, tuple[int, int]] = {}
        """By stream: tuples that were shed, and the event time of the last time."""
        self.losses = ResultLosses(shedding.seed)
        self.following: Following | None = None
        self._counting: tuple[RosterShape, Tracker] | None = None
        """Windows, while a batch is joined that may reach the cap."""
        self.heads: dict[str, int] = {}
        """By stream: how far it was after the last batch."""
        self._unseen: dict[str, Int64Array] = {}
        """By stream: event times of tuples of a batch that nobody sees, which are still to come."""
        self._arrived: dict[str, int] = {}
        """By stream: tuples of the last part of a batch."""
        self._hidden: list[_Hidden] = []
        """Since the last mark."""

    # -- plans ------------------------------------------------------------------------------------------------------------------

    def install(self, installed: InstalledPlan) -> None:
        """Go on with other windows and joins."""
        self._installed = installed
        room = self.room if installed.windows else None
        for stream, store in installed.windows.items():
            store.referrers.append((self, stream))
            assert room is not None  # noqa: S101 - there are windows
            room.limit_arrays(store)
        before = self.following
        is_shedding = before is not None or self.losses.is_counting
        shape = self.shape() if is_shedding else None
        self.losses.install(installed, shape, self._sample_capacity if is_shedding else 0)
        if before is None or shape is None or shape == before.shape:
            return
        held = {stream: before.main.rows(place) for place, stream in enumerate(before.shape.streams)}
        living = shape.living(installed.windows, self.room)
        self.following = Following(shape, self.room, self.shedding)
        shed = self.following.begin(chosen(living, np.flatnonzero(_among(shape, living, held))), self._heads_of(shape))
        self.following.learn(before)
        self._note(shape, shed)
        self._hide()

    def _heads_of(self, shape: RosterShape) -> Int64Array:
        return np.array([self.heads.get(stream, LONG_AGO) for stream in shape.streams], np.int64)

    def shape(self) -> RosterShape:
        """Who sees the windows."""
        return RosterShape.of(self._installed, self._streams)

    @property
    def room(self) -> Room:
        """What the windows may hold."""
        return room_for(self.shedding, self.windows)

    @property
    def _sample_capacity(self) -> int:
        return min(sum(self.room.caps), UNLIMITED) // 4

    # -- a batch ----------------------------------------------------------------------------------------------------------------

    def may_reach(self, sizes: Mapping[str, int]) -> bool:
        """Whether the cap may be reached by so many more tuples of each stream."""
        windows = self._installed.windows
        if self.following is not None or not windows:
            return self.following is not None
        room, held = self.room, [0] * len(windows)
        for place, name in enumerate(sorted(windows)):
            held[room.pools[place]] += room.most_units_of(windows[name]) + sizes.get(name, 0)
        return any(count > cap for count, cap in zip(held, room.caps, strict=False))

    def slices(self, incoming: Mapping[str, NewRows]) -> Iterator[Mapping[str, NewRows]]:
        """Parts of a batch, one event time after another; when one is given it is known what it leaves of the windows."""
        room, windows = self.room, self._installed.windows
        incoming = {stream: room.weigh(arrived, windows[stream]) for stream, arrived in incoming.items()}
        if not self.may_reach({stream: arrived.total_units for stream, arrived in incoming.items()}):
            if self.losses.samples:  # tuples were shed earlier, under another cap
                self.losses.take_in(self._tuples(self.shape(), incoming, {}))
            yield incoming
            return
        if self.following is None:
            self._counting = self._counted(room)
        self._unseen = {name: arrived.unseen for name, arrived in incoming.items() if arrived.unseen is not None}
        parts = list(cut(incoming, room.slice, each=room.limit is not None))
        for number, part in enumerate(parts):
            for stream, arrived in part.items() if number or room.limit is not None else ():
                self._make_room(stream, len(arrived), text_bytes(arrived, windows[stream]))
            for piece in self._decided(part, self._moving_on(part, last=number == len(parts) - 1), room):
                yield piece
                self._hide()
            self._arrived = {stream: len(arrived) for stream, arrived in part.items()}
        self._counting = None

    def _counted(self, room: Room) -> tuple[RosterShape, Tracker]:
        """The tuples in the windows, to be counted until the cap is reached."""
        shape, windows = self.shape(), self._installed.windows
        counting = Tracker(
            shape.arrays(room.pools, [UNLIMITED] * len(room.caps), seen=False), FIFO, 0, weighed=room.weighed
        )
        counting.fill(shape.living(windows, room), np.zeros(len(shape.streams), np.int64))
        counting.roster.heads[:] = [self.heads.get(stream, LONG_AGO) for stream in shape.streams]
        counting.release()
        counting.roster.uses.cap[:] = room.caps
        return shape, counting

    def _decided(
        self, part: Mapping[str, NewRows], unseen: Mapping[str, Int64Array], room: Room
    ) -> Iterator[Mapping[str, NewRows]]:
        """A part of a batch, once it is known what it sheds; what comes before the instant of reaching the cap is given first."""
        windows, (shape, _) = self._installed.windows, self._watched()
        incoming = self._tuples(shape, part, unseen)
        moving = np.array([self._streams[name].progress_by is None for name in shape.streams], np.int64)
        found = list[Shed]()
        if self._counting is not None:
            fitting = self._counting[1].fill(incoming, moving)
            if fitting == len(incoming.ts):
                self.losses.take_in(incoming)
                yield part
                return
            # What is shed ends before this instant, and with it all results of the instant: its tuples stay together.
            before = int(np.searchsorted(incoming.ts, incoming.ts[fitting]))
            fits, incoming = chosen(incoming, slice(before)), chosen(incoming, slice(before, None))
            held = joined([shape.living(windows, room), fits])
            numbers = np.bincount(fits.window[fits.row >= 0], minlength=len(shape.streams))
            first, part = divided(part, dict(zip(shape.streams, numbers.tolist(), strict=True)))
            if first:
                self.losses.take_in(fits)
                yield first
            found.append(self._follow(held, room))
        assert self.following is not None  # noqa: S101 - it is there, or was made
        self.losses.take_in(incoming)
        found.append(self.following.take_in(incoming, moving))
        shed = Shed(*(np.concatenate(values) for values in zip(*found, strict=True)))
        self._note(shape, shed)
        yield part

    def _tuples(self, shape: RosterShape, part: Mapping[str, NewRows], unseen: Mapping[str, Int64Array]) -> Incoming:
        """New tuples in order, with the row numbers that they are about to get."""
        windows = self._installed.windows
        return shape.incoming(part, {stream: windows[stream].rows.head for stream in part}, unseen)

    def _note(self, shape: RosterShape, shed: Shed) -> None:
        """Note which rows of windows end, and when; some of them may be about to enter."""
        for place, stream in enumerate(shape.streams):
            own = shed.window == place
            if own.any():
                self._end(stream, shed.row[own], shed.end[own])

    def _moving_on(self, part: Mapping[str, NewRows], *, last: bool) -> dict[str, Int64Array]:
        """When tuples came that nobody sees, up to the end of a part; the others come with the next, or with the `last`."""
        end = max((int(arrived.ts[-1]) for arrived in part.values() if len(arrived)), default=LONG_AGO)
        found = {
            stream: len(times) if last else int(np.searchsorted(times, end, "right"))
            for stream, times in self._unseen.items()
        }
        given = {stream: self._unseen[stream][:count] for stream, count in found.items()}
        self._unseen = {stream: self._unseen[stream][count:] for stream, count in found.items()}
        return given

    def _follow(self, tuples: Incoming, room: Room) -> Shed:
        """The cap has been reached: follow tuples from now on, beginning with those that are still held.

        Return what has to go at once, because the cap was larger when it came.
        """
        shape, counting = self._watched()
        counting.release()  # or it would depend on where batches end what has been let go
        self._counting = None
        held = {stream: counting.rows(place) for place, stream in enumerate(shape.streams)}
        living = chosen(tuples, np.flatnonzero(_among(shape, tuples, held)))
        self.losses.begin(shape, living, self._sample_capacity)
        self.following = Following(shape, room, self.shedding)
        return self.following.begin(living, counting.roster.heads)

    def _end(self, stream: str, rows: Int64Array, ends: Int64Array) -> None:
        """Note when rows of a window end, some of which may be about to enter."""
        order = np.argsort(rows)
        self._installed.windows[stream].row_ends = rows[order], ends[order]
        before, _ = self.counts.get(stream, (0, 0))
        self.counts[stream] = before + len(rows), int(ends.max()) + 1

    def _hide(self) -> None:
        """After a part of a batch: nobody sees what it has shed."""
        for store in self._installed.windows.values():
            if store.row_ends is not None:
                rows, _ = store.row_ends
                self._hidden.append(
                    _Hidden(store, rows, store.visible_flags(rows))
                )  # first: an interrupt may come between
                store.hide(rows)
                store.row_ends = None

    def _make_room(self, stream: str, count: int, text: int) -> None:
        """Let a window forget what was shed if there is no room for more. There is no way back from that.

        So it is done when a batch is complete, and within one only if bytes are counted or it comes in several parts.
        """
        store = self._installed.windows[stream]
        if not has_room(store, count, text):
            shape, tracker = self._watched()
            alive = np.zeros(len(store.rows), np.bool_)
            alive[tracker.rows(shape.streams.index(stream)) - store.rows.tail] = True
            if not alive.all():
                store.compact(alive)

    def _watched(self) -> tuple[RosterShape, Tracker]:
        if self._counting is not None:
            return self._counting
        assert self.following is not None  # noqa: S101 - asked in a batch that may reach the cap
        return self.following.shape, self.following.main

    def renumber(self, source: str, alive: BoolArray) -> None:
        """A window is about to forget rows that are not alive, and to number the others anew."""
        if self.following is None and self._counting is None:
            return
        shape, tracker = self._watched()
        rows, place = self._installed.windows[source].rows, shape.streams.index(source)
        renumber = tracker.number_anew if self.following is None else self.following.renumber
        renumber(place, range(rows.tail, rows.head), alive)

    def complete(self, progress: Progress) -> dict[str, Callable[[], Int64Array]]:
        """After a batch, or when time has moved: let go of what is over, before windows do.

        Return, by stream, functions that list the rows that are held. Some may be over: out of order, a tuple stays until those
        that came before it are over, too. If windows forgot it when they are compacted, their size would decide what is shed.
        """
        self.heads = {stream: progress[stream].max_event_time for stream in self._installed.windows}
        self.losses.advance(self.heads)
        list_held: dict[str, Callable[[], Int64Array]] = {}
        if self.following is not None:
            self.following.move([self.heads[stream] for stream in self.following.shape.streams])
            limit = self.room.limit
            for place, stream in enumerate(self.following.shape.streams):
                self._installed.windows[stream].remove_before(self.following.main.first_row(place))
                count = self._arrived.get(stream, 0) if limit is None else limit // 4
                self._make_room(stream, count, TEXT_UNIT * count if limit is not None else 0)
                list_held[stream] = partial(self.following.main.rows, place)
        return list_held

    def warm_up(self) -> None:
        """Run the kernels that are needed only now and then."""
        assert self.following is not None  # noqa: S101 - tuples have been shed
        for sample in self.losses.samples.values():
            sample.warm_up()
        main = self.following.main
        main.number_anew(0, range(1 << 10), np.zeros(1 << 10, np.bool_))
        main.ranked_by(main.rank)
        main.reserve(main.places)

    # -- what it cost -----------------------------------------------------------------------------------------------------------

    def held(self, stream: str) -> int | None:
        """How many tuples of a stream are held, if they are followed."""
        if self.following is None or stream not in self.following.shape.streams:
            return None
        return len(self.following.main.rows(self.following.shape.streams.index(stream)))

    def recall(self, query: str) -> Recall:
        """The share of a query's results that was given."""
        run = self._installed.queries[query]
        given = run.collectors[query].results
        if not any(source.stream in self.counts for source in run.step.sources):
            return Recall.of(given, LossEstimate())
        return Recall.of(given, self.losses.of(query))

    # -- stored -----------------------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        """Those that have windows, in the order in which trackers have them."""
        return sorted(self._installed.windows)

    @property
    def windows(self) -> list[WindowStore]:
        """Those of `streams`."""
        return [self._installed.windows[name] for name in self.streams]

    def numbers_kept(self, stream: str) -> Int64Array | None:
        """By what the tuples of a stream that are held are known outside, in order; None while all are held."""
        if self.following is None:
            return None
        rows = self.following.main.rows(self.following.shape.streams.index(stream))
        return np.sort(self._installed.windows[stream].numbers_of(rows))

    @property
    def given(self) -> dict[str, int]:
        """Results so far, by query."""
        return {name: run.collectors[name].results for name, run in self._installed.queries.items()}

    def restore_losses(self, stored: StoredLosses) -> None:
        """Continue to count what queries lose."""
        self.losses.restore(self.shape(), stored, self._sample_capacity)

    def give(self, results: Mapping[str, int]) -> None:
        """Go on counting results from there."""
        for name, run in self._installed.queries.items():
            run.collectors[name].results = results.get(name, 0)

    # -- going back -------------------------------------------------------------------------------------------------------------

    def mark(self) -> ShedderMark:
        """Where shedding stands."""
        self._hidden = []
        following = (self.following, self.following.mark()) if self.following is not None else None
        return ShedderMark(following, dict(self.counts), self.losses.savepoint(), dict(self.heads))

    def rollback(self, mark: ShedderMark) -> None:
        """Forget what came after a mark."""
        for hidden in reversed(self._hidden):
            hidden.store.show(hidden.rows, hidden.flags)
        for store in self._installed.windows.values():
            store.row_ends = None
        self._hidden, self._counting, self.following = [], None, None
        if mark.following is not None:
            self.following, before = mark.following
            self.following.rollback(before)
        self.counts, self.heads = dict(mark.counts), dict(mark.heads)
        self.losses.rollback(mark.losses)


def _among(shape: RosterShape, tuples: Incoming, rows: Mapping[str, Int64Array]) -> BoolArray:
    """Which tuples are among some rows of their windows."""
    among = np.zeros(len(tuples.ts), np.bool_)
    for place, stream in enumerate(shape.streams):
        own = tuples.window == place
        among[own] = np.isin(tuples.row[own], rows.get(stream, np.zeros(0, np.int64)))
    return among
