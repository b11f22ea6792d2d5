"""Which input of a batch drives next: the policies of Valsomatzis and Gounaris (section 3.2), for any number of joins.

`timestamp` and `round-robin` take the inputs' tuples in turn, one by one; here that is a matter of which tuples each one sees, so a
batch is still joined in pieces. The others take whole buffers, one input after another:

- `declared`: as streams were declared;
- `consumption-rate`: the input with the fewest results per tuple first (ascending σ_S, figure 3);
- `initial-output-size`: the input whose buffer promises most results (equation 1, figure 4), asked again after each buffer;
- `output-rate`: the same per tuple of the buffer.

The paper has one join over streams. Here an input's results are those of all joins that its tuples reach, also by way of stored
sub-joins, each counted once for every query that takes them. A join's selectivity is what its inputs have matched of the combinations
that they were offered; joins over the same inputs are counted together, and one that was offered nothing yet matches everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from dovetail._typing import Float64Array, Int64Array
from dovetail.engine.join.step import Fresh, JoinRun
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.window import WindowStore

Ranks: TypeAlias = Mapping[tuple[str, str], Int64Array]
"""For two streams of a batch, how many tuples of the second come before each of the first."""
_Inputs: TypeAlias = tuple[tuple[str, ...], str | None]
"""The streams and stored sub-joins that a join is over, and the one that its matches go to."""
_MEMORY = 0.9
"""What was counted weighs so much less with each batch."""


class _Shapes:
    """Joins, those over the same inputs taken together, as arrays: there may be hundreds, and they are asked for each buffer."""

    def __init__(self, joins: Mapping[_Inputs, Sequence[JoinRun]]) -> None:
        stores = {feed: store for runs in joins.values() for feed, store in runs[0].drivers[0].targets}
        self.stores = list(stores.values())
        """Of each stream and stored sub-join, its rows."""
        self.feeds = {feed: number for number, feed in enumerate(stores)}
        nobody, widest = len(self.stores), max((len(feeds) for feeds, _ in joins), default=0)
        inputs = [[*(self.feeds[feed] for feed in feeds), *[nobody] * (widest - len(feeds))] for feeds, _ in joins]
        self._inputs = np.array(inputs, np.intp).reshape(len(joins), widest)
        self._is_input = self._inputs < nobody
        self.numbers = {key: number for number, key in enumerate(joins)}
        self.takers = np.array([sum(len(run.collectors) for run in runs) for runs in joins.values()], np.float64)
        """Queries that take the results."""
        self.offered, self.matched, self.given = np.zeros((3, len(joins)))
        """Combinations of rows; those that match; results: matches, once for each query that takes them."""
        self._stored = [(number, self.feeds[state]) for (_, state), number in self.numbers.items() if state in stores]
        """Joins whose matches others read, and where those are."""

    def go_on(self, before: _Shapes) -> None:
        """Keep what was counted of the same inputs."""
        for key, number in self.numbers.items():
            if (other := before.numbers.get(key)) is not None:
                self.offered[number] = before.offered[other]
                self.matched[number] = before.matched[other]
                self.given[number] = before.given[other]

    def _rows(self, grown: Mapping[str, float]) -> Float64Array:
        """Rows of each stream and stored sub-join, which may be about to have `grown`; and one of nothing."""
        rows = np.array([*[store.rows.head - store.rows.tail for store in self.stores], 1.0])
        for feed, count in grown.items():
            if feed in self.feeds:
                rows[self.feeds[feed]] += count
        return rows

    def _per_row(self, rows: Float64Array) -> Float64Array:
        """For each join and input: the combinations that a new row of the input makes with rows of all others."""
        held = rows[self._inputs]
        if rows.min() > 0:
            made: Float64Array = held.prod(axis=1)[:, None] / held
        else:
            others = [np.delete(held, place, axis=1).prod(axis=1) for place in range(held.shape[1])]
            made = np.stack(others, axis=1) if others else held
        return np.where(self._is_input, made, 0.0)

    def offer(self, fresh: Mapping[str, float]) -> None:
        """Count the combinations that new rows make."""
        new = np.zeros(len(self.stores) + 1)
        for feed, count in fresh.items():
            if feed in self.feeds:
                new[self.feeds[feed]] = count
        self.offered += (self._per_row(self._rows({})) * new[self._inputs]).sum(axis=1)

    def _share(self, counted: Float64Array, default: Float64Array | float) -> Float64Array:
        """What was counted of each combination; of joins that were offered none, the default."""
        known = self.offered > 0
        return np.where(known, counted / np.where(known, self.offered, 1.0), default)

    def promised(self, waiting: Mapping[str, int], grown: Mapping[str, float]) -> dict[str, float]:
        """By stream, the results that so many new tuples are expected to give."""
        per_row = self._per_row(self._rows(grown))
        given = per_row * self._share(self.given, self.takers)[:, None]
        if not self._stored:
            each = np.bincount(self._inputs.ravel(), given.ravel(), len(self.stores) + 1)
            return {stream: count * each[self.feeds.get(stream, -1)] for stream, count in waiting.items()}
        matched = per_row * self._share(self.matched, 1.0)[:, None]
        found = {}
        for stream, count in waiting.items():
            new = np.zeros(len(self.stores) + 1)
            new[self.feeds.get(stream, -1)] = count
            for number, state in self._stored:  # what matches is new to those who read it
                new[state] = matched[number] @ new[self._inputs[number]]
            found[stream] = float((given * new[self._inputs]).sum())
        return found

    def reached(self, stream: str) -> float:
        """Results so far of the joins that a stream's tuples reach, also by way of stored sub-joins."""
        inside = np.zeros(len(self.stores) + 1, bool)
        inside[self.feeds.get(stream, -1)] = True
        inside[-1] = False
        for number, state in self._stored:
            inside[state] |= inside[self._inputs[number]].any()
        return float(self.given[inside[self._inputs].any(axis=1)].sum())

    def fade(self) -> None:
        self.offered *= _MEMORY
        self.matched *= _MEMORY
        self.given *= _MEMORY


class DriverChoice:
    """Chooses the input whose buffer is joined next, and counts what its tuples match."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._shapes = _Shapes({})
        self._of_run: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        """By stream: tuples that were joined."""
        self._asks = policy in ("consumption-rate", "initial-output-size", "output-rate")
        self._only: dict[str, WindowStore] | None = None
        """The inputs of the only join there is: its selectivity is a factor of all that is compared, and need not be known."""

    def install(self, runs: Iterable[JoinRun]) -> None:
        """Go on with other joins; what was counted of the same inputs stays."""
        joins: dict[_Inputs, list[JoinRun]] = {}
        for run in runs if self._asks else ():
            feeds = sorted(feed for feed, _ in run.drivers[0].targets)
            joins.setdefault((tuple(feeds), run.step.state), []).append(run)
        before, self._shapes = self._shapes, _Shapes(joins)
        self._shapes.go_on(before)
        self._of_run = {run.name: self._shapes.numbers[key] for key, same in joins.items() for run in same}
        self._only = None
        if len(joins) == 1:
            inputs = next(iter(joins.values()))[0].drivers[0].targets
            self._only = dict(inputs) if len(dict(inputs)) == len(inputs) else None

    def next(self, waiting: Mapping[str, int], grown: Mapping[str, float] | None = None) -> str:
        """Choose among streams with so many tuples `waiting`; windows may be about to have `grown`."""
        if len(waiting) == 1 or not self._asks:
            return next(iter(waiting))
        if self._only is not None:
            return self._next_of_one(waiting, self._only, grown or {})
        if self._policy == "consumption-rate":
            return min(waiting, key=self._results_per_tuple)
        worth = self._shapes.promised(waiting, grown or {})
        if self._policy == "output-rate":
            worth = {stream: results / max(waiting[stream], 1) for stream, results in worth.items()}
        return max(worth, key=worth.__getitem__)

    def _next_of_one(
        self, waiting: Mapping[str, int], windows: Mapping[str, WindowStore], grown: Mapping[str, float]
    ) -> str:
        """For one join: whose buffer is largest for its window (equation 1 without what all have in common), and so on."""
        if self._policy == "consumption-rate":
            return max(waiting, key=lambda stream: self._seen.get(stream, 0.0))
        best, most = "", -1.0
        for stream, count in waiting.items():
            rows = windows[stream].rows
            held = rows.head - rows.tail + grown.get(stream, 0.0)
            worth = (count if self._policy == "initial-output-size" else 1.0) / (held or 1e-9)
            if worth > most:
                best, most = stream, worth
        return best

    def order(self, waiting: Mapping[str, int]) -> list[str]:
        """The order in which all streams are chosen if nothing else becomes known in between."""
        left, grown, chosen = dict(waiting), dict[str, float](), list[str]()
        while left:
            chosen.append(self.next(left, grown))
            grown[chosen[-1]] = left.pop(chosen[-1])
        return chosen

    def _results_per_tuple(self, stream: str) -> float:
        """σ_S: results so far that a stream's tuples are in, by the tuples there were."""
        return self._shapes.reached(stream) / max(self._seen.get(stream, 0.0), 1.0)

    def offer(self, fresh: Fresh) -> None:
        """Count the combinations that new rows make."""
        if self._asks and self._only is None:
            self._shapes.offer({feed: float(stop - first) for feed, (first, stop) in fresh.items()})

    def match(self, run: JoinRun, count: int) -> None:
        """Count what a join has found."""
        if self._asks and self._only is None:
            number = self._of_run[run.name]
            self._shapes.matched[number] += count
            self._shapes.given[number] += count * len(run.collectors)

    def end(self, joined: Mapping[str, int]) -> None:
        """After a batch: count its tuples, and let what was counted before weigh less."""
        if not self._asks or (self._only is not None and self._policy != "consumption-rate"):
            return
        self._seen = {name: _MEMORY * seen for name, seen in self._seen.items()}
        for stream, count in joined.items():
            self._seen[stream] = self._seen.get(stream, 0.0) + count
        self._shapes.fade()


def ranks_of(incoming: Mapping[str, NewRows], policy: str) -> Ranks:
    """Who comes before whom: by time, in turns, or, for any other policy, streams one after another."""
    ranks = {}
    for number, (stream, own) in enumerate(incoming.items()):
        for other_number, (other, others) in enumerate(incoming.items()):
            if stream == other:
                continue
            first = other_number < number
            if policy == "timestamp":
                side: Literal["left", "right"] = "right" if first else "left"
                ranks[stream, other] = np.searchsorted(others.ts, own.ts, side=side)
            elif policy == "round-robin":
                ranks[stream, other] = np.minimum(np.arange(first, len(own) + first), len(others))
            else:
                ranks[stream, other] = np.full(len(own), len(others) if first else 0, np.int64)
    return ranks


def interleaved(
    incoming: Mapping[str, NewRows], ranks: Ranks, rows: int | None
) -> Iterator[tuple[dict[str, NewRows], Ranks]]:
    """Cut interleaved streams into pieces of so many tuples that follow each other, with the ranks inside each."""
    total = sum(map(len, incoming.values()))
    if rows is None or total <= rows:
        yield dict(incoming), ranks
        return
    ends = np.arange(0, total + rows, rows)
    cuts = {}
    for stream, own in incoming.items():
        places = np.arange(len(own))
        for other in incoming:
            if other != stream:
                places += ranks[stream, other]
        cuts[stream] = np.searchsorted(places, ends)
    for number, _ in enumerate(pairwise(ends)):
        spans = {stream: slice(own[number], own[number + 1]) for stream, own in cuts.items()}
        inside = {
            (stream, other): before[spans[stream]] - spans[other].start for (stream, other), before in ranks.items()
        }
        yield {stream: own.part(spans[stream].start, spans[stream].stop) for stream, own in incoming.items()}, inside
