"""The results that queries have lost because tuples were shed, over all plans of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from dovetail._typing import Array
from dovetail.engine.change.adopt import InstalledPlan
from dovetail.engine.join.gather import MatchRows
from dovetail.engine.join.step import JoinRun
from dovetail.engine.kernels.roster import Incoming
from dovetail.engine.keys import combine
from dovetail.engine.shedding.join_sample import JoinSample, SampleInput, SampleState, digest_of
from dovetail.engine.shedding.shape import RosterShape
from dovetail.plan.sheddable import common_key
from dovetail.stats.recall import LossEstimate

Loss: TypeAlias = LossEstimate | str
"""How many results were lost, or why that is unknown."""
_CHANGED = "its join was changed while tuples were being shed"


@dataclass(frozen=True, slots=True)
class ResultLossesMark:
    """ResultLosses at a savepoint."""

    samples: Mapping[str, tuple[JoinSample, SampleState]]
    earlier: Mapping[str, Loss]
    uncounted: Mapping[str, float]


class ResultLosses:
    """Estimates what each query has lost, from a sample of the keys of its join."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.samples: dict[str, JoinSample] = {}
        """By join, once tuples are shed."""
        self.earlier: dict[str, Loss] = {}
        """By query: losses in joins that it no longer reads."""
        self.uncounted: dict[str, float] = {}
        """By query that reads a join whose sample is older: results that were lost before."""
        self.installed = InstalledPlan()
        self._shape = RosterShape((), (), (), (), ())
        self._heads: Mapping[str, int] = {}

    def begin(self, shape: RosterShape, held: Incoming, capacity: int) -> None:
        """Begin to count losses when windows hold all tuples that later results need; samples may have `capacity` tuples."""
        self._shape = shape
        for step, inputs in self._inputs().items():
            if step not in self.samples:
                self.samples[step] = JoinSample(inputs, capacity, self._seed)
                self.samples[step].begin(held)
        self._connect()

    def take_in(self, incoming: Incoming) -> None:
        """Let tuples arrive, before it is decided what is shed."""
        for sample in self.samples.values():
            sample.take_in(incoming)

    def advance(self, heads: Mapping[str, int]) -> None:
        """Note the largest event times of streams, after a batch."""
        self._heads = heads
        for sample in self.samples.values():
            sample.advance(heads)

    def install(self, installed: InstalledPlan, shape: RosterShape, capacity: int) -> None:
        """Continue under another plan: samples of joins that both plans have continue."""
        losses, before = {query: self.of(query) for query in self.installed.queries}, self.installed
        old, self.installed, self._shape = self._samples_by_query(), installed, shape
        if self.samples:
            carried = {sample.digest: sample for sample in self.samples.values()}
            self.samples = {}
            for step, inputs in self._inputs().items():
                sample = carried.get(digest_of(inputs))
                if sample is not None:
                    sample.inputs = inputs
                elif all(_is_new(query, installed, before) for query in installed.runs[step].collectors):
                    sample = JoinSample(inputs, capacity, self._seed)
                if sample is not None:
                    self.samples[step] = sample
            self._rebase({query: loss for query, loss in losses.items() if query in installed.queries}, old)
        self._connect()

    def _rebase(self, losses: Mapping[str, Loss], old: Mapping[str, JoinSample]) -> None:
        """Make the samples of queries that read another one now continue the `losses` so far."""
        new = self._samples_by_query()
        kept = {query for query in losses if new.get(query) is old.get(query)}
        self.earlier = {query: loss for query, loss in self.earlier.items() if query in kept}
        self.uncounted = {query: lost for query, lost in self.uncounted.items() if query in kept}
        for query in new.keys() - kept:
            estimate = new[query].estimate(self._heads)
            self.uncounted[query] = estimate.middle if isinstance(estimate, LossEstimate) else 0.0
        for query in losses.keys() - kept:
            self.earlier[query] = losses[query] if query in new else _CHANGED

    def of(self, query: str) -> Loss:
        """Return how many results a query has lost."""
        run = self.installed.queries[query]
        if (why := why_unknown(run, query)) is not None:
            return why
        earlier = self.earlier.get(query, LossEstimate())
        sample = self.samples.get(run.name)
        estimate = sample.estimate(self._heads) if sample is not None else LossEstimate()
        if isinstance(earlier, str) or isinstance(estimate, str):
            return earlier if isinstance(earlier, str) else estimate
        missing = max(0.0, estimate.middle - self.uncounted.get(query, 0.0))
        return earlier + LossEstimate(missing, estimate.below, estimate.above)

    def restore(
        self,
        shape: RosterShape,
        samples: Mapping[str, Mapping[str, Array]],
        losses: Mapping[str, Loss],
        earlier: Mapping[str, Loss],
        uncounted: Mapping[str, float],
        capacity: int,
    ) -> None:
        """Continue the samples of joins, by their digests; a query whose sample is missing has `losses` so far."""
        self._shape = shape
        for step, inputs in self._inputs().items():
            if (arrays := samples.get(digest_of(inputs))) is not None:
                self.samples[step] = JoinSample(inputs, capacity, self._seed)
                self.samples[step].restore(arrays)
        sampled = self._samples_by_query()
        self.earlier = {query: loss for query, loss in earlier.items() if query in sampled}
        for query, loss in losses.items():
            if (
                query not in sampled
                and loss != LossEstimate()
                and why_unknown(self.installed.queries[query], query) is None
            ):
                self.earlier[query] = loss
        self.uncounted = {query: lost for query, lost in uncounted.items() if query in sampled}
        self._connect()

    # -- savepoints -------------------------------------------------------------------------------------------------------------

    def mark(self) -> ResultLossesMark:
        states = {step: (sample, sample.state) for step, sample in self.samples.items()}
        return ResultLossesMark(states, dict(self.earlier), dict(self.uncounted))

    def rollback(self, mark: ResultLossesMark) -> None:
        self.samples = {step: sample for step, (sample, _) in mark.samples.items()}
        for sample, state in mark.samples.values():
            sample.state = state
        self.earlier, self.uncounted = dict(mark.earlier), dict(mark.uncounted)

    # -- joins ------------------------------------------------------------------------------------------------------------------

    def _inputs(self) -> dict[str, tuple[SampleInput, ...]]:
        """By join with a common key: its inputs."""
        return {
            table.step: tuple(
                SampleInput(use, place, self._shape.streams.index(use.stream), self._shape.lateness_of(use.stream))
                for stream in self._shape.streams
                for place, use in enumerate(self._shape.by_stream[stream])
                if use.table == number
            )
            for number, table in enumerate(self._shape.tables)
            if table.whole
        }

    def _samples_by_query(self) -> dict[str, JoinSample]:
        queries = self.installed.queries
        return {query: self.samples[run.name] for query, run in queries.items() if run.name in self.samples}

    def _connect(self) -> None:
        """Let samples count the results of their joins."""
        for step, sample in self.samples.items():
            run = self.installed.runs[step]
            run.on_results = partial(_count, sample, run)


def _count(sample: JoinSample, run: JoinRun, rows: MatchRows) -> None:
    """Count results that a join gives, by the codes of their keys."""
    use = sample.inputs[0].use
    codes = run.source_rows[use.source].store.codes
    sample.count_given(combine([rows.array(use.source, codes[part]).view(np.uint64) for part in use.parts]))


def _is_new(query: str, installed: InstalledPlan, before: InstalledPlan) -> bool:
    """Whether a query sees only tuples that arrive from now on."""
    if query not in before.queries:
        return True
    return installed.queries[query].step.since > before.queries[query].step.since


def why_unknown(run: JoinRun, query: str) -> str | None:
    """Return why the loss of a query that takes the results of a join cannot be known; None if it can."""
    joined, step = run.plan.query, run.step
    if not common_key(joined):
        return "no column is equal in all its aliases"
    if joined.conditions:
        return f"it has a condition beside its common key, {joined.conditions[0].text}"
    if joined.inexact_equalities:
        return "it compares values of different types"
    consumer = next(each for each in step.consumers if each.query == query)
    if consumer.cell:
        return "other shards give some of the results that this one could"
    if any(consumer.spans[source] < micros for source, micros in step.windows.items()):
        return "its windows are smaller than those of the join that it takes its results from"
    return None
