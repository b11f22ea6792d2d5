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
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.runs import Fresh, JoinRun
from dovetail.engine.window_store import Arrivals, WindowStore

Ranks: TypeAlias = Mapping[tuple[str, str], Int64Array]
"""For two streams of a batch, how many tuples of the second come before each of the first."""
_MEMORY = 0.9
"""What was counted weighs so much less with each batch."""


@dataclass(slots=True)
class _Shape:
    """Joins over the same inputs."""

    inputs: Sequence[tuple[str, WindowStore]]
    """For each of them its stream, or stored sub-join, and its rows."""
    state: str | None
    """The stored sub-join that the matches go to."""
    takers: int = 0
    """Queries that take the results."""
    offered: float = 0.0
    """Combinations of rows."""
    matched: float = 0.0
    """Those of them that match."""
    given: float = 0.0
    """Results: matches, once for each query that takes them."""

    def combinations(self, fresh: Mapping[str, float], grown: Mapping[str, float]) -> float:
        """How many combinations new rows make with those of the other inputs, which have `grown` by some."""
        rows = [len(store.rows) + grown.get(feed, 0.0) for feed, store in self.inputs]
        return sum(
            fresh[feed] * prod(rows[:place] + rows[place + 1 :])
            for place, (feed, _) in enumerate(self.inputs)
            if feed in fresh
        )

    def expected(self, combinations: float) -> tuple[float, float]:
        """How many of some combinations match, and how many results that gives."""
        if not self.offered:
            return combinations, combinations * self.takers
        return combinations * self.matched / self.offered, combinations * self.given / self.offered

    def fade(self) -> None:
        self.offered *= _MEMORY
        self.matched *= _MEMORY
        self.given *= _MEMORY


class DriverChoice:
    """Chooses the input whose buffer is joined next, and counts what its tuples match."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._shapes: dict[object, _Shape] = {}
        self._of_run: dict[str, _Shape] = {}
        self._seen: dict[str, float] = {}
        """By stream: tuples that were joined."""
        self._asks = policy in ("consumption-rate", "initial-output-size", "output-rate")
        self._only: dict[str, WindowStore] | None = None
        """The inputs of the only join there is: its selectivity is a factor of all that is compared, and need not be known."""

    def install(self, runs: Iterable[JoinRun]) -> None:
        """Go on with other joins; what was counted of the same inputs stays."""
        before, self._shapes, self._of_run = self._shapes, {}, {}
        for run in runs if self._asks else ():
            inputs = run.drivers[0].targets
            key = (*(feed for feed, _ in inputs), run.step.state)
            shape = self._shapes.get(key)
            if shape is None:
                shape = self._shapes[key] = _Shape(inputs, run.step.state)
                if (known := before.get(key)) is not None:
                    shape.offered, shape.matched, shape.given = known.offered, known.matched, known.given
            shape.takers += len(run.collectors)
            self._of_run[run.name] = shape
        self._only = None
        if len(self._shapes) == 1:
            (shape,) = self._shapes.values()
            self._only = dict(shape.inputs) if len(dict(shape.inputs)) == len(shape.inputs) else None

    def next(self, waiting: Mapping[str, int], grown: Mapping[str, float] | None = None) -> str:
        """Choose among streams with so many tuples `waiting`; windows may be about to have `grown`."""
        if len(waiting) == 1 or not self._asks:
            return next(iter(waiting))
        if self._only is not None:
            return self._next_of_one(waiting, self._only, grown or {})
        if self._policy == "consumption-rate":
            return min(waiting, key=self._results_per_tuple)
        worth = {stream: self._promised(stream, count, grown or {}) for stream, count in waiting.items()}
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

    def _promised(self, stream: str, count: int, grown: Mapping[str, float]) -> float:
        """The results that a buffer is expected to give (equation 1)."""
        fresh, results = {stream: float(count)}, 0.0
        for shape in self._shapes.values():
            matches, given = shape.expected(shape.combinations(fresh, grown))
            if shape.state is not None:
                fresh[shape.state] = matches
            results += given
        return results

    def _results_per_tuple(self, stream: str) -> float:
        """σ_S: results so far that a stream's tuples are in, by the tuples there were."""
        reached, results = {stream}, 0.0
        for shape in self._shapes.values():
            if not reached.isdisjoint(feed for feed, _ in shape.inputs):
                if shape.state is not None:
                    reached.add(shape.state)
                results += shape.given
        return results / max(self._seen.get(stream, 0.0), 1.0)

    def offer(self, fresh: Fresh) -> None:
        """Count the combinations that new rows make."""
        if self._asks and self._only is None:
            counts = {feed: float(stop - first) for feed, (first, stop) in fresh.items()}
            for shape in self._shapes.values():
                shape.offered += shape.combinations(counts, {})

    def match(self, run: JoinRun, count: int) -> None:
        """Count what a join has found."""
        if self._asks and self._only is None:
            shape = self._of_run[run.name]
            shape.matched += count
            shape.given += count * len(run.collectors)

    def end(self, joined: Mapping[str, int]) -> None:
        """After a batch: count its tuples, and let what was counted before weigh less."""
        if not self._asks or (self._only is not None and self._policy != "consumption-rate"):
            return
        self._seen = {name: _MEMORY * seen for name, seen in self._seen.items()}
        for stream, count in joined.items():
            self._seen[stream] = self._seen.get(stream, 0.0) + count
        for shape in self._shapes.values():
            shape.fade()


def ranks_of(incoming: Mapping[str, Arrivals], policy: str) -> Ranks:
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
    incoming: Mapping[str, Arrivals], ranks: Ranks, rows: int | None
) -> Iterator[tuple[dict[str, Arrivals], Ranks]]:
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
