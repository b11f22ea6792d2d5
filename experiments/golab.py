"""Golab, Özsu: "Processing Sliding Window Multi-Joins in Continuous Queries over Data Streams" (CS-2003-01).

Nested loops and hash joins over sliding windows, eager and lazy, in which new tuples stand outermost (multi-way), at their stream's
place in one order (naive) or anywhere (general). Which algorithm and which order compare least? Three kinds of results:

- the *cost model*: appendix A's equations beside all orders, for the printed examples and for random streams (`golab_draws`);
- *comparisons*, counted by the engine (`golab_engine`) on the streams of table 5 and of figures 2, 3 and 4(a);
- *time*: tuples per second of processor time, for what table 8 and figure 4(a) compare.

What the paper leaves out or has otherwise, and what we take:

- tuples come evenly, at the printed rates, with values drawn uniformly; windows are full when counting begins;
- orders of the measured figure 3 are those that cost least by the equations (`given`), and those that a session has come to by
  itself (`chosen`);
- a lazy join runs once in a batch of tau units, and expires then. Under eager evaluation each tuple meets precisely those before
  it, but tuples come in batches as well, of `EAGER_STEP` units in table 8. Figure 2, where naive loops scan for each tuple, is
  run one tuple at a time;
- our index finds matches alone: it has no number of buckets, so figure 4's curves by bucket cannot be measured. By the equations,
  buckets are among the random draws;
- the paper times insertion and expiration with joining, and so do we; a batch costs something by itself, whatever it holds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import permutations
from typing import Any, cast

import pyarrow as pa
from rich.console import Console

import dovetail as dt
from dovetail.config import Mode, NestedLoop
from experiments import golab_draws
from experiments.golab_engine import SECOND, TS, Orders, Run, chosen_orders, drive, start
from experiments.golab_orders import (
    Order,
    Streams,
    StreamStatistics,
    all_costs,
    heuristic_order,
    initial_orders,
    intermediate_size,
    lazy_curves,
    multi_way_cost,
    naive_cost,
    scaling_curves,
    search_general,
    search_orders,
)
from experiments.points import Points

LOOPS: tuple[NestedLoop, ...] = ("naive", "multi-way", "general")
TABLES = (5, 6, 7)
PLAIN = StreamStatistics(rate=1, window=100, distinct=50)
FIGURE_3 = {
    "3a": dict.fromkeys("1234", PLAIN),
    "3b": {name: StreamStatistics(10 if name == "4" else 1, 100, 50) for name in "1234"},
}
EAGER_STEP = 5
LONG_STEP = 50
EXPIRATION = {how: dt.Config(join="nested-loop", evaluation="eager", expiration=how) for how in ("eager", "lazy")}
_MODES: tuple[tuple[Mode, Mode], ...] = (("lazy", "lazy"), ("eager", "lazy"), ("eager", "eager"))
CONFIGS = {
    f"{join}, {loop}, {evaluation}/{expiration}": dt.Config(
        join=join, nested_loop=loop, evaluation=evaluation, expiration=expiration
    )
    for join in ("auto", "hash", "nested-loop", "hybrid")
    for loop in ("multi-way", "naive", "general")
    for evaluation, expiration in _MODES
    if loop == "multi-way" or (join == "nested-loop" and (loop, evaluation) != ("general", "eager"))
}
"""Every algorithm that there is."""


@dataclass(frozen=True)
class Grid:
    """What is run."""

    draws: int = 10
    """Of tuples, for what is counted and timed."""
    units: int = 2_000
    """Of time that are counted."""
    streams: tuple[int, ...] = (2, 3, 4, 5, 6)
    """Figure 2."""
    single: int = 60
    """Units of time that are counted one tuple at a time, for figure 2."""
    taus: tuple[int, ...] = (1, 2, 5, 10, 20, 25, 40, 50)
    """Figures 3 and 4(a)."""
    settings: int = 500
    """Random streams, for the heuristics."""
    counts: tuple[int, ...] = (3, 4, 5, 6)
    """Streams of these."""
    seed: int = 2003

    def points(self) -> Iterator[Point]:
        """Printed examples, random streams, then what is run, draw by draw."""
        yield from (Point("table", number) for number in (3, *TABLES))
        yield from (Point("eager", count) for count in self.counts)
        yield from (Point("lazy", tau) for tau in self.taus)
        yield Point("variants", 4)
        for draw in range(self.draws):
            yield from (Point("figure-2", count, draw) for count in self.streams)
            for tau in self.taus:
                yield from (Point(f"figure-{figure}", tau, draw) for figure in ("3a", "3b", "4a"))
            yield from (Point(name, 5, draw) for name in ("orders", "expiration", "hybrid"))
            yield from (Point("table-8", step, draw) for step in (5, 10))


@dataclass(frozen=True)
class Point:
    """One setting of an experiment."""

    experiment: str
    x: int
    """The table's number, tau, or the number of streams."""
    draw: int = 0

    @property
    def name(self) -> str:
        return f"{self.experiment}-{self.x:02d}-{self.draw}"


QUICK = Grid(draws=2, units=300, streams=(2, 3, 4), single=10, taus=(5, 10, 25, 50), settings=40, counts=(3, 4, 5))


def run(console: Console, points: Points, grid: Grid) -> dict[Point, dict[str, Any]]:
    """Compute all points that are not there yet."""
    return points.fill(console, grid.points(), lambda point: run_point(point, grid))


def run_point(point: Point, grid: Grid) -> dict[str, Any]:
    """Give the result of one point."""
    made: Mapping[str, Callable[[Point, Grid], dict[str, Any]]] = {
        "table": lambda point, _: _results_of_table_3() if point.x == 3 else _printed_example(point.x),
        "eager": lambda point, grid: _drawn(point, grid, lambda rng: golab_draws.eager_draw(point.x, rng)),
        "lazy": lambda point, grid: _drawn(point, grid, lambda rng: golab_draws.lazy_draw(point.x, rng)),
        "variants": lambda point, grid: _drawn(point, grid, golab_draws.variant_draw),
        "figure-2": _scaling,
        "figure-3a": lambda point, grid: _lazy_loops(point, grid, FIGURE_3["3a"]),
        "figure-3b": lambda point, grid: _lazy_loops(point, grid, FIGURE_3["3b"]),
        "figure-4a": _intervals,
        "orders": _all_orders,
        "expiration": _expiration,
        "hybrid": _hybrid,
        "table-8": _rates,
    }
    return made[point.experiment](point, grid)


# -- the cost model -----------------------------------------------------------------------------------------------------------------


@cache
def printed() -> dict[str, dict[str, Any]]:
    """What the paper prints, by table."""
    text = files("experiments").joinpath("golab_tables.json").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = json.loads(text)
    return tables


def table(number: int) -> dict[str, StreamStatistics]:
    """The streams of a table."""
    return {name: StreamStatistics(*row) for name, row in printed()[f"table {number}"]["streams"].items()}


def _printed_example(number: int) -> dict[str, Any]:
    """Costs of all orders, the orders of the heuristics, and sizes of joins."""
    streams = table(number)
    best = heuristic_order(streams)
    groups = [names for count in (2, 3) for names in _increasing(streams, count)]
    return {
        "costs": {",".join(order): cost for order, cost in all_costs(streams).items()},
        "heuristic": ",".join(best),
        "initial": [",".join(order) for order in initial_orders(streams)],
        "by_origin": multi_way_cost(streams, best),
        "sizes": {"".join(names): intermediate_size(streams[name] for name in names) for names in groups},
        "lazy": {str(tau): ",".join(heuristic_order(streams, tau)) for tau in (5, 10)},
        "lazy_best": {str(tau): ",".join(search_orders(streams, tau=tau).best_order) for tau in (5, 10)},
    }


def _increasing(streams: Streams, count: int) -> list[Order]:
    return [names for names in permutations(streams, count) if list(names) == sorted(names)]


def _drawn(point: Point, grid: Grid, draw: Callable[[random.Random], dict[str, Any]]) -> dict[str, Any]:
    """What was found for each random setting, by name."""
    # The same settings for every tau, others for every number of streams.
    seeds = [f"{grid.seed} {point.x if point.experiment == 'eager' else 4} {number}" for number in range(grid.settings)]
    found = [draw(random.Random(seed)) for seed in seeds]  # noqa: S311 - replayable
    return {name: [float(f"{each[name]:.7g}") for each in found] for name in found[0]}


# -- what the engine counts and takes -------------------------------------------------------------------------------------------------


def _driven(point: Point, grid: Grid, streams: Streams, config: dt.Config, orders: Orders | None, step: int) -> Run:
    return drive(streams, config, orders, step, grid.units, seed=grid.seed + point.draw)


def _results_of_table_3() -> dict[str, Any]:
    """What every algorithm gives for the example of table 3."""
    example = printed()["table 3"]
    streams = {name[1:]: StreamStatistics(1, example["windows"], 1) for name in ("s1", "s2", "s3")}
    found = {}
    for name, config in CONFIGS.items():
        session = start(streams, config, select="s1.ts AS t1, s2.ts AS t2, s3.ts AS t3")
        given: list[Any] = []
        for batch in (("s1", "s2"), ("s3",)):
            results = session.push({stream: _ones(example[stream]) for stream in batch})["q"]
            columns = [column.cast(pa.int64()).to_pylist() for column in results.columns]
            given += [[value // SECOND for value in row] for row in zip(*columns, strict=True)]
        found[name] = sorted(given)
    return {"found": found}


def _ones(seconds: list[int]) -> pa.Table:
    return pa.table({"ts": pa.array([each * SECOND for each in seconds], TS), "attr": pa.array([1] * len(seconds))})


def _scaling(point: Point, grid: Grid) -> dict[str, Any]:
    """Figure 2: eager multi-way and naive joins of more and more equal streams."""
    streams = {str(number): PLAIN for number in range(1, point.x + 1)}
    curves, counted = scaling_curves(PLAIN, [point.x]), {}
    for loop in curves.costs:
        nested_loop, orders = cast("NestedLoop", loop), _in_one_order(loop, tuple(streams))
        config = dt.Config(join="nested-loop", nested_loop=nested_loop, evaluation="eager", expiration="eager")
        counted[loop] = drive(streams, config, orders, None, grid.single, seed=grid.seed + point.draw).total
    return {"model": {loop: costs[0] for loop, costs in curves.costs.items()}, "counted": counted}


def _in_one_order(loop: str, order: Order) -> Orders:
    """The orders of all origins, given a global one."""
    if loop == "naive":
        return dict.fromkeys(order, order)
    return {origin: tuple(name for name in order if name != origin) for origin in order}


def _lazy_loops(point: Point, grid: Grid, streams: Streams) -> dict[str, Any]:
    """Figure 3: the lazy algorithms, by the equations, with the orders that are best by them, and as a session orders them."""
    tau, given = point.x, dict[str, Orders]()
    for loop, cost in (("naive", naive_cost), ("multi-way", multi_way_cost)):
        given[loop] = _in_one_order(loop, search_orders(streams, cost, tau).best_order)
    given["general"] = search_general(streams, tau).orders
    counted: dict[str, dict[str, float]] = {"given": {}, "chosen": {}}
    for loop in LOOPS:
        config = dt.Config(join="nested-loop", nested_loop=loop, driver_policy="declared")
        chosen = chosen_orders(streams, config, tau, seed=grid.seed + point.draw)
        for kind, orders in (("given", given[loop]), ("chosen", chosen)):
            counted[kind][loop] = _driven(point, grid, streams, config, orders, tau).total
    return {
        "model": {loop: costs[0] for loop, costs in lazy_curves(streams, [tau]).costs.items()},
        "general": {origin: ",".join(order) for origin, order in given["general"].items()},
        **counted,
    }


def _all_orders(point: Point, grid: Grid) -> dict[str, Any]:
    """Section 6.2: every order of table 5, eager, counted."""
    streams, config = table(point.x), EXPIRATION["eager"]
    return {
        ",".join(order): _driven(point, grid, streams, config, _in_one_order("multi-way", order), LONG_STEP).total
        for order in permutations(streams)
    }


def _expiration(point: Point, grid: Grid) -> dict[str, Any]:
    """Eager and lazy expiration under eager evaluation, table 5's best order, in long batches, in which much expires."""
    streams = table(point.x)
    orders = _in_one_order("multi-way", heuristic_order(streams))
    return {
        name: _taken(_driven(point, grid, streams, config, orders, LONG_STEP)) for name, config in EXPIRATION.items()
    }


def _hybrid(point: Point, grid: Grid) -> dict[str, Any]:
    """Section 5.4: windows that are worth an index have one; orders that know which, and the best ones for loops that all scan."""
    streams = table(point.x)
    config = dt.Config(join="hybrid", ordering="golab", driver_policy="declared", adaptive=False)
    given = {"aware": None, "unaware": _in_one_order("multi-way", search_orders(streams).best_order)}
    return {name: _driven(point, grid, streams, config, orders, LONG_STEP).total for name, orders in given.items()}


def _rates(point: Point, grid: Grid) -> dict[str, Any]:
    """Table 8: best and worst order of table 5, by loops and by hash; eager as well, in batches of `EAGER_STEP`."""
    streams = table(5)
    search = search_orders(streams)
    found = {}
    for join in ("nested-loop", "hash"):
        configs = {f"lazy {join}, {point.x}": dt.Config(join=join, driver_policy="declared")}
        if point.x == EAGER_STEP:
            configs[f"eager {join}"] = dt.Config(join=join, evaluation="eager", expiration="eager")
        for title, config in configs.items():
            found[title] = {
                plan: _taken(_driven(point, grid, streams, config, _in_one_order("multi-way", order), point.x))
                for plan, order in (("best", search.best_order), ("worst", search.worst_order))
            }
    return found


def _intervals(point: Point, grid: Grid) -> dict[str, Any]:
    """Figure 4(a): four equal streams, loops and hash, by the interval between evaluations."""
    streams = FIGURE_3["3a"]
    orders = _in_one_order("multi-way", tuple(streams))
    configs = {join: dt.Config(join=join, driver_policy="declared") for join in ("nested-loop", "hash")}
    return {join: _taken(_driven(point, grid, streams, config, orders, point.x)) for join, config in configs.items()}


def _taken(found: Run) -> dict[str, float]:
    return {"comparisons": found.total, "rate": found.rate}
