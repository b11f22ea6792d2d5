"""A plan as the engine runs it: joins one after another, each over windows and the stored results of joins before it.

A query that is planned alone is one step over its own aliases. The steps of a `GlobalPlan` are over *sources*, which have the same
names in all queries, and a stored sub-join is one input whose columns are those of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dovetail.plan.nodes import QueryPlan
from dovetail.query.expressions import Column
from dovetail.query.model import JoinQuery, Key, StoredWindow, StreamRef, TimeWindow

Cell: TypeAlias = Sequence[tuple[Key, int, int]]
"""Which results a shard may emit: for each key, into how many parts its axis is cut, and the shard's part."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A query that takes its results from a step."""

    query: JoinQuery
    sources: Mapping[str, str]
    """The source of each alias."""

    @property
    def spans(self) -> dict[str, int]:
        """Microseconds of its time windows, by source."""
        windows = {self.sources[ref.alias]: ref.window for ref in self.query.refs}
        return {source: window.micros for source, window in windows.items() if isinstance(window, TimeWindow)}


@dataclass(frozen=True, slots=True)
class JoinStep:
    """One join: over its inputs as it is probed, and over their sources as its results are described."""

    plan: QueryPlan
    """Over the inputs; a stored sub-join is one alias, and its name is its stream."""
    flat: JoinQuery
    """The same join over sources only: which filters and keys their tuples must have."""
    takers: tuple[Taker, ...]
    state: str | None = None
    """The name under which its results are stored; None if they only go to queries."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """What the columns of stored inputs are: columns of sources."""

    @classmethod
    def single(cls, plan: QueryPlan) -> JoinStep:
        """The one step of a query that is planned alone."""
        return cls(plan, plan.query, (Taker(plan.query, {alias: alias for alias in plan.query.aliases}),))

    @property
    def is_alone(self) -> bool:
        """Whether it is one query's own plan."""
        return self.flat is self.takers[0].query if self.takers else False

    @property
    def name(self) -> str:
        return self.plan.query.name

    @property
    def windows(self) -> dict[str, int]:
        """Microseconds of its time windows, by source."""
        return {ref.alias: ref.window.micros for ref in self.flat.refs if isinstance(ref.window, TimeWindow)}

    def narrowed(self, windows: Mapping[str, int]) -> JoinStep:
        """The same join with smaller time windows."""
        if windows == self.windows:
            return self
        query = replace(self.plan.query, refs=_narrowed(self.plan.query.refs, windows))
        return replace(
            self,
            plan=replace(self.plan, query=query),
            flat=replace(self.flat, refs=_narrowed(self.flat.refs, windows)),
        )

    @property
    def stored_inputs(self) -> dict[str, tuple[str, ...]]:
        """The inputs that are stored sub-joins, with their sources."""
        return {
            ref.alias: tuple(source for source, _ in ref.window.spans)
            for ref in self.plan.query.refs
            if isinstance(ref.window, StoredWindow)
        }


def _narrowed(refs: tuple[StreamRef, ...], windows: Mapping[str, int]) -> tuple[StreamRef, ...]:
    found = []
    for ref in refs:
        window = ref.window
        if isinstance(window, StoredWindow):
            window = replace(window, spans=tuple((source, windows[source]) for source, _ in window.spans))
        elif isinstance(window, TimeWindow):
            window = TimeWindow(windows[ref.alias])
        found.append(replace(ref, window=window))
    return tuple(found)
