"""Choose which input of a batch drives next, for any number of joins.

The policies are those of Valsomatzis and Gounaris (section 3.2). `timestamp` and `round-robin` take the inputs' tuples in turn, one
by one. Here they only determine which tuples each tuple sees, so a batch is still joined in pieces. The other policies take whole
buffers, one input after another:

- `declared`: in the order of declaration;
- `consumption-rate`: the input with the fewest results per tuple first (ascending σ_S = |Mjoin| / |S|, figure 3), of all tuples since
  the start: σ_S is a property of a whole stream, so nothing fades;
- `initial-output-size`: the input whose buffer has the most expected results (equation 1, figure 4), chosen again after each buffer;
- `output-rate`: the input with the most expected results per tuple of its buffer.

The paper has one join over streams. Here an input's results are those of all joins that its tuples reach, also through materialized
joins, counted once for every query that consumes them. The selectivity of a join is the number of its matches divided by the number
of combinations of its inputs' rows. Joins over the same inputs are counted together; without any combination the selectivity is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from dovetail._typing import Float64Array, Int64Array
from dovetail.engine.join.step import JoinRun, NewRowRanges
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.window import WindowStore

Ranks: TypeAlias = Mapping[tuple[str, str], Int64Array]
"""For two streams of a batch, how many tuples of the second come before each of the first."""
_Inputs: TypeAlias = tuple[tuple[str, ...], str | None]
"""The streams and materialized joins that a join reads, and the materialized join that it writes."""
_DECAY = 0.9
"""Factor by which each batch reduces the weight of earlier counts."""


class _JoinCounts:
    """Counters of joins as arrays, since there may be hundreds; joins over equal inputs share an entry."""

    def __init__(self, joins: Mapping[_Inputs, Sequence[JoinRun]]) -> None:
        stores = {feed: store for runs in joins.values() for feed, store in runs[0].drivers[0].inputs}
        self.stores = list(stores.values())
        """Rows of each stream and materialized join."""
        self.feeds = {feed: index for index, feed in enumerate(stores)}
        padding, widest = len(self.stores), max((len(feeds) for feeds, _ in joins), default=0)
        inputs = [[*(self.feeds[feed] for feed in feeds), *[padding] * (widest - len(feeds))] for feeds, _ in joins]
        self._inputs = np.array(inputs, np.intp).reshape(len(joins), widest)
        self._is_input = self._inputs < padding
        self.indices = {key: index for index, key in enumerate(joins)}
        self.consumers = np.array([sum(len(run.collectors) for run in runs) for runs in joins.values()], np.float64)
        """Number of queries that consume the results."""
        self.combinations, self.matches, self.results, self.all_results = np.zeros((4, len(joins)))
        """Combinations of rows; matching ones; matches times the queries that consume them, and the same since the start."""
        self._materialized = [(join, self.feeds[feed]) for (_, feed), join in self.indices.items() if feed in stores]
        """Joins whose matches other joins read, and the index of their materialized join in `stores`."""

    def copy_counters(self, before: _JoinCounts) -> None:
        """Continue the counts of joins over the same inputs."""
        for key, join in self.indices.items():
            if (join_before := before.indices.get(key)) is not None:
                self.combinations[join] = before.combinations[join_before]
                self.matches[join] = before.matches[join_before]
                self.results[join] = before.results[join_before]
                self.all_results[join] = before.all_results[join_before]

    def _rows(self, growth: Mapping[str, float]) -> Float64Array:
        """Return the number of rows of each store after `growth`, and 1 for padding."""
        rows = np.array([*[store.rows.head - store.rows.tail for store in self.stores], 1.0])
        for feed, count in growth.items():
            if feed in self.feeds:
                rows[self.feeds[feed]] += count
        return rows

    def _per_row(self, rows: Float64Array) -> Float64Array:
        """Return, by join and input, the combinations of one new row of the input with the other inputs."""
        sizes = rows[self._inputs]
        if rows.min() > 0:
            combinations: Float64Array = sizes.prod(axis=1)[:, None] / sizes
        else:
            columns = [np.delete(sizes, column, axis=1).prod(axis=1) for column in range(sizes.shape[1])]
            combinations = np.stack(columns, axis=1) if columns else sizes
        return np.where(self._is_input, combinations, 0.0)

    def count_combinations(self, new_rows: Mapping[str, float]) -> None:
        """Add the combinations of new rows, whose number is given by stream or materialized join."""
        new = np.zeros(len(self.stores) + 1)
        for feed, count in new_rows.items():
            if feed in self.feeds:
                new[self.feeds[feed]] = count
        self.combinations += (self._per_row(self._rows({})) * new[self._inputs]).sum(axis=1)

    def _per_combination(self, counts: Float64Array, default: Float64Array | float) -> Float64Array:
        """Return counts per combination, or the default for joins without any combination."""
        known = self.combinations > 0
        return np.where(known, counts / np.where(known, self.combinations, 1.0), default)

    def expected_results(self, waiting: Mapping[str, int], growth: Mapping[str, float]) -> dict[str, float]:
        """Return the expected results of each stream's `waiting` tuples, if windows grow by `growth` first."""
        per_row = self._per_row(self._rows(growth))
        results = per_row * self._per_combination(self.results, self.consumers)[:, None]
        if not self._materialized:
            per_tuple = np.bincount(self._inputs.ravel(), results.ravel(), len(self.stores) + 1)
            return {stream: count * per_tuple[self.feeds.get(stream, -1)] for stream, count in waiting.items()}
        matches = per_row * self._per_combination(self.matches, 1.0)[:, None]
        results_by_stream = {}
        for stream, count in waiting.items():
            new = np.zeros(len(self.stores) + 1)
            new[self.feeds.get(stream, -1)] = count
            for join, store in self._materialized:  # its matches are new rows for the joins that read them
                new[store] = matches[join] @ new[self._inputs[join]]
            results_by_stream[stream] = float((results * new[self._inputs]).sum())
        return results_by_stream

    def results_of(self, stream: str) -> float:
        """Return the results since the start of the joins that a stream reaches, also materialized ones."""
        reached = np.zeros(len(self.stores) + 1, bool)
        reached[self.feeds.get(stream, -1)] = True
        reached[-1] = False
        for join, store in self._materialized:
            reached[store] |= reached[self._inputs[join]].any()
        return float(self.all_results[reached[self._inputs].any(axis=1)].sum())

    def decay(self) -> None:
        self.combinations *= _DECAY
        self.matches *= _DECAY
        self.results *= _DECAY


class DriverChoice:
    """Chooses the input whose buffer is joined next, and counts what its tuples match."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._counts = _JoinCounts({})
        self._index_of_run: dict[str, int] = {}
        self._tuples: dict[str, float] = {}
        """Number of joined tuples since the start, by stream."""
        self._uses_counts = policy in ("consumption-rate", "initial-output-size", "output-rate")
        self._only_join: dict[str, WindowStore] | None = None
        """Inputs of the only join, if there is one: its selectivity is a factor of all compared values and need not be counted."""

    def install(self, runs: Iterable[JoinRun]) -> None:
        """Replace the joins; joins over the same inputs keep their counts."""
        joins: dict[_Inputs, list[JoinRun]] = {}
        for run in runs if self._uses_counts else ():
            feeds = sorted(feed for feed, _ in run.drivers[0].inputs)
            joins.setdefault((tuple(feeds), run.step.materialized_as), []).append(run)
        before, self._counts = self._counts, _JoinCounts(joins)
        self._counts.copy_counters(before)
        self._index_of_run = {run.name: self._counts.indices[key] for key, same in joins.items() for run in same}
        self._only_join = None
        if len(joins) == 1:
            inputs = next(iter(joins.values()))[0].drivers[0].inputs
            self._only_join = dict(inputs) if len(dict(inputs)) == len(inputs) else None

    def choose(self, waiting: Mapping[str, int]) -> Iterator[str]:
        """Yield the streams with numbers of `waiting` tuples in join order.

        Each is joined before the next is chosen.
        """
        if self._only_join is not None:
            yield from self._order_of_one_join(waiting, self._only_join)
            return
        remaining = dict(waiting)
        while remaining:
            stream = self._next_stream(remaining, {})
            del remaining[stream]
            yield stream

    def order(self, waiting: Mapping[str, int]) -> list[str]:
        """Return the order in which all streams are chosen if the counts do not change in between."""
        if self._only_join is not None:
            return self._order_of_one_join(waiting, self._only_join)
        remaining, growth, chosen = dict(waiting), dict[str, float](), list[str]()
        while remaining:
            chosen.append(self._next_stream(remaining, growth))
            growth[chosen[-1]] = remaining.pop(chosen[-1])
        return chosen

    def _next_stream(self, waiting: Mapping[str, int], growth: Mapping[str, float]) -> str:
        """Choose among streams with numbers of `waiting` tuples, if windows grow by `growth` first."""
        if len(waiting) == 1 or not self._uses_counts:
            return next(iter(waiting))
        if self._policy == "consumption-rate":
            return min(waiting, key=self._results_per_tuple)
        scores = self._counts.expected_results(waiting, growth)
        if self._policy == "output-rate":
            scores = {stream: results / max(waiting[stream], 1) for stream, results in scores.items()}
        return max(scores, key=scores.__getitem__)

    def _order_of_one_join(self, waiting: Mapping[str, int], windows: Mapping[str, WindowStore]) -> list[str]:
        """Order the streams of a single join by the buffer's size over the window's.

        That is equation 1 without common factors. The score of a stream does not depend on which others have been joined.
        """
        if len(waiting) == 1:
            return [*waiting]
        if self._policy == "consumption-rate":
            return sorted(waiting, key=lambda stream: self._tuples.get(stream, 0.0), reverse=True)
        scores = {}
        for stream, count in waiting.items():
            rows = windows[stream].rows
            scores[stream] = (count if self._policy == "initial-output-size" else 1.0) / (rows.head - rows.tail or 1e-9)
        return sorted(scores, key=scores.__getitem__, reverse=True)

    def _results_per_tuple(self, stream: str) -> float:
        """Return σ_S: results so far that contain a tuple of the stream, per tuple of the stream."""
        return self._counts.results_of(stream) / max(self._tuples.get(stream, 0.0), 1.0)

    def count_combinations(self, new_rows: NewRowRanges) -> None:
        """Count the combinations of new rows with the rows of other inputs."""
        if self._uses_counts and self._only_join is None:
            self._counts.count_combinations({feed: float(stop - first) for feed, (first, stop) in new_rows.items()})

    def count_matches(self, run: JoinRun, count: int) -> None:
        """Count new matches of a join."""
        if self._uses_counts and self._only_join is None:
            index = self._index_of_run[run.name]
            self._counts.matches[index] += count
            self._counts.results[index] += count * len(run.collectors)
            self._counts.all_results[index] += count * len(run.collectors)

    def end_batch(self, joined: Mapping[str, int]) -> None:
        """Count the tuples of a batch, and decay the earlier counts of selectivities."""
        if not self._uses_counts or (self._only_join is not None and self._policy != "consumption-rate"):
            return
        for stream, count in joined.items():
            self._tuples[stream] = self._tuples.get(stream, 0.0) + count
        self._counts.decay()


def rank_arrivals(incoming: Mapping[str, NewRows], policy: str) -> Ranks:
    """Rank the tuples of a batch: by time, in turns, or, for any other policy, one stream after another."""
    ranks = {}
    for position, (stream, rows) in enumerate(incoming.items()):
        for other_position, (other, other_rows) in enumerate(incoming.items()):
            if stream == other:
                continue
            first = other_position < position
            if policy == "timestamp":
                side: Literal["left", "right"] = "right" if first else "left"
                ranks[stream, other] = np.searchsorted(other_rows.ts, rows.ts, side=side)
            elif policy == "round-robin":
                ranks[stream, other] = np.minimum(np.arange(first, len(rows) + first), len(other_rows))
            else:
                ranks[stream, other] = np.full(len(rows), len(other_rows) if first else 0, np.int64)
    return ranks


def split_interleaved(
    incoming: Mapping[str, NewRows], ranks: Ranks, piece_rows: int | None
) -> Iterator[tuple[dict[str, NewRows], Ranks]]:
    """Split interleaved streams into pieces of `piece_rows` tuples, with the ranks inside each piece."""
    total = sum(map(len, incoming.values()))
    if piece_rows is None or total <= piece_rows:
        yield dict(incoming), ranks
        return
    ends = np.arange(0, total + piece_rows, piece_rows)
    cuts = {}
    for stream, rows in incoming.items():
        positions = np.arange(len(rows))
        for other in incoming:
            if other != stream:
                positions += ranks[stream, other]
        cuts[stream] = np.searchsorted(positions, ends)
    for piece, _ in enumerate(pairwise(ends)):
        spans = {stream: slice(cut[piece], cut[piece + 1]) for stream, cut in cuts.items()}
        inside = {
            (stream, other): before[spans[stream]] - spans[other].start for (stream, other), before in ranks.items()
        }
        yield {stream: rows.slice(spans[stream].start, spans[stream].stop) for stream, rows in incoming.items()}, inside
