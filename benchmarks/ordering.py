"""Measure how long it takes to order the probes of 3 to 20 streams, and check every order that comes out.

Random cyclic, complete and acyclic graphs with the rates of Raghavan et al. (1 to 100 per second) and selectivities from 0 to 1; the
median over the graphs of one size counts, methods interleaved graph by graph. A planner that re-plans while streams run has a few
milliseconds: `q-aware` should stay below 5 ms at 20 streams. DMJoin shows what exactness costs as streams are added.

Checks: every order names every other stream once and uses no cross product; no method beats DMJoin; on acyclic graphs TreeOpt
equals it; Weave is never above FAB. A check that fails ends the run with an error.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import combinations

from rich.console import Console
from rich.table import Table

import dovetail as dt
from dovetail.config import Ordering
from engine import save

SHAPES = ("acyclic", "cyclic", "complete")
METHODS: tuple[Ordering, ...] = ("f-greedy", "treeopt", "fab", "q-aware", "weave", "dmjoin")
GOAL = 5e-3
SLACK = 1 + 1e-9
console = Console(width=None if sys.stdout.isatty() else 130)


def random_graph(rng: random.Random, count: int, shape: str) -> dt.JoinGraph:
    names = [f"S{number}" for number in range(1, count + 1)]
    edges = {(names[rng.randrange(number)], names[number]) for number in range(1, count)}
    for pair in combinations(names, 2):
        if shape == "complete" or (shape == "cyclic" and rng.random() < 0.3):
            edges.add(pair)
    return dt.JoinGraph(
        {name: rng.uniform(1, 100) for name in names},
        {edge: 1 - rng.random() for edge in sorted(edges)},
        dict.fromkeys(names, 1.0),
    )


def check(graph: dt.JoinGraph, orders: dict[Ordering, dict[str, tuple[str, ...]]]) -> None:
    costs = {method: dt.optimizer.probe_cost(graph, found).per_input for method, found in orders.items()}
    for method, found in orders.items():
        for driver, order in found.items():
            path = (driver, *order)
            assert sorted(path) == sorted(graph.rates), (method, driver)
            assert all(graph.connected(path[:place], path[place]) for place in range(1, len(path))), (method, driver)
            if "dmjoin" in costs:
                assert costs["dmjoin"][driver] <= costs[method][driver] * SLACK, (method, driver)
            assert costs["weave"][driver] <= costs["fab"][driver] * SLACK, driver
    if "dmjoin" in costs and graph.shape not in ("cyclic", "complete"):
        for driver, cost in costs["treeopt"].items():
            assert cost <= costs["dmjoin"][driver] * SLACK, driver


def measure(shape: str, count: int, graphs: int, exact: int) -> dict[str, float]:
    """Median seconds by method; `exact` bounds the sizes for which DMJoin runs."""
    seconds: dict[Ordering, list[float]] = {method: [] for method in METHODS if method != "dmjoin" or count <= exact}
    for number in range(graphs):
        graph = random_graph(random.Random(f"{shape} {count} {number}"), count, shape)  # noqa: S311
        orders = {}
        _ = graph.indexed, graph.shape  # shared by all methods, and timed by itself below
        for method, taken in seconds.items():
            started = time.perf_counter()
            orders[method] = dt.optimizer.order_probes(graph, method)
            taken.append(time.perf_counter() - started)
        check(graph, orders)
    return {method: statistics.median(taken) for method, taken in seconds.items()}


def graph_seconds(shape: str, count: int, graphs: int) -> float:
    """Median seconds to make and check a graph and bring it into numbers: what a planner pays once before any method."""
    taken = []
    for number in range(graphs):
        rng = random.Random(number)  # noqa: S311
        made = random_graph(rng, count, shape)
        started = time.perf_counter()
        again = dt.JoinGraph(made.rates, made.selectivities, made.windows)
        _ = again.indexed, again.shape
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    for shape in SHAPES:
        for count in arguments.streams:
            found = measure(shape, count, arguments.graphs, arguments.exact)
            yield {
                "shape": shape,
                "streams": count,
                "graph": graph_seconds(shape, count, arguments.graphs),
                **found,
                "dmjoin / q-aware": found["dmjoin"] / found["q-aware"] if "dmjoin" in found else None,
                "weave / q-aware": found["weave"] / found["q-aware"],
            }


def show(results: list[dict[str, object]]) -> None:
    ratios = ("dmjoin / q-aware", "weave / q-aware")
    table = Table(
        "graph", "streams", "making it", *METHODS, *ratios, title="Median ms for all streams' orders", box=None
    )
    for row in results:
        cells = [f"{1e3 * float(str(row[name])):.2f}" if name in row else "-" for name in ("graph", *METHODS)]
        cells += [f"{float(str(row[name])):.1f}" if row[name] is not None else "-" for name in ratios]
        table.add_row(str(row["shape"]), str(row["streams"]), *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[3, 5, 8, 10, 12, 14, 16, 17, 18, 20])
    parser.add_argument("--graphs", type=int, default=15, help="random graphs per shape and size")
    parser.add_argument("--exact", type=int, default=20, help="run DMJoin up to so many streams")
    arguments = parser.parse_args()
    console.print(f"Python {platform.python_version()} on {platform.machine()}; {arguments.graphs} graphs per row")
    results = []
    for row in rows(arguments):
        results.append(row)
        console.print(f"{row['shape']}, {row['streams']} streams: checked", style="dim")
    show(results)
    largest = max(arguments.streams)
    for row in results:
        if row["streams"] == largest:
            taken = float(str(row["q-aware"]))
            verdict = "below" if taken < GOAL else "ABOVE"
            console.print(
                f"q-aware, {row['shape']}, {largest} streams: {1e3 * taken:.2f} ms, {verdict} the goal of {1e3 * GOAL:g} ms; "
                f"weave {1e3 * float(str(row['weave'])):.2f} ms"
            )
    save("ordering", results)


if __name__ == "__main__":
    main()
