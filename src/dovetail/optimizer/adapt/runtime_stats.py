"""What streams and joins are like now, put together from the counters of all shards: what queries are planned again by.

A shard counts, along each of its paths, the partial results that came to a window and the matches, and says how many tuples the window
holds; with all shards together that gives the pairs that were offered. Counters grow until a path is replaced, so what is new is taken
shard by shard and path by path, and then added up, whatever orders the shards run. It is kept by query, not by join: plans change.

A tuple may lie in several shards: a combination of tuples that goes to c shards (`Copies`) was counted c times. A window that others
share may be longer than a join's own, and hold tuples that pass other filters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dovetail.optimizer.adapt.reorder import LEAST_PROBES, fit
from dovetail.optimizer.adapt.selectivity import GraphShape, Shares
from dovetail.optimizer.sharing.model.translate import sources_of
from dovetail.plan.query_plan import PlannerStats, QueryPlan
from dovetail.plan.steps import JOINED, JoinStep
from dovetail.query.model import JoinQuery
from dovetail.stats.counters import JoinFigures, Measurements
from dovetail.stats.probes import ProbeCounts
from dovetail.stats.probes import ProbeKey as Probe

MEMORY = 2000
"""Probes of one kind that are remembered."""
DRIFT = 1.5
"""The factor by which a rate or a selectivity must change to be a drift."""

Copies: TypeAlias = Callable[[str, Collection[str]], int]
"""Of a query and some of its aliases: to how many shards a combination of their tuples goes; of none, how many shards there are."""
_Path: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A join, a driver and an order."""
_Counts: TypeAlias = tuple[tuple[int, int], ...]
"""Partial results that came in, and matches, of each stage."""
_Served: TypeAlias = tuple[JoinStep, str, Mapping[str, tuple[str, ...]]]
"""A step, a query that its matches serve, and by input of the step the query's aliases that it stands for."""
_SLOWEST = 1e-9
"""The least rate that is believed."""


def one_shard(query: str, aliases: Collection[str]) -> int:  # noqa: ARG001
    """The copies of an engine by itself."""
    return 1


@dataclass(frozen=True)
class StatsDrift:
    """Something is not what it was when queries were last planned."""

    what: str
    before: float
    now: float

    def __str__(self) -> str:
        return f"{self.what} was {self.before:.3g}, is {self.now:.3g}"


@dataclass
class RuntimeStats:
    """Rates and selectivities lately."""

    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    """By query and alias: tuples per second of event time that pass its filters."""
    found: dict[str, dict[Probe, ProbeCounts]] = field(default_factory=dict)
    """By query: what probes have found."""
    _before: dict[int, dict[_Path, _Counts]] = field(default_factory=dict)
    time: int | None = None
    """Of the last look, in microseconds of event time."""
    seconds: float = 0.0
    """Of event time between the last two looks."""
    _planned: dict[tuple[str, str], float] = field(default_factory=dict)
    _settled: dict[tuple[str, Probe], float] = field(default_factory=dict)

    def note(
        self, parts: Iterable[tuple[Mapping[int, Measurements], Sequence[JoinStep]]], copies: Copies = one_shard
    ) -> bool:
        """Take note of what shards have counted so far; False if event time has not moved since the last call.

        `parts`: reports by shard, and the steps that these shards run over the same windows.
        """
        known = list(parts)
        figures = [each for reports, _ in known for report in reports.values() for each in report.streams.values()]
        time = max((each.event_time for each in figures if each.event_time is not None), default=None)
        if time is None or (self.time is not None and time <= self.time):
            return False
        self.seconds = 0.0 if self.time is None else (time - self.time) / 1e6
        self.time = time
        for kept in self.found.values():
            for each in kept.values():
                each.age += 1
        for reports, steps in known:
            lately = self._lately(reports, steps)
            if self.seconds:  # else what was counted is about no known time
                self._take(lately, list(_served(steps)), _sizes(reports.values()), copies)
        return self.seconds > 0

    def _lately(self, reports: Mapping[int, Measurements], steps: Sequence[JoinStep]) -> dict[str, _Lately]:
        """What each step has counted since the last call."""
        found = {step.name: _Lately() for step in steps}
        for shard, report in reports.items():
            counters, before = dict(_counters(report, steps)), self._before.get(shard, {})
            self._before[shard] = counters
            for path, stages in counters.items():
                found[path[0]].add(path, _since(stages, before.get(path)))
        return found

    def _take(
        self,
        lately: Mapping[str, _Lately],
        served: Sequence[_Served],
        sizes: Mapping[str, int],
        copies: Copies,
    ) -> None:
        fastest: dict[str, float] = {}
        longest: dict[str, int] = {}
        for step, query, inputs in served:
            for source in step.sources:
                longest[source.stream] = max(step.windows.get(source.name, 1), longest.get(source.stream, 1))
                arrived = lately[step.name].arrived.get(source.name)
                if arrived is not None:
                    (alias,) = inputs[source.name]
                    rate = arrived / copies(query, (alias,)) / self.seconds
                    self.rates[query, alias] = max((self.rates.get((query, alias), rate) + rate) / 2, _SLOWEST)
                    fastest[source.stream] = max(self.rates[query, alias], fastest.get(source.stream, 0.0))
        for step, query, inputs in served:
            streams = {source.name: source.stream for source in step.sources}
            for (joined, name), (probes, matches) in lately[step.name].found.items() if step.group == JOINED else ():
                if name in step.stored_inputs:
                    continue  # its matches with a single window are known from the other side
                (alias,) = inputs[name]
                stream, before = streams[name], frozenset(each for one in joined for each in inputs[one])
                # Of the tuples that the window holds: those inside the step's own window, and of them those that it sees.
                size = sizes.get(stream, 0) / copies(query, (alias,)) * step.windows[name] / longest[stream]
                size *= self.rates.get((query, alias), 1.0) / fastest.get(stream, 1.0)
                once = probes / copies(query, before)
                newer = ProbeCounts(once, once * max(size, 1.0), matches / copies(query, {*before, alias}))
                kept, probe = self.found.setdefault(query, {}), (before, alias)
                kept[probe] = kept.get(probe, ProbeCounts()).followed_by(newer, MEMORY)

    # -- what is known of queries -----------------------------------------------------------------------------------------------

    def known(self, queries: Mapping[str, JoinQuery], plans: Mapping[str, QueryPlan]) -> dict[str, PlannerStats]:
        """By query, what is known of it: as measured, and else as it was told to the planner."""
        shared: dict[str, list[float]] = defaultdict(list)
        names = {
            (name, alias): source.name
            for name, query in queries.items()
            for alias, source in sources_of(query, "").items()
        }
        for key, source in names.items():
            if key in self.rates:
                shared[source].append(self.rates[key])
        known = {}
        for name, query in queries.items():
            told = plans[name].known
            shares = Shares(GraphShape.of(query), told.hints)
            fit(shares, self.found.get(name, {}))
            rates = {
                alias: sum(own) / len(own) if (own := shared.get(names[name, alias])) else told.rates[alias]
                for alias in query.aliases
            }
            known[name] = PlannerStats(rates, shares.hints, told.forced)
        return known

    def drift(self) -> StatsDrift | None:
        """The largest drift since `settle`, if there is one."""
        drifts: list[tuple[float, StatsDrift]] = []
        for (query, alias), rate in self.rates.items():
            before = self._planned.get((query, alias))
            drifts += _drift(f"the rate of {alias!r} in query {query!r}", before, rate)
        for query, kept in self.found.items():
            for (joined, alias), found in kept.items():
                if found.age == 0 and found.probes >= LEAST_PROBES and found.selectivity:
                    what = f"the share of {alias!r} that matches {', '.join(sorted(joined))} in query {query!r}"
                    drifts += _drift(what, self._settled.get((query, (joined, alias))), found.selectivity)
        return max(drifts, key=lambda pair: pair[0])[1] if drifts else None

    def settle(self) -> None:
        """Take what is known now for what queries are planned by."""
        self._planned = dict(self.rates)
        self._settled |= {
            (query, probe): found.selectivity
            for query, kept in self.found.items()
            for probe, found in kept.items()
            if found.selectivity and found.probes >= LEAST_PROBES
        }

    def forget(self, query: str) -> None:
        """Forget a query that is gone: another may get its name."""
        self.found.pop(query, None)
        for known in (self.rates, self._planned, self._settled):
            for key in [key for key in known if key[0] == query]:
                del known[key]  # type: ignore[arg-type]


@dataclass
class _Lately:
    """What a join has counted since the last look, over all shards."""

    arrived: dict[str, int] = field(default_factory=dict)
    """By driver."""
    found: dict[Probe, tuple[float, float]] = field(default_factory=dict)
    """Over its inputs: partial results that came, and matches."""

    def add(self, path: _Path, stages: _Counts) -> None:
        _, driver, order = path
        self.arrived[driver] = self.arrived.get(driver, 0) + stages[0][1]
        for place in range(1, len(order)):
            probe = (frozenset(order[:place]), order[place])
            probes, matches = self.found.get(probe, (0, 0))
            if stages[place][0]:
                self.found[probe] = (probes + stages[place][0], matches + stages[place][1])


def _counters(report: Measurements, steps: Sequence[JoinStep]) -> Iterator[tuple[_Path, _Counts]]:
    for step in steps:
        known: JoinFigures | None = (report.queries if step.is_own else report.joins).get(step.name)
        for driver, path in known.paths.items() if known is not None else ():
            if path and path[0].access == "new":
                counted = tuple((stage.probes, stage.matches) for stage in path)
                yield (step.name, driver, tuple(stage.alias for stage in path)), counted


def _since(now: _Counts, before: _Counts | None) -> _Counts:
    """What was counted between two looks; a path that has counted less than before is another one with the same order."""
    if before is None or any(new[0] < old[0] or new[1] < old[1] for new, old in zip(now, before, strict=True)):
        return now
    return tuple((new[0] - old[0], new[1] - old[1]) for new, old in zip(now, before, strict=True))


def _sizes(reports: Iterable[Measurements]) -> dict[str, int]:
    """By stream, the tuples that the windows of all shards hold."""
    found: dict[str, int] = {}
    for report in reports:
        for stream, window in report.nodes.windows.items():
            found[stream] = found.get(stream, 0) + (window.tuples or 0)
    return found


def _served(steps: Sequence[JoinStep]) -> Iterator[_Served]:
    """Each step with each query that its matches serve."""
    stored = {step.state: step for step in steps if step.state is not None}
    for step in steps:
        for consumer in step.consumers:
            aliases = {source: alias for alias, source in consumer.sources.items()}
            waiting, seen = [step], set[str]()
            while waiting:
                below = waiting.pop()
                if below.name not in seen:
                    seen.add(below.name)
                    inputs: dict[str, tuple[str, ...]] = {}
                    for source in below.sources:
                        inputs[source.input] = (*inputs.get(source.input, ()), aliases[source.name])
                    yield below, consumer.query, inputs
                    waiting += [stored[name] for name in below.stored_inputs]


def _drift(what: str, before: float | None, now: float) -> list[tuple[float, StatsDrift]]:
    """A drift, with its size; what was not known before has not drifted."""
    size = max(now / before, before / now) if before else 1.0
    return [(size, StatsDrift(what, before or now, now))] if size > DRIFT else []
