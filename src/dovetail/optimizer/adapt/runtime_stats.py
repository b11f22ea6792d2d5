"""Current rates and selectivities of running queries, from the counters of all shards.

A shard counts, along each of its paths, the partial results that probe a window and their matches, and reports the tuples in the
window; over all shards this gives the number of pairs. Counters grow until a path is replaced, so increments are computed per shard
and path, and then added up, even if shards run different orders. They are kept by query, not by join, because plans change.

A tuple may be in several shards: a combination of tuples that goes to c shards (`Copies`) is counted c times. A shared window may be
longer than a join's own window, and may contain tuples that the join's filters reject.

These statistics serve the shared plan. Each engine measures separately for its probe orders (`engine.join.watch`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from dovetail.optimizer.adapt.reorder import MIN_PROBES, fit
from dovetail.optimizer.graph.selectivities import PairSelectivities, PredicateIndex
from dovetail.optimizer.sharing.model.translate import sources_of
from dovetail.plan.query_plan import PlannerStats, QueryPlan
from dovetail.plan.steps import JOINED, JoinStep
from dovetail.query.model import JoinQuery
from dovetail.stats.counters import JoinMetrics, Measurements
from dovetail.stats.probes import ProbeCounts, ProbeKey

PLAN_MEMORY_PROBES = 2000
"""The number of recent probes that the counts of one probe cover."""
MIN_MATCHES = 10
"""Matches, found or expected, below which a selectivity does not drift: few of them vary by chance."""
PLAN_DRIFT_FACTOR = 1.5
"""The factor by which a rate or a selectivity must change to count as drift."""

Copies: TypeAlias = Callable[[str, Collection[str]], int]
"""Maps a query and some of its aliases to the number of shards that a combination of their tuples goes to; without aliases, to the
number of shards."""
_Path: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A join, a driver and an order."""
_Counts: TypeAlias = tuple[tuple[int, int], ...]
"""Probes and matches of each stage."""
_StepUse: TypeAlias = tuple[JoinStep, str, Mapping[str, tuple[str, ...]]]
"""A step, a query that its matches serve, and the query's aliases behind each input of the step."""
_MIN_RATE = 1e-9


def one_shard(query: str, aliases: Collection[str]) -> int:  # noqa: ARG001
    """Return the copies of a tuple in a single engine: 1."""
    return 1


class ShardGroupReport(NamedTuple):
    """Measurements of shards that run the same joins over windows of their own."""

    by_shard: Mapping[int, Measurements]
    steps: Sequence[JoinStep]
    """The joins that these shards run."""


@dataclass(frozen=True)
class StatsDrift:
    """A rate or selectivity that changed since the queries were last planned."""

    what: str
    before: float
    now: float

    def __str__(self) -> str:
        return f"{self.what} was {self.before:.3g}, is {self.now:.3g}"


@dataclass
class RuntimeStats:
    """Recent rates and selectivities."""

    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    """Tuples per second of event time that pass the filters, by query and alias."""
    probe_counts: dict[str, dict[ProbeKey, ProbeCounts]] = field(default_factory=dict)
    """By query."""
    _counters: dict[int, dict[_Path, _Counts]] = field(default_factory=dict)
    """Counters at the last update, by shard."""
    time: int | None = None
    """Event time of the last update, in microseconds."""
    seconds: float = 0.0
    """Event time between the last two updates."""
    _planned_rates: dict[tuple[str, str], float] = field(default_factory=dict)
    _planned_selectivities: dict[tuple[str, ProbeKey], float] = field(default_factory=dict)

    def update(self, reports: Sequence[ShardGroupReport], copies: Copies = one_shard) -> bool:
        """Add the counters of all shards; return False if event time has not advanced since the last call."""
        shards = [measured for report in reports for measured in report.by_shard.values()]
        streams = [stream for measured in shards for stream in measured.streams.values()]
        time = max((stream.event_time for stream in streams if stream.event_time is not None), default=None)
        if time is None or (self.time is not None and time <= self.time):
            return False
        self.seconds = 0.0 if self.time is None else (time - self.time) / 1e6
        self.time = time
        for counts_by_probe in self.probe_counts.values():
            for counts in counts_by_probe.values():
                counts.age += 1
        for report in reports:
            increments = self._increments(report)
            if self.seconds:  # before the first update the counters cover an unknown time
                uses, sizes = list(_step_uses(report.steps)), _window_sizes(report.by_shard.values())
                self._add(increments, uses, sizes, copies)
        return self.seconds > 0

    def _increments(self, report: ShardGroupReport) -> dict[str, _Increments]:
        """Return the increments of each step's counters since the last call."""
        increments = {step.name: _Increments() for step in report.steps}
        for shard, measured in report.by_shard.items():
            counters, old_counters = dict(_path_counters(measured, report.steps)), self._counters.get(shard, {})
            self._counters[shard] = counters
            for path, stages in counters.items():
                increments[path[0]].add(path, _subtract(stages, old_counters.get(path)))
        return increments

    def _add(
        self,
        increments: Mapping[str, _Increments],
        uses: Sequence[_StepUse],
        sizes: Mapping[str, int],
        copies: Copies,
    ) -> None:
        fastest: dict[str, float] = {}
        longest: dict[str, int] = {}
        for step, query, inputs in uses:
            for source in step.sources:
                longest[source.stream] = max(step.windows.get(source.name, 1), longest.get(source.stream, 1))
                arrivals = increments[step.name].arrivals.get(source.name)
                if arrivals is not None:
                    (alias,) = inputs[source.name]
                    rate = arrivals / copies(query, (alias,)) / self.seconds
                    self.rates[query, alias] = max((self.rates.get((query, alias), rate) + rate) / 2, _MIN_RATE)
                    fastest[source.stream] = max(self.rates[query, alias], fastest.get(source.stream, 0.0))
        for step, query, inputs in uses:
            if step.group != JOINED:
                continue
            streams = {source.name: source.stream for source in step.sources}
            for (joined, name), (probes, matches) in increments[step.name].probes.items():
                if name in step.materialized_inputs:
                    continue  # its matches with a single window are measured in the other direction
                (alias,) = inputs[name]
                stream, aliases = streams[name], frozenset(alias for item in joined for alias in inputs[item])
                # Of the tuples in the shared window, count those inside the step's own window that pass its filters.
                size = sizes.get(stream, 0) / copies(query, (alias,)) * step.windows[name] / longest[stream]
                size *= self.rates.get((query, alias), 1.0) / fastest.get(stream, 1.0)
                distinct_probes = probes / copies(query, aliases)
                distinct_matches = matches / copies(query, {*aliases, alias})
                newer = ProbeCounts(distinct_probes, distinct_probes * max(size, 1.0), distinct_matches)
                counts, probe = self.probe_counts.setdefault(query, {}), (aliases, alias)
                counts[probe] = counts.get(probe, ProbeCounts()).followed_by(newer, PLAN_MEMORY_PROBES)

    def planner_stats(
        self, queries: Mapping[str, JoinQuery], plans: Mapping[str, QueryPlan]
    ) -> dict[str, PlannerStats]:
        """Return the statistics of each query: measured ones, or else those that its plan was made with."""
        names = {
            (name, alias): source.name
            for name, query in queries.items()
            for alias, source in sources_of(query, "").items()
        }
        rates_by_source: dict[str, list[float]] = defaultdict(list)
        for key, source in names.items():
            if key in self.rates:
                rates_by_source[source].append(self.rates[key])
        stats = {}
        for name, query in queries.items():
            planned = plans[name].stats
            selectivities = PairSelectivities(PredicateIndex.of(query), planned.selectivities)
            fit(selectivities, self.probe_counts.get(name, {}))
            rates = {
                alias: sum(measured) / len(measured)
                if (measured := rates_by_source.get(names[name, alias]))
                else planned.rates[alias]
                for alias in query.aliases
            }
            stats[name] = PlannerStats(rates, selectivities.by_pair, planned.forced)
        return stats

    def drift(self) -> StatsDrift | None:
        """Return the largest drift since `set_baseline`, if any."""
        drifts: list[tuple[float, StatsDrift]] = []
        for (query, alias), rate in self.rates.items():
            planned = self._planned_rates.get((query, alias))
            drifts += _drift(f"the rate of {alias!r} in query {query!r}", planned, rate)
        for query, (joined, alias), counts in self._trusted_counts():
            planned = self._planned_selectivities.get((query, (joined, alias)))
            has_matches = max(counts.matches, (planned or 0.0) * counts.pairs) >= MIN_MATCHES
            if counts.age == 0 and counts.selectivity and has_matches:
                what = f"the selectivity of {alias!r} with {', '.join(sorted(joined))} in query {query!r}"
                drifts += _drift(what, planned, counts.selectivity)
        return max(drifts, key=lambda pair: pair[0])[1] if drifts else None

    def set_baseline(self) -> None:
        """Make the current statistics the baseline of `drift`."""
        self._planned_rates = dict(self.rates)
        for query, probe, counts in self._trusted_counts():
            if counts.selectivity:
                self._planned_selectivities[query, probe] = counts.selectivity

    def _trusted_counts(self) -> Iterator[tuple[str, ProbeKey, ProbeCounts]]:
        for query, counts_by_probe in self.probe_counts.items():
            for probe, counts in counts_by_probe.items():
                if counts.probes >= MIN_PROBES:
                    yield query, probe, counts

    def drop_query(self, query: str) -> None:
        """Remove the statistics of a dropped query, because another may get its name."""
        self.probe_counts.pop(query, None)
        for stats in (self.rates, self._planned_rates, self._planned_selectivities):
            for key in [key for key in stats if key[0] == query]:
                del stats[key]  # type: ignore[arg-type]


@dataclass
class _Increments:
    """Increments of a join's counters since the last update, over all shards."""

    arrivals: dict[str, int] = field(default_factory=dict)
    """By driver."""
    probes: dict[ProbeKey, tuple[float, float]] = field(default_factory=dict)
    """Probes and matches; keys are over the join's inputs."""

    def add(self, path: _Path, stages: _Counts) -> None:
        _, driver, order = path
        self.arrivals[driver] = self.arrivals.get(driver, 0) + stages[0][1]
        for position in range(1, len(order)):
            probe = (frozenset(order[:position]), order[position])
            probes, matches = self.probes.get(probe, (0, 0))
            if stages[position][0]:
                self.probes[probe] = (probes + stages[position][0], matches + stages[position][1])


def _path_counters(measured: Measurements, steps: Sequence[JoinStep]) -> Iterator[tuple[_Path, _Counts]]:
    for step in steps:
        metrics: JoinMetrics | None = (measured.queries if step.is_individual else measured.joins).get(step.name)
        for driver, path in metrics.paths.items() if metrics is not None else ():
            if path and path[0].access == "new":
                counts = tuple((stage.probes, stage.matches) for stage in path)
                yield (step.name, driver, tuple(stage.alias for stage in path)), counts


def _subtract(new: _Counts, old: _Counts | None) -> _Counts:
    """Return the difference; counters that have decreased belong to a new path with the same order."""
    if old is None or any(a < c or b < d for (a, b), (c, d) in zip(new, old, strict=True)):
        return new
    return tuple((a - c, b - d) for (a, b), (c, d) in zip(new, old, strict=True))


def _window_sizes(shards: Iterable[Measurements]) -> dict[str, int]:
    """Return the tuples in the windows of all shards, by stream."""
    sizes: dict[str, int] = {}
    for measured in shards:
        for stream, window in measured.nodes.windows.items():
            sizes[stream] = sizes.get(stream, 0) + (window.tuples or 0)
    return sizes


def _step_uses(steps: Sequence[JoinStep]) -> Iterator[_StepUse]:
    """Yield each step with each query that its matches serve."""
    producers = {step.materialized_as: step for step in steps if step.materialized_as is not None}
    for step in steps:
        for consumer in step.consumers:
            aliases = {source: alias for alias, source in consumer.sources.items()}
            pending, visited = [step], set[str]()
            while pending:
                current = pending.pop()
                if current.name not in visited:
                    visited.add(current.name)
                    inputs: dict[str, tuple[str, ...]] = {}
                    for source in current.sources:
                        inputs[source.input] = (*inputs.get(source.input, ()), aliases[source.name])
                    yield current, consumer.query, inputs
                    pending += [producers[name] for name in current.materialized_inputs]


def _drift(what: str, before: float | None, now: float) -> list[tuple[float, StatsDrift]]:
    """Return the drift with its factor, if it is large enough; a value without a baseline has none."""
    size = max(now / before, before / now) if before else 1.0
    return [(size, StatsDrift(what, before or now, now))] if size > PLAN_DRIFT_FACTOR else []
