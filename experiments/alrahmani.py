"""Alrahmani: "Generating Qualified Plans for Multiple Queries in Data Stream Systems", chapter 4 (figures 4-1 to 4-11).

Ten queries over twenty streams are planned together in four scenarios: without limits, with a limit on CPU, on memory, on both.
How much CPU and memory do the plans of the thesis's method (`shared`), of its two baselines (`naive`, `shared-naive`) and of ours
(`exchange`) take, and how long does planning take? Rates and selectivities are those of the thesis's appendix A, windows are 10
s, prices are those of its table 4-2, and memory is counted in tuples. Nothing is run: nine predicates would mean 10^15 results
per second.

What the thesis leaves out, and what we take:

- queries: the appendix's predicates form one tree over all streams. We draw a connected part of it with p / 0.6 predicates, then
  queries of p connected predicates from that part, until together they have all of it. So the mean over predicates of (queries that
  have it / queries) is p / (p / 0.6) = 0.6, the sharing ratio, but for rounding. (The printed ratio is always 1 for equal windows.)
- limits: no figures are printed, so there are two kinds. *Loose* ones let every method find a plan, so that what they take can be
  compared: memory is `MEMORY` times what naive n-ary joins need, which share nothing; with both limited, the geometric mean of that
  and of what naive binary trees need. CPU is the tightest of `LADDER` times what naive binary trees need under which `naive` still
  finds a plan. *Tight* ones lie between n-ary joins and binary trees that share: the mean of the CPU of the two, and the geometric
  mean of their memory. The former alone take too much CPU, the latter too much memory, so a plan has to be a mixture.
- the baselines as printed (`alrahmani_printed`) stand beside the mended ones, under limits of a third kind: what is *sufficient* is
  a finite limit, 1 to `SUFFICIENT` times what the plans need that need most of it (CPU: naive n-ary joins; memory: naive binary
  trees), since allocations and table 3-1 compare with limits. What is limited: CPU, and memory where both are, is the geometric mean
  of what naive n-ary joins and naive binary trees need; memory alone is `MEMORY` times what naive n-ary joins need.
- figures 4-1 and 4-2: 5 queries over the 12 streams of A.1, both limited, tightly. Figure 4-11: 2, 4, 8 and 16 predicates are not in
  the appendix, so rates, selectivities and the tree are drawn from table 4-1's ranges; 16 predicates out of 19 cannot have a ratio
  below 16 / 19.

With these statistics a tuple finds about 50 partners in each window, so nearly all CPU goes into final results, which no plan avoids.
To see what plans differ in, two scenarios are run again with every selectivity divided by `DIVISOR`: about one partner each.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from typing import Any, Literal, TypeAlias

from rich.console import Console

import dovetail as dt
from dovetail.config import Strategy
from experiments import alrahmani_optimum, alrahmani_printed
from experiments.points import Points

STRATEGIES: tuple[Strategy, ...] = ("naive", "shared-naive", "shared", "exchange")
QueryOrder: TypeAlias = Literal["heaviest", "lightest", "shared-predicate"]
ORDERS: tuple[QueryOrder, ...] = ("heaviest", "lightest", "shared-predicate")
SCENARIOS = {"none": "A.2", "both": "A.3", "memory": "A.4", "cpu": "A.5"}
"""What is limited, and where its statistics stand."""
TIGHTENED = ("both", "memory", "cpu")
"""Scenarios that are run a second time with tight limits."""
SPARSE = ("none", "both")
"""Scenarios that are run a second time, with every selectivity divided by `DIVISOR`."""
TIGHT = ("orders", "tight")
"""Experiments with tight limits."""
DIVISOR = 50
DELAYS = {2: "none", 4: "memory", 8: "cpu", 16: "both"}
"""Figure 4-11: predicates, and what is limited."""
SMALL = 50
"""Small cases, planned exactly as well, for each draw of the others."""
WINDOW = 10.0
RATIO = 0.6
MEMORY = 1.05
SUFFICIENT = 1.5
LADDER = (1.0, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 8.0)
Queries: TypeAlias = dict[str, dt.JoinGraph]
Edge: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Grid:
    """What is run."""

    draws: int = 30
    predicates: tuple[int, ...] = (3, 5, 7, 9)
    delays: tuple[int, ...] = (2, 4, 8, 16)
    seed: int = 2015

    def points(self) -> Iterator[Point]:
        """Figures 4-1 and 4-2, 4-3 to 4-10, these with tight limits, as printed, and with selective predicates, 4-11, small cases."""
        yield Point("orders", "both", 5, 5)
        for scenario in SCENARIOS:
            for predicates in self.predicates:
                yield Point("strategies", scenario, predicates, 10)
        for scenario in TIGHTENED:
            for predicates in self.predicates:
                yield Point("tight", scenario, predicates, 10)
        for scenario in TIGHTENED:
            for predicates in self.predicates:
                yield Point("printed", scenario, predicates, 10)
        for scenario in SPARSE:
            for predicates in self.predicates:
                yield Point("selective", scenario, predicates, 10)
        for predicates in self.delays:
            yield Point("delay", DELAYS[predicates], predicates, 10)
        yield Point("optimum", "both", 3, 3)


@dataclass(frozen=True)
class Point:
    """One experiment with one number of predicates per query."""

    experiment: str
    scenario: str
    predicates: int
    queries: int

    @property
    def name(self) -> str:
        return f"{self.experiment}-{self.scenario}-{self.predicates:02d}"


QUICK = Grid(draws=3, predicates=(3, 5), delays=(2, 4))


def run(console: Console, points: Points, grid: Grid) -> dict[Point, list[dict[str, Any]]]:
    """Compute all points that are not there yet."""
    results = points.fill(console, grid.points(), lambda point: {"draws": run_point(point, grid)})
    return {point: found["draws"] for point, found in results.items()}


def run_point(point: Point, grid: Grid) -> list[dict[str, Any]]:
    """Plan all draws of a point."""
    if point.experiment == "optimum":
        return alrahmani_optimum.cases(SMALL * grid.draws, grid.seed)
    draws = []
    for number in range(grid.draws):
        rng = random.Random(f"{grid.seed} {point.name} {number}")  # noqa: S311 - replayable
        queries = drawn_queries(statistics(point, rng), point, rng)
        draws.append(run_draw(point, queries, rng.uniform(1, SUFFICIENT)))
    return draws


def run_draw(point: Point, queries: Queries, sufficient: float) -> dict[str, Any]:
    """Plan one set of queries with every strategy, or order, under the limits of its scenario."""
    shared = shared_costs(queries)
    if point.experiment == "printed":
        limits = finite_limits(queries, point.scenario, sufficient)
    elif point.experiment in TIGHT:
        limits = tight_limits(shared, point.scenario)
    else:
        limits = loose_limits(queries, point.scenario)
    budget = dt.Budget(limits["cpu"], limits["memory"])
    plans: dict[str, Any]
    if point.experiment == "orders":
        plans = {order: timed_plan(queries, budget, "shared", order) for order in ORDERS}
    else:
        plans = {strategy: timed_plan(queries, budget, strategy) for strategy in STRATEGIES}
    if point.experiment == "printed":
        plans |= alrahmani_printed.printed(queries, limits["cpu"], limits["memory"])
    drawn = {"limits": limits, "shared": shared, "ratio": sharing_ratio(queries)}
    return {**drawn, "unavoidable": unavoidable(queries), "plans": plans}


def timed_plan(
    queries: Queries, budget: dt.Budget, strategy: Strategy, order: QueryOrder = "shared-predicate"
) -> dict[str, Any] | None:
    """What a plan takes, what it stores and how long it took to find; None if it was not found."""
    units = dt.optimizer.UnitCosts.thesis()
    planned = with_own_windows(queries) if strategy == "naive" else queries
    started = time.perf_counter()
    try:
        plan = dt.optimizer.plan_queries(planned, budget, strategy, order, units=units)
    except dt.BudgetError:
        return None
    seconds = time.perf_counter() - started
    shared = sum(len(state.queries) > 1 for state in plan.materialized)
    load = {"cpu": plan.cpu_ms_per_second, "memory": plan.memory_bytes}
    return {**load, "states": len(plan.materialized), "shared": shared, "seconds": seconds}


def with_own_windows(queries: Queries) -> Queries:
    """Queries over streams with names of their own: what is planned for them shares nothing, not even windows.

    So it is in the thesis's naive approach; that of `plan_queries` is for an engine, which has each window once.
    """
    return {
        name: dt.JoinGraph(
            {f"{name}.{stream}": rate for stream, rate in graph.rates.items()},
            {frozenset(f"{name}.{each}" for each in pair): value for pair, value in graph.selectivities.items()},
            {f"{name}.{stream}": span for stream, span in graph.windows.items()},
        )
        for name, graph in queries.items()
    }


# -- queries ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistics:
    """Rates of streams and selectivities of the predicates between them."""

    rates: Mapping[str, float]
    selectivities: Mapping[Edge, float]


def appendix() -> list[dict[str, Any]]:
    """Appendix A of the thesis."""
    text = files("experiments").joinpath("alrahmani_appendix_a.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)
    return found


def statistics(point: Point, rng: random.Random) -> Statistics:
    """What a point's queries are drawn from: a part of the appendix, or, for figure 4-11, random numbers of its ranges."""
    if point.experiment == "delay":
        names = [f"S{number}" for number in range(1, 21)]
        edges = [(names[rng.randrange(number)], names[number]) for number in range(1, 20)]
        rates = {name: float(rng.randint(10, 100)) for name in names}
        return Statistics(rates, {edge: round(rng.uniform(0.01, 0.2), 2) for edge in edges})
    divisor = DIVISOR if point.experiment == "selective" else 1
    section = "A.1" if point.experiment == "orders" else SCENARIOS[point.scenario]
    part = next(
        each for each in appendix() if (each["section"], each["join_predicates"]) == (section, point.predicates)
    )
    return Statistics(
        {f"S{number}": float(rate) for number, rate in enumerate(part["rates"], start=1)},
        {(f"S{first}", f"S{second}"): value / divisor for first, second, value in part["selectivities"]},
    )


def drawn_queries(known: Statistics, point: Point, rng: random.Random) -> Queries:
    """Queries of connected predicates that together have `predicates / RATIO` of them.

    >>> point = Point("strategies", "none", 3, 10)
    >>> queries = drawn_queries(statistics(point, random.Random(1)), point, random.Random(1))
    >>> len(queries), sharing_ratio(queries)
    (10, 0.6)
    """
    edges = list(known.selectivities)
    wanted = min(round(point.predicates / RATIO), len(edges))
    while True:
        part = _connected(rng, edges, wanted)
        drawn = [_connected(rng, part, point.predicates) for _ in range(point.queries)]
        if {edge for query in drawn for edge in query} == set(part):
            return {f"q{number}": _graph(known, query) for number, query in enumerate(drawn, start=1)}


def _connected(rng: random.Random, edges: Sequence[Edge], count: int) -> list[Edge]:
    """Some connected edges of a tree."""
    chosen = [rng.choice(edges)]
    while len(chosen) < count:
        reached = {name for edge in chosen for name in edge}
        chosen.append(rng.choice([edge for edge in edges if len(reached.intersection(edge)) == 1]))
    return sorted(chosen)


def _graph(known: Statistics, edges: Sequence[Edge]) -> dt.JoinGraph:
    names = sorted({name for edge in edges for name in edge})
    return dt.JoinGraph(
        {name: known.rates[name] for name in names},
        {edge: known.selectivities[edge] for edge in edges},
        dict.fromkeys(names, WINDOW),
    )


def sharing_ratio(queries: Queries) -> float:
    """The mean over predicates of the share of queries that have it."""
    edges = [edge for graph in queries.values() for edge in graph.selectivities]
    return len(edges) / len(set(edges)) / len(queries)


# -- limits ---------------------------------------------------------------------------------------------------------------------------


def shared_costs(queries: Queries) -> dict[str, dict[str, float]]:
    """What n-ary joins take together, and what binary trees take; equal ones are computed once."""
    units = dt.optimizer.UnitCosts.thesis()
    plans = {name: dt.optimizer.plan_queries(queries, None, name, units=units) for name in ("mjoin", "bjtree")}
    return {name: {"cpu": plan.cpu_ms_per_second, "memory": plan.memory_bytes} for name, plan in plans.items()}


def tight_limits(shared: Mapping[str, Mapping[str, float]], scenario: str) -> dict[str, float | None]:
    """The limits of a scenario between n-ary joins and binary trees that share."""
    nary, trees = shared["mjoin"], shared["bjtree"]
    return {
        "cpu": (nary["cpu"] + trees["cpu"]) / 2 if scenario in ("cpu", "both") else None,
        "memory": (nary["memory"] * trees["memory"]) ** 0.5 if scenario in ("memory", "both") else None,
    }


def loose_limits(queries: Queries, scenario: str) -> dict[str, float | None]:
    """The limits of a scenario from what naive n-ary joins and naive binary trees need."""
    nary, trees = naive_costs(queries)
    memory = {"memory": MEMORY * nary.memory, "both": (MEMORY * nary.memory * trees.memory) ** 0.5}.get(scenario)
    if scenario not in ("cpu", "both"):
        return {"cpu": None, "memory": memory}
    cpu = trees.cpu
    for factor in LADDER:
        if timed_plan(queries, dt.Budget(cpu * factor, memory), "naive"):
            return {"cpu": cpu * factor, "memory": memory}
    raise AssertionError(f"naive finds no plan with {LADDER[-1]} times the CPU of binary trees")


def finite_limits(queries: Queries, scenario: str, sufficient: float) -> dict[str, float | None]:
    """The limits of a scenario, `sufficient` times what is needed for what is not limited."""
    nary, trees = naive_costs(queries)
    scarce_cpu, scarce_memory = (nary.cpu * trees.cpu) ** 0.5, (nary.memory * trees.memory) ** 0.5
    return {
        "cpu": sufficient * nary.cpu if scenario == "memory" else scarce_cpu,
        "memory": {"cpu": sufficient * trees.memory, "memory": MEMORY * nary.memory, "both": scarce_memory}[scenario],
    }


def naive_costs(queries: Queries) -> tuple[alrahmani_printed.Cost, alrahmani_printed.Cost]:
    """What n-ary joins and binary trees take that share nothing."""
    nary = {name: tuple(graph.rates) for name, graph in queries.items()}
    trees = {name: dt.optimizer.binary_tree(graph) for name, graph in queries.items()}
    return alrahmani_printed.alone(queries, nary), alrahmani_printed.alone(queries, trees)


def unavoidable(queries: Queries) -> float:
    """CPU that every plan takes: each window once, and each different query's results once."""
    units = dt.optimizer.UnitCosts.thesis()
    different = {frozenset(graph.selectivities): graph for graph in queries.values()}
    rates = {name: rate for graph in queries.values() for name, rate in graph.rates.items()}
    results = sum(_result_rate(graph) for graph in different.values())
    return sum(rates.values()) * units.keep + results * units.join


def _result_rate(graph: dt.JoinGraph) -> float:
    size = prod((*(rate * WINDOW for rate in graph.rates.values()), *graph.selectivities.values()))
    return size * len(graph.rates) / WINDOW
