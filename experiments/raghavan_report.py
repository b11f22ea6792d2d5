"""Tables and the report of the ordering experiment: on the screen, as CSV and JSON, and as one Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import report
from experiments.raghavan import CHECKED, METHODS, RANGES, SHAPES, Grid, Point
from experiments.raghavan_claims import Results, claims, main_grid, optimal, ratios
from experiments.report import Headline, markdown

TITLES = {"f-greedy": "F-Greedy", "treeopt": "TreeOpt", "fab": "FAB", "weave": "Weave", "dmjoin": "DMJoin"}
HEADLINES = (
    Headline(
        "figure 7(a)",
        "TreeOpt is optimal on every acyclic graph",
        "TreeOpt on acyclic graphs",
        "ranks and merging solve trees exactly",
    ),
    Headline(
        "figure 4(b)",
        "F-Greedy is optimal on linear queries",
        "F-Greedy on linear queries",
        "there is little to choose",
    ),
    Headline(
        "figure 10(b)",
        "FAB costs at most 2 times the optimum on complete graphs",
        "FAB's worst plans",
        "one of its two orders is good",
    ),
)
PICTURE = "raghavan-costs.png"


# -- tables -------------------------------------------------------------------------------------------------------------------------


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """One row per point and method, for CSV and JSON."""
    for point, result in results.items():
        for method in METHODS:
            found = np.asarray(result["ratios"][method])
            quantiles = np.quantile(found, (0.5, 0.75, 0.95))
            yield {
                "selectivities": point.selectivities,
                "shape": point.shape,
                "streams": point.count,
                "method": method if point.exact is None or method != "weave" else "weave, search only",
                "objective": point.objective,
                "settings": len(found),
                "optimal_plans": result["optimal"][method],
                "optimal_pipelines": result["pipelines"][method],
                **{name: float(value) for name, value in zip(("median", "q75", "q95"), quantiles, strict=True)},
                "worst": float(found.max()),
                "mean_seconds": result["seconds"][method],
                "dmjoin_mean_seconds": result["seconds"].get("dmjoin"),
            }


def overview(results: Results) -> Iterator[list[str]]:
    """Per shape and method: optimal plans, optimal pipelines, and costs over the optimum."""
    for shape in SHAPES:
        for method in METHODS:
            found = ratios(results, method, (shape,))
            pipelines = np.mean([result["pipelines"][method] for _, result in main_grid(results, (shape,))])
            quantiles = [f"{value:.4g}" for value in (*np.quantile(found, (0.5, 0.75, 0.95)), found.max())]
            share = optimal(results, method, (shape,))
            yield [shape, TITLES[method], _percent(share), _percent(float(pipelines)), *quantiles]


OVERVIEW = ["graph", "method", "optimal plans", "optimal pipelines", "median", "75 %", "95 %", "worst"]


def by_count(results: Results, counts: Sequence[int]) -> Iterator[list[str]]:
    """Per shape and method: the share of optimal plans for some numbers of streams."""
    for shape in SHAPES:
        found = {point.count: result for point, result in main_grid(results, (shape,))}
        for method in METHODS:
            shares = [_percent(found[count]["optimal"][method]) for count in counts]
            yield [shape, TITLES[method], *shares]


def by_range(results: Results) -> Iterator[list[str]]:
    """Other selectivities: optimal plans and the worst plan, by shape and method."""
    counts = {point.count for point in results if point.selectivities != "uniform"}
    for kind in RANGES:
        for shape in ("acyclic", "cyclic", "complete"):
            wanted = {Point(shape, count, 0, kind).name for count in counts}
            found = [result for point, result in results.items() if point.name in wanted]
            cells = []
            for method in METHODS:
                everything = np.concatenate([result["ratios"][method] for result in found])
                share = float(np.mean([result["optimal"][method] for result in found]))
                cells.append(f"{_percent(share)}, {everything.max():.3g}")
            yield [kind, shape, *cells]


def searched(results: Results) -> Iterator[list[str]]:
    """Weave without its exact part beside FAB: optimal plans, optimal pipelines, mean and worst cost over the optimum."""
    for point, result in results.items():
        if point.exact is None:
            continue
        for method in ("fab", "weave"):
            found = np.asarray(result["ratios"][method])
            shares = [_percent(result[kind][method]) for kind in ("optimal", "pipelines")]
            numbers = [f"{found.mean():.5g}", f"{found.max():.4g}", f"{1e3 * result['seconds'][method]:.1f}"]
            yield [point.shape, str(point.count), TITLES[method], *shares, *numbers]


def stars(results: Results) -> Iterator[list[str]]:
    """Stars when comparisons are counted: optimal plans and the worst plan."""
    for point, result in results.items():
        if point.objective == "comparisons":
            worst = (max(result["ratios"][method]) for method in METHODS)
            shares = (_percent(result["optimal"][method]) for method in METHODS)
            yield [str(point.count), *(f"{one}, {other:.3g}" for one, other in zip(shares, worst, strict=True))]


def planning_times(results: Results, counts: Sequence[int]) -> list[list[str]]:
    """Mean milliseconds per plan on complete graphs."""
    found = {point.count: result["seconds"] for point, result in main_grid(results, ("complete",))}
    return [[TITLES[m], *(f"{found[count][m] * 1e3:.2f}" for count in counts)] for m in (*METHODS, "dmjoin")]


def _percent(share: float) -> str:
    # Never "100 %" for less than all, nor "0 %" for more than none.
    return f"{share:.1%}" if share in (0, 1) else f"{min(max(share, 0.001), 0.999):.1%}"


def show(console: Console, results: Results) -> None:
    """Print the tables."""
    console.print(report.table(OVERVIEW, overview(results), "All settings; costs over the optimum"))
    console.print(report.claims_table(claims(results), "the paper"))


# -- the page -----------------------------------------------------------------------------------------------------------------------


def write(results: Results, grid: Grid, out: Path) -> Path:
    """Write the summary and the report; give the report's path."""
    return report.write(list(rows(results)), page(results, grid), out)


def page(results: Results, grid: Grid) -> str:
    """The report."""
    largest = grid.most
    counts = [count for count in (3, 4, 6, 8, 10, 12, 14, 16, 18, 19, 20) if count <= largest]
    parts = [
        "# Probe orders: the experiment of Raghavan et al.",
        report.origin("raghavan", grid),
        _introduction(grid),
        *report.statements(claims(results), "the paper"),
        "## All settings",
        "Costs are divided by the optimum of the same setting. A pipeline is the order of one stream; a plan has one for each.",
        markdown(OVERVIEW, overview(results)),
        "## Optimal plans by number of streams",
        "![Share of optimal plans by number of streams, one panel per method](raghavan-optimal.png)",
        markdown(["graph", "method", *map(str, counts)], by_count(results, counts)),
        "## Costs by number of streams",
        "![Cost over the optimum by number of streams, one panel per method and shape](raghavan-costs.png)",
        "## Weave's search by itself",
        _SEARCH_TEXT,
        markdown(SEARCHED, searched(results)),
        "## Stars by comparisons",
        _STARS_TEXT,
        markdown(["streams", *(TITLES[method] for method in METHODS)], stars(results)),
        "## Other selectivities",
        _ranges_text(results),
        markdown(["selectivities", "graph", *(TITLES[method] for method in METHODS)], by_range(results)),
        "## Planning time",
        _TIMES_TEXT,
        "![Planning time by number of streams](raghavan-times.png)",
        markdown(["method", *map(str, counts)], planning_times(results, counts)),
    ]
    return report.page(parts)


SEARCHED = ["graph", "streams", "method", "optimal plans", "optimal pipelines", "mean", "worst", "ms"]
_SEARCH_TEXT = (
    "Weave looks at all sets of inputs as long as they are few, and follows good orders beyond. This is the latter alone, "
    "`order_probes(graph, exact=0)`, on the first settings of the same grid, beside FAB."
)
_STARS_TEXT = (
    "Optimal plans, and the worst cost over the optimum, if orders are chosen by comparisons instead of tuples produced (equation 2), "
    "and that is their cost, on the first settings of the same stars. F-Greedy is optimal on stars for tuples produced only."
)
_TIMES_TEXT = (
    "Mean milliseconds of processor time for all pipelines of a complete graph, on a machine that did other work as well. DMJoin "
    "is our version, which fills one table for all streams."
)


def _ranges_text(results: Results) -> str:
    counts = sorted({point.count for point in results if point.selectivities != "uniform"})
    return (
        "The range of selectivities is not printed and decides a lot. Optimal plans, and the worst cost over the optimum, for "
        f"{_series(counts)} streams together: *uniform* is above 0 and up to 1, *log-uniform* has a uniform logarithm from 0.001 "
        "to 1, *low* is uniform up to 0.1."
    )


def _introduction(grid: Grid) -> str:
    return (
        f"For each shape and 3 to {grid.most} streams, {grid.runs} random settings: {grid.runs * (grid.most - 2):,} per shape. Rates "
        "are uniform from 1 to 100 tuples per second, as in the paper. What it leaves out: selectivities are uniform above 0 and "
        "up to 1, windows are 1 second, a general acyclic graph joins each stream to a random earlier one, a cyclic graph adds "
        "each further pair with probability 0.3. Cost is tuples produced per second, the final result included, and a plan is "
        "optimal if its cost is that of DMJoin to nine digits. DMJoin is run for all cyclic and complete graphs, and for acyclic "
        f"ones up to {CHECKED} streams, where TreeOpt had the same cost every time; beyond, TreeOpt is taken as their optimum. No "
        "method uses cross products.\n\n"
        "“Up to about” allows a factor of 2. Of times the mean over the settings of a point is one observation, and their growth is a "
        "line through the logarithms of the largest nine, with Student's t.\n\n"
        "Weave is exact up to 20 streams and on acyclic graphs, so its rows show that it is what it says and what that costs; its "
        "search for larger graphs has a table of its own."
    )


def _series(numbers: Sequence[int]) -> str:
    words = [str(number) for number in numbers]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
