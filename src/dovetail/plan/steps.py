"""The joins of a plan as data: over which sources, along which paths, for whom.

A `JoinStep` is one join over *sources*: streams with their filters, which several queries may share. Its inputs are windows, or the
materialized matches of earlier steps, which are read like a window. A source inside a materialized match is still a source of the
step, because its tuples lie in the window of their stream. *Consumers* are the queries that take the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from dovetail.errors import PlanError, listed
from dovetail.plan.needs import KeyId, Needs, input_needs, of_sources, source_needs
from dovetail.plan.query_plan import QueryPlan
from dovetail.query.expressions import Column, Expression
from dovetail.query.model import CountWindow, Key, Output, StoredWindow, TimeWindow

Spans: TypeAlias = tuple[tuple[str, int], ...]
"""For each source of a stored match the microseconds that its tuples take part."""
Cell: TypeAlias = Sequence[tuple[Key, int, int]]
"""Which results a shard may give: for each key into how many parts its axis is cut, and the shard's part."""
JOINED = "joined"
"""The group of windows that tuples enter when they arrive."""


@dataclass(frozen=True)
class Ledger:
    """What a window keeps to know when a row leaves a count window; `key` and `column` name its partition's code and value."""

    window: CountWindow
    key: KeyId = ()
    column: str = ""


@dataclass(frozen=True)
class SourceUse:
    """One source of a step: which tuples of a stream, and for how long."""

    name: str
    stream: str
    window: TimeWindow | CountWindow
    input: str
    """The input that leads to its tuples: the source itself, or a stored sub-join that it is part of."""
    filters: tuple[Expression, ...] = ()
    """Over no alias."""
    keys: tuple[Expression, ...] = ()
    """Over no alias; a tuple with a NULL key matches nothing."""
    partition: tuple[Expression, Column] | None = None
    """For `[PARTITION BY ...]`, the key by which partitions are told apart, and the column."""
    complete_from: int = 0
    """The first batch whose tuples have all columns that the step reads; a backfill sees no earlier ones."""

    @property
    def ledger(self) -> Ledger | None:
        """What its window has to count."""
        if not isinstance(self.window, CountWindow):
            return None
        if self.partition is None:
            return Ledger(self.window)
        key, column = self.partition
        needs = Needs()
        needs.add_part(key)
        return Ledger(self.window, (str(key),), str(key) if str(key) in needs.columns else str(column))


@dataclass(frozen=True)
class Consumer:
    """A query that takes a step's results."""

    query: str
    sources: Mapping[str, str]
    """The source of each of its aliases."""
    outputs: tuple[Output, ...]
    """What it selects, over sources."""
    same: tuple[int, ...]
    """For each output the number of the first that holds the same in every result."""
    spans: Mapping[str, int]
    """Microseconds of its own time windows, by source."""
    cell: tuple[tuple[Key, int, int], ...] = ()
    """Which results a shard may give: for each key of a source into how many parts its axis is cut, and the shard's part."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(output.name, output.expression.type) for output in self.outputs])


@dataclass(frozen=True)
class JoinStep:
    """One join."""

    plan: QueryPlan
    """Over its inputs; a stored sub-join is one alias, and its name is its stream."""
    sources: tuple[SourceUse, ...]
    consumers: tuple[Consumer, ...]
    state: str | None = None
    """The name under which its matches are stored; None if they only go to queries."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """What the columns of stored inputs are: columns of sources."""
    since: int = 0
    """The batch from which on it sees tuples."""
    backfill: bool = False
    """Whether it also sees those that the windows held then."""

    @property
    def name(self) -> str:
        return self.plan.query.name

    @property
    def is_own(self) -> bool:
        """Whether it is one query's own join, by the query's own aliases."""
        return [consumer.query for consumer in self.consumers] == [self.name]

    @property
    def windows(self) -> dict[str, int]:
        """Microseconds of its time windows, by source."""
        return {source.name: source.window.micros for source in self.sources if isinstance(source.window, TimeWindow)}

    @property
    def stored_inputs(self) -> dict[str, Spans]:
        """The inputs that are stored sub-joins, with their sources."""
        return {ref.alias: ref.window.spans for ref in self.plan.query.refs if isinstance(ref.window, StoredWindow)}

    @property
    def frontier(self) -> tuple[str, ...]:
        """The streams with count windows: results wait for their watermarks."""
        return tuple(sorted({source.stream for source in self.sources if isinstance(source.window, CountWindow)}))

    @property
    def group(self) -> str:
        """The name of the windows that it is over: tuples that wait would be seen by a query that comes later."""
        return f"settled:{self.since}:{','.join(self.frontier)}" if self.frontier else JOINED

    @cached_property
    def needs(self) -> tuple[dict[str, Needs], dict[str, Needs]]:
        """What it asks of stored inputs, over their sources, and of its sources."""
        inputs = input_needs(self.plan)
        stored = {alias: of_sources(inputs[alias], self.columns) for alias in self.stored_inputs}
        outputs = [output for consumer in self.consumers for output in consumer.outputs]
        keys = [key for consumer in self.consumers for key, _, _ in consumer.cell]
        names = [source.name for source in self.sources]
        sources = source_needs(names, inputs, stored.values(), outputs, keys)
        for source in self.sources:
            if source.partition is not None:
                sources[source.name].add_part(source.partition[0])
                sources[source.name].add_column(source.partition[1])
        return stored, sources


def check_steps(steps: Sequence[JoinStep], before: Sequence[JoinStep] = ()) -> None:
    """Raise `PlanError` unless steps fit together, and after those `before` them, which do."""
    whole = (*before, *steps)
    once("step", [step.name for step in whole])
    once("query", [consumer.query for step in whole for consumer in step.consumers])
    once("stored sub-join", [step.state for step in whole if step.state is not None])
    stored = {step.state: step for step in before if step.state is not None}
    read = {state for step in whole for state in step.stored_inputs}
    for step in steps:
        _check_step(step, stored)
        if step.state is not None:
            stored[step.state] = step
        if not step.consumers and step.state not in read:
            raise PlanError(f"step {step.name!r} serves nobody")


def _check_step(step: JoinStep, stored: Mapping[str, JoinStep]) -> None:
    place, inputs = f"step {step.name!r}", step.plan.query.aliases
    names = [source.name for source in step.sources]
    once(f"source of {place}", names)
    once(f"input of {place}", inputs)
    led_to = {source.input for source in step.sources}
    if led_to != set(inputs):
        raise PlanError(f"{place} has inputs {listed(inputs)}; its sources lie in {listed(sorted(led_to))}")
    for alias, spans in step.stored_inputs.items():
        if alias not in stored:
            raise PlanError(f"{place} reads {alias!r}, which no step before it stores")
        inside = {source.name: source.stream for source in step.sources if source.input == alias}
        whole = {source.name: source.stream for source in stored[alias].sources}
        if inside != whole or dict(spans).keys() != whole.keys():
            raise PlanError(f"{place} reads {alias!r} with sources {listed(inside)}; it has {listed(whole)}")
    _check_paths(step)
    for consumer in step.consumers:
        used = {*consumer.sources.values(), *consumer.spans, *(key.alias for key, _, _ in consumer.cell)}
        if unknown := used - set(names):
            raise PlanError(f"{place}: query {consumer.query!r} takes {listed(sorted(unknown))}, which it has not")
        for source, micros in consumer.spans.items():
            if micros > step.windows.get(source, -1):
                raise PlanError(
                    f"{place}: the window of query {consumer.query!r} on {source!r} is larger than the step's"
                )


def _check_paths(step: JoinStep) -> None:
    inputs, place = step.plan.query.aliases, f"step {step.name!r}"
    if tuple(path.driver for path in step.plan.paths) != inputs:
        raise PlanError(f"{place} has not one path for each of {listed(inputs)}")
    for path in step.plan.paths:
        if sorted(path.order) != sorted(inputs):
            raise PlanError(f"{place}: the path of {path.driver!r} does not meet each of {listed(inputs)} once")
        if [stage.alias for stage in path.stages if stage.access == "new"] != [path.driver]:
            raise PlanError(f"{place}: the path of {path.driver!r} has others' new tuples")
        if bare := [stage.alias for stage in path.stages if stage.access == "hash" and not stage.key]:
            raise PlanError(f"{place}: the path of {path.driver!r} looks for {listed(bare)} by a key that it has not")


def once(kind: str, names: Iterable[str | int | None]) -> None:
    """Raise `PlanError` if a name stands twice."""
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise PlanError(f"a plan has {listed(repeated)} more than once as {kind}")
