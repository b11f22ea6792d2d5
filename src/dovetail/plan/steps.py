"""The joins of an execution plan, with their sources, probe paths and consumers.

A `JoinStep` is one join over *sources*: streams with their filters, which several queries may share. Its inputs are windows, or the
materialized joins of earlier steps, which are read like windows. The sources of a materialized join are sources of the step, because
their tuples are in the windows of their streams. *Consumers* are the queries that read the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from dovetail.errors import PlanError, listed
from dovetail.plan.needs import KeyId, Needs, input_needs, needs_over_sources, source_needs
from dovetail.plan.query_plan import QueryPlan
from dovetail.query.expressions import Column, Expression
from dovetail.query.model import CountWindow, Key, MaterializedWindow, Output, TimeWindow

Spans: TypeAlias = tuple[tuple[str, int], ...]
"""For each source of a materialized join, its window in microseconds."""
Cell: TypeAlias = Sequence[tuple[Key, int, int]]
"""The results that a shard may emit: for each key, the splits of its dimension and the shard's coordinate."""
JOINED = "joined"
"""The group of windows that tuples enter when they arrive."""


@dataclass(frozen=True)
class CountWindowPlan:
    """A count window; `key` and `column` name the code and value of its partition."""

    window: CountWindow
    key: KeyId = ()
    column: str = ""


@dataclass(frozen=True)
class SourceUse:
    """One source of a step: a stream with its window and filters."""

    name: str
    stream: str
    window: TimeWindow | CountWindow
    input: str
    """The input that holds its tuples: the source itself, or a materialized join over it."""
    filters: tuple[Expression, ...] = ()
    """Over no alias."""
    keys: tuple[Expression, ...] = ()
    """Over no alias; a tuple with a NULL key matches nothing."""
    partition: tuple[Expression, Column] | None = None
    """For `[PARTITION BY ...]`, the partition key and its column."""
    complete_from: int = 0
    """First batch whose tuples have every column that the step reads. Backfill ignores older tuples."""

    @property
    def count_window_plan(self) -> CountWindowPlan | None:
        """Its count window, with the code and value of the partition; None for a time window."""
        if not isinstance(self.window, CountWindow):
            return None
        if self.partition is None:
            return CountWindowPlan(self.window)
        key, column = self.partition
        needs = Needs()
        needs.add_part(key)
        return CountWindowPlan(self.window, (str(key),), str(key) if str(key) in needs.columns else str(column))


@dataclass(frozen=True)
class Consumer:
    """A query that reads a step's results."""

    query: str
    sources: Mapping[str, str]
    """The source of each of its aliases."""
    outputs: tuple[Output, ...]
    """Its select list, over sources."""
    same: tuple[int, ...]
    """For each output, the index of the first output with the same value in every result."""
    spans: Mapping[str, int]
    """Microseconds of the query's time windows, by source."""
    cell: Cell = ()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(output.name, output.expression.type) for output in self.outputs])


class StepNeeds(NamedTuple):
    """Columns, codes and indexes that a step needs from its windows."""

    materialized: dict[str, Needs]
    """By materialized input, its needs over the sources of the materialized join."""
    sources: dict[str, Needs]
    """By source of the step."""


@dataclass(frozen=True)
class JoinStep:
    """One join of an execution plan."""

    plan: QueryPlan
    """Over its inputs; a materialized join is one alias, with its name as the stream."""
    sources: tuple[SourceUse, ...]
    consumers: tuple[Consumer, ...]
    materialized_as: str | None = field(default=None, metadata={"name": "state"})
    """Name of the materialized join that holds its matches; None if they only go to queries."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """The source column behind each column of a materialized input."""
    first_batch: int = field(default=0, metadata={"name": "since"})
    """The first batch whose tuples it sees."""
    backfill: bool = False
    """Whether the step also sees tuples that the windows held before that batch."""

    @property
    def name(self) -> str:
        return self.plan.query.name

    @property
    def is_individual(self) -> bool:
        """Whether the step runs one query by its individual plan.

        It has the query's name and aliases, and no other consumer.
        """
        return [consumer.query for consumer in self.consumers] == [self.name]

    @property
    def windows(self) -> dict[str, int]:
        """Microseconds of its time windows, by source."""
        return {source.name: source.window.micros for source in self.sources if isinstance(source.window, TimeWindow)}

    @property
    def materialized_inputs(self) -> dict[str, Spans]:
        """The inputs that are materialized joins, with the windows of their sources."""
        return {
            ref.alias: ref.window.spans for ref in self.plan.query.refs if isinstance(ref.window, MaterializedWindow)
        }

    @property
    def count_window_streams(self) -> tuple[str, ...]:
        """The streams with count windows; results wait for their watermarks."""
        return tuple(sorted({source.stream for source in self.sources if isinstance(source.window, CountWindow)}))

    @property
    def group(self) -> str:
        """The window group that it reads.

        Steps with count windows share one only if they began together: tuples wait in it.
        """
        streams = self.count_window_streams
        return f"settled:{self.first_batch}:{','.join(streams)}" if streams else JOINED

    @cached_property
    def needs(self) -> StepNeeds:
        """The columns, codes and indexes that it needs from its windows."""
        inputs = input_needs(self.plan)
        materialized = {alias: needs_over_sources(inputs[alias], self.columns) for alias in self.materialized_inputs}
        outputs = [output for consumer in self.consumers for output in consumer.outputs]
        keys = [key for consumer in self.consumers for key, _, _ in consumer.cell]
        names = [source.name for source in self.sources]
        sources = source_needs(names, inputs, materialized.values(), outputs, keys)
        for source in self.sources:
            if source.partition is not None:
                sources[source.name].add_part(source.partition[0])
                sources[source.name].add_column(source.partition[1])
        return StepNeeds(materialized, sources)


def check_steps(steps: Sequence[JoinStep], before: Sequence[JoinStep] = ()) -> None:
    """Raise `PlanError` if steps are inconsistent, with each other or with the valid steps `before` them."""
    all_steps = (*before, *steps)
    check_unique("step", [step.name for step in all_steps])
    check_unique("query", [consumer.query for step in all_steps for consumer in step.consumers])
    check_unique("materialized join", [step.materialized_as for step in all_steps if step.materialized_as is not None])
    materialized = {step.materialized_as: step for step in before if step.materialized_as is not None}
    read = {name for step in all_steps for name in step.materialized_inputs}
    for step in steps:
        _check_step(step, materialized)
        if step.materialized_as is not None:
            materialized[step.materialized_as] = step
        if not step.consumers and step.materialized_as not in read:
            raise PlanError(f"step {step.name!r} has no consumer")


def _check_step(step: JoinStep, materialized: Mapping[str, JoinStep]) -> None:
    subject, inputs = f"step {step.name!r}", step.plan.query.aliases
    names = [source.name for source in step.sources]
    check_unique(f"source of {subject}", names)
    check_unique(f"input of {subject}", inputs)
    source_inputs = {source.input for source in step.sources}
    if source_inputs != set(inputs):
        raise PlanError(f"{subject} has inputs {listed(inputs)}; its sources are in {listed(sorted(source_inputs))}")
    for alias, spans in step.materialized_inputs.items():
        if alias not in materialized:
            raise PlanError(f"{subject} reads {alias!r}, which no earlier step materializes")
        actual = {source.name: source.stream for source in step.sources if source.input == alias}
        expected = {source.name: source.stream for source in materialized[alias].sources}
        if actual != expected or dict(spans).keys() != expected.keys():
            raise PlanError(f"{subject} reads {alias!r} with sources {listed(actual)}; it has {listed(expected)}")
    _check_paths(step)
    for consumer in step.consumers:
        used = {*consumer.sources.values(), *consumer.spans, *(key.alias for key, _, _ in consumer.cell)}
        if unknown := used - set(names):
            raise PlanError(
                f"{subject}: query {consumer.query!r} reads {listed(sorted(unknown))}; the sources are {listed(names)}"
            )
        for source, micros in consumer.spans.items():
            if micros > step.windows.get(source, -1):
                raise PlanError(
                    f"{subject}: the window of query {consumer.query!r} on {source!r} is larger than the step's"
                )


def _check_paths(step: JoinStep) -> None:
    inputs = step.plan.query.aliases
    if tuple(path.driver for path in step.plan.paths) != inputs:
        raise PlanError(f"step {step.name!r} needs one path for each of {listed(inputs)}")
    for path in step.plan.paths:
        subject = f"step {step.name!r}: the path of {path.driver!r}"
        if sorted(path.order) != sorted(inputs):
            raise PlanError(f"{subject} does not join each of {listed(inputs)} once")
        if [stage.alias for stage in path.stages if stage.access == "new"] != [path.driver]:
            raise PlanError(f"{subject} has new tuples of other inputs")
        if keyless := [stage.alias for stage in path.stages if stage.access == "hash" and not stage.key]:
            raise PlanError(f"{subject} probes {listed(keyless)} by hash without a key")


def check_unique(kind: str, names: Iterable[str | int | None]) -> None:
    """Raise `PlanError` if a name is repeated."""
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise PlanError(f"a plan has {listed(repeated)} more than once as {kind}")
