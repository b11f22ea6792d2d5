"""The results that queries have lost because tuples were shed, over all plans of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from dovetail._typing import Array
from dovetail.engine.change.adopt import InstalledPlan
from dovetail.engine.join.gather import MatchRows
from dovetail.engine.join.step import JoinRun
from dovetail.engine.kernels.tuple_table import TupleBatch
from dovetail.engine.keys import combine
from dovetail.engine.shedding import join_sample
from dovetail.engine.shedding.join_sample import JoinSample, SampleInput, SampleState
from dovetail.engine.shedding.layout import TableLayout
from dovetail.plan.sheddable import common_key
from dovetail.stats.recall import LossEstimate

Loss: TypeAlias = LossEstimate | str
"""How many results were lost, or why that is unknown."""
REPLACED = "its join was replaced while tuples were being shed"


@dataclass(frozen=True, slots=True)
class SerializedLosses:
    """Losses as they are serialized."""

    is_counting: bool
    samples: Mapping[tuple[str, str], Mapping[str, Array]]
    """Arrays of samples by join and signature."""
    losses: Mapping[str, Loss]
    """By query, all of them."""
    earlier: Mapping[str, Loss]
    uncounted: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LossesSavepoint:
    """Losses at a savepoint."""

    is_counting: bool
    installed: InstalledPlan
    layout: TableLayout
    samples: Mapping[str, tuple[JoinSample, tuple[SampleInput, ...], SampleState]]
    earlier: Mapping[str, Loss]
    uncounted: Mapping[str, float]


class ResultLosses:
    """Estimates what each query has lost, from a sample of the keys of its join."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.is_counting = False
        """Whether tuples have been shed, so that losses are counted."""
        self.samples: dict[str, JoinSample] = {}
        """By join."""
        self.earlier: dict[str, Loss] = {}
        """By query: losses in joins that it no longer reads."""
        self.uncounted: dict[str, float] = {}
        """By query that reads a join whose sample is older: results that were lost before."""
        self._installed = InstalledPlan()
        self._layout = TableLayout((), (), (), (), ())
        self._max_event_times: Mapping[str, int] = {}

    def begin(self, layout: TableLayout, held: Callable[[], Iterator[TupleBatch]], capacity: int) -> None:
        """Begin to count losses when windows hold all tuples that later results need; samples may have `capacity` tuples."""
        self._layout = layout
        if not self.is_counting:
            self.is_counting = True
            inputs_by_join = self._inputs()
            for step, inputs in inputs_by_join.items():
                self.samples[step] = self._new_sample(step, inputs, capacity, len(inputs_by_join))
                self.samples[step].begin(held())
        self._connect()

    def add_tuples(self, incoming: TupleBatch) -> None:
        """Add new tuples, before any are shed."""
        for sample in self.samples.values():
            sample.add_tuples(incoming)

    def advance(self, max_event_times: Mapping[str, int]) -> None:
        """Note the largest event times of streams, after a batch."""
        self._max_event_times = max_event_times
        for sample in self.samples.values():
            sample.advance(max_event_times)

    def install(self, installed: InstalledPlan, layout: TableLayout | None, capacity: int) -> None:
        """Continue under another plan: samples of joins that both plans have continue. `layout` is needed while losses are counted."""
        before, old = self._installed, self.samples
        losses = {query: self.of(query) for query in before.queries} if self.is_counting else {}
        read_before = self._samples_by_query()
        self._installed = installed
        if self.is_counting:
            assert layout is not None  # noqa: S101 - see above
            self._layout = layout
            inputs_by_join, spare = self._inputs(), dict(old)
            self.samples = {}
            for step, inputs in inputs_by_join.items():
                sample = _carried(spare, step, self._signature(step, inputs))
                if sample is not None:
                    sample.inputs = inputs
                elif all(_is_new(query, installed, before) for query in installed.runs[step].collectors):
                    sample = self._new_sample(step, inputs, capacity, len(inputs_by_join))
                if sample is not None:
                    self.samples[step] = sample
            self._rebase({query: loss for query, loss in losses.items() if query in installed.queries}, read_before)
        else:
            self._keep({query for query in installed.queries if query in before.queries})
        self._connect()

    def _rebase(self, losses: Mapping[str, Loss], read_before: Mapping[str, JoinSample]) -> None:
        """Let queries that read another sample now continue the `losses` so far."""
        read_now = self._samples_by_query()
        kept = {query for query in losses if read_now.get(query) is read_before.get(query)}
        self._keep(kept)
        for query, sample in read_now.items():
            if query not in kept:
                loss = sample.estimate(self._max_event_times)
                if isinstance(loss, str):
                    self.earlier[query] = loss
                else:
                    self.uncounted[query] = loss.middle
        for query in losses.keys() - kept:
            if query not in self.earlier:
                self.earlier[query] = losses[query] if query in read_now else REPLACED

    def _keep(self, queries: Iterable[str]) -> None:
        self.earlier = {query: self.earlier[query] for query in queries if query in self.earlier}
        self.uncounted = {query: self.uncounted[query] for query in queries if query in self.uncounted}

    def of(self, query: str) -> Loss:
        """Return how many results a query has lost."""
        run = self._installed.queries[query]
        if (why := why_unknown(run, query)) is not None:
            return why
        earlier, sample = self.earlier.get(query), self.samples.get(run.name)
        if sample is None:
            return earlier or (REPLACED if self.is_counting else LossEstimate())
        estimate = sample.estimate(self._max_event_times)
        if isinstance(earlier, str) or isinstance(estimate, str):
            return earlier if isinstance(earlier, str) else estimate
        missing = max(0.0, estimate.middle - self.uncounted.get(query, 0.0))
        return (earlier or LossEstimate()) + LossEstimate(missing, estimate.below, estimate.above)

    def restore(self, layout: TableLayout, stored: SerializedLosses, capacity: int) -> None:
        """Continue stored samples; a query whose sample is missing has its losses so far."""
        self._layout, self.is_counting = layout, stored.is_counting
        inputs_by_join, spare = self._inputs(), dict(stored.samples)
        for step, inputs in inputs_by_join.items():
            signature = self._signature(step, inputs)
            key = next((key for key in sorted(spare, key=lambda key: key[0] != step) if key[1] == signature), None)
            if key is not None:
                self.samples[step] = self._new_sample(step, inputs, capacity, len(inputs_by_join))
                self.samples[step].restore(spare.pop(key))
        sampled = self._samples_by_query()
        for query in self._installed.queries:
            if query not in sampled and query in stored.losses and self.is_counting:
                self.earlier[query] = stored.losses[query]
            elif query in stored.earlier:
                self.earlier[query] = stored.earlier[query]
            if query in sampled and query in stored.uncounted:
                self.uncounted[query] = stored.uncounted[query]
        self._connect()

    # -- savepoints -------------------------------------------------------------------------------------------------------------

    def savepoint(self) -> LossesSavepoint:
        samples = {step: (sample, sample.inputs, sample.state) for step, sample in self.samples.items()}
        return LossesSavepoint(
            self.is_counting, self._installed, self._layout, samples, dict(self.earlier), dict(self.uncounted)
        )

    def rollback(self, saved: LossesSavepoint) -> None:
        self.is_counting, self._installed, self._layout = saved.is_counting, saved.installed, saved.layout
        self.samples = {}
        for step, (sample, inputs, state) in saved.samples.items():
            sample.inputs, sample.state = inputs, state
            self.samples[step] = sample
        self.earlier, self.uncounted = dict(saved.earlier), dict(saved.uncounted)
        self._connect()

    # -- joins ------------------------------------------------------------------------------------------------------------------

    def _inputs(self) -> dict[str, tuple[SampleInput, ...]]:
        """The inputs of each join of which some query's losses can be known."""
        return {
            key_table.step: tuple(
                SampleInput(
                    reader, position, self._layout.streams.index(reader.stream), self._layout.lateness_of(reader.stream)
                )
                for stream in self._layout.streams
                for position, reader in enumerate(self._layout.by_stream[stream])
                if reader.key_table == table_number
            )
            for table_number, key_table in enumerate(self._layout.key_tables)
            if key_table.covers_join
            and any(why_unknown(run, query) is None for run, query in self._readers(key_table.step))
        }

    def _readers(self, step: str) -> list[tuple[JoinRun, str]]:
        run = self._installed.runs[step]
        return [(run, query) for query in run.collectors]

    def _new_sample(self, step: str, inputs: tuple[SampleInput, ...], capacity: int, joins: int) -> JoinSample:
        """Return an empty sample; all joins together may follow `capacity` tuples, or `MIN_SAMPLE` if that is more."""
        return JoinSample(
            inputs, max(join_sample.MIN_SAMPLE, capacity) // joins, self._seed, self._signature(step, inputs)
        )

    def _signature(self, step: str, inputs: tuple[SampleInput, ...]) -> str:
        """Return a digest of the tuples and keys that a join's sample follows."""
        plan = self._installed.runs[step].step
        sources = {source.name: source for source in plan.sources}
        parts: list[object] = [self._seed, plan.first_batch, plan.backfill]
        for entry in inputs:
            source = sources[entry.reader.source]
            conditions = [str(expression) for expression in (*source.filters, *source.keys)]
            parts += [source.stream, entry.reader.span, conditions, source.complete_from, entry.reader.key_parts]
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def _samples_by_query(self) -> dict[str, JoinSample]:
        queries = self._installed.queries
        return {query: self.samples[run.name] for query, run in queries.items() if run.name in self.samples}

    def _connect(self) -> None:
        """Let samples, and no others, count the results of their joins."""
        for step, run in self._installed.runs.items():
            sample = self.samples.get(step)
            run.on_results = None if sample is None else partial(_count, sample, run)


def _carried(samples: dict[str, JoinSample], step: str, signature: str) -> JoinSample | None:
    """Take the sample with a signature out of `samples`, that of the same join if there are several."""
    for name in sorted(samples, key=lambda name: name != step):
        if samples[name].signature == signature:
            return samples.pop(name)
    return None


def _count(sample: JoinSample, run: JoinRun, rows: MatchRows) -> None:
    """Count results that a join gives, by the codes of their keys."""
    reader = sample.inputs[0].reader
    codes = run.source_rows[reader.source].store.codes
    sample.count_given(combine([rows.array(reader.source, codes[part]).view(np.uint64) for part in reader.key_parts]))


def _is_new(query: str, installed: InstalledPlan, before: InstalledPlan) -> bool:
    """Whether a query sees only tuples that arrive from now on."""
    if query not in before.queries:
        return True
    return installed.queries[query].step.first_batch > before.queries[query].step.first_batch


def why_unknown(run: JoinRun, query: str) -> str | None:
    """Return why the loss of a query that reads the results of a join cannot be known; None if it can."""
    joined, step = run.plan.query, run.step
    if not common_key(joined):
        return "no column is equal in all its aliases"
    if joined.conditions:
        return f"it has a condition beside its common key, {joined.conditions[0].text}"
    if joined.inexact_equalities:
        return "it compares values of different types"
    consumer = next(each for each in step.consumers if each.query == query)
    if consumer.cell:
        return "several shards could give the same result"
    if any(consumer.spans[source] < micros for source, micros in step.windows.items()):
        return "it shares a join with larger windows"
    return None
