"""Tables and the report of the experiments with loops and hash joins: on the screen, as CSV and JSON, and as one Markdown page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import report
from experiments.golab import LOOPS, TABLES, Grid, printed
from experiments.golab_claims import claims
from experiments.golab_engine_claims import WAYS, rates
from experiments.golab_measured import NEAR, PRINTED, ROUGHLY, Results, drawn, one, random_streams, settings
from experiments.report import Headline, markdown
from experiments.significance import TINY, Numbers, interval, share

KINDS = {"model": "equations", "given": "engine", "chosen": "as a session orders them"}
VARIANTS = {
    "unequal": "buckets drawn from 1 to 50 (5.3)",
    "hybrid": "an index on some windows (5.4)",
    "inner": "the same, best order with these windows in the inner loops",
    "expensive": "one comparison 20 times as dear (5.4)",
}


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """One row per number that was counted, timed or computed, for CSV and JSON."""
    for point, result in results.items():
        for name, value in _flat(result):
            yield {
                "experiment": point.experiment, "x": point.x, "draw": point.draw, "name": name, "value": value,
            }  # fmt: skip


def _flat(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and words by their path; of a list the mean, if it is of numbers."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _flat(value, f"{name}/{key}" if name else key)
    elif not isinstance(found, list):
        yield name, found
    elif found and isinstance(found[0], float):
        yield f"{name}/mean", float(np.mean(found))


HEADLINES = (
    Headline(
        "figure 3(b), engine",
        "general has the lowest cost for every tau",
        "general loops",
        "it may begin with the streams that have few new tuples",
    ),
    Headline(
        "section 7",
        "the heuristic finds a good order without trying them all",
        "the heuristic for join orders",
        "moving fast streams up is enough",
    ),
    Headline(
        "table 8, engine",
        "the hash join outperforms the nested loops",
        "hash joins",
        "an index looks at little but matches",
    ),
)
PICTURE = "golab-lazy.png"


# -- tables -------------------------------------------------------------------------------------------------------------------------


def examples(results: Results) -> Iterator[list[str]]:
    """Tables 5 to 7: what orders cost, the printed number beside ours."""
    for number in TABLES:
        theirs, ours = printed()[f"table {number}"], one(results, "table", number)
        named = {"the heuristic's": ours["heuristic"], "without moving": ours["initial"][0]}
        for order, cost in ours["costs"].items():
            what = [title for title, chosen in named.items() if chosen == order]
            what += ["best"] if cost == min(ours["costs"].values()) else []
            what += ["worst"] if cost == max(ours["costs"].values()) else []
            known = theirs["costs"].get(order)
            if what or known:
                yield [str(number), order, f"{cost:,.0f}", f"{known:,}" if known else "", ", ".join(what)]
        mean = float(np.mean(list(ours["costs"].values())))
        known = theirs.get("average")
        yield [str(number), "mean of all", f"{mean:,.0f}", f"{known:,}" if known else "", ""]


def scaling(results: Results) -> Iterator[list[str]]:
    """Figure 2: comparisons per unit of time, by number of streams."""
    for count in settings(results, "figure-2"):
        cells = []
        for loop in ("naive", "multi-way"):
            cells += [f"{one(results, 'figure-2', count)['model'][loop]:,.0f}"]
            cells += [_spread(drawn(results, "figure-2", count, "counted", loop))]
        yield [str(count), *cells]


def lazy_loops(results: Results, figure: str) -> Iterator[list[str]]:
    """Figure 3: comparisons per unit of time, by tau; the least of each kind is bold."""
    for tau in settings(results, f"figure-{figure}"):
        cells = []
        for kind in KINDS:
            found = {loop: drawn(results, f"figure-{figure}", tau, kind, loop) for loop in LOOPS}
            least = min(float(np.median(each)) for each in found.values()) * (1 + TINY)
            for each in found.values():
                shown = f"{np.median(each):,.0f}" if kind == "model" else _spread(each)
                cells.append(f"**{shown}**" if np.median(each) <= least else shown)
        yield [str(tau), *cells]


def heuristics(results: Results) -> Iterator[list[str]]:
    """How good the orders are that section 5's heuristics choose, on random streams."""
    for count in settings(results, "eager"):
        found = one(results, "eager", count)
        title = f"{count} streams, eager"
        yield [title, *_quality(np.array(found["heuristic"])), f"{np.median(found['mean']):.2f}"]
        yield [f"{title}, fast streams not moved", *_quality(np.array(found["initial"])), ""]
    for tau in settings(results, "lazy"):
        yield [f"4 streams, general, tau {tau}", *_quality(np.array(one(results, "lazy", tau)["heuristic"])), ""]
    for name, title in VARIANTS.items():
        yield [f"4 streams, eager, {title}", *_quality(np.array(one(results, "variants", 4)[name])), ""]


def _quality(over_best: Numbers) -> list[str]:
    shares = [share(over_best <= 1 + limit) for limit in (TINY, NEAR)]
    quantiles = [f"{value:.3g}" for value in np.quantile(over_best, (0.5, 0.95, 1))]
    return [*(f"{100 * found:.0f} ({100 * low:.0f} to {100 * high:.0f})" for found, low, high in shares), *quantiles]


def table_8(results: Results) -> Iterator[list[str]]:
    """Table 8: thousands of tuples per second and comparisons per unit, of the best and the worst order, with the printed rates."""
    for join in ("nested-loop", "hash"):
        for way in WAYS:
            title = way.format(join)
            cells = [_spread(rates(results, title, "comparisons", plan)) for plan in ("best", "worst")]
            cells += [_spread(rates(results, title, "rate", plan) / 1000) for plan in ("best", "worst")]
            yield [title, *cells, *(f"{rate / 1000:.2f}" for rate in printed()["table 8"][title])]


def by_interval(results: Results) -> Iterator[list[str]]:
    """Figure 4(a): comparisons per unit and thousands of tuples per second, by tau."""
    for tau in settings(results, "figure-4a"):
        found = {
            (field, join): drawn(results, "figure-4a", tau, join, field)
            for field in ("comparisons", "rate")
            for join in ("nested-loop", "hash")
        }
        yield [str(tau), *(_spread(each / (1000 if field == "rate" else 1)) for (field, _), each in found.items())]


def _spread(numbers: Numbers) -> str:
    """The median, and its interval."""
    middle, low, high = (f"{value:,.{0 if value >= 100 else 1}f}" for value in interval(numbers))
    return middle if low == high else f"{middle} ({low} to {high})"


EXAMPLES = ["table", "order", "ours", "printed", ""]
SCALING = ["streams", "naive, equations", "naive, engine", "multi-way, equations", "multi-way, engine"]
LAZY = ["tau", *(f"{loop}, {title}" for title in KINDS.values() for loop in LOOPS)]
QUALITY = ["random streams", "optimal, %", f"within {NEAR:.0%}, %", "median", "95 %", "worst", "mean of all orders"]
RATES = ["join", "comparisons, best order", "worst", "10³ tuples/s, best", "worst", "printed, best", "worst"]
INTERVALS = ["tau", "comparisons, loops", "comparisons, hash", "10³ tuples/s, loops", "10³ tuples/s, hash"]


def show(console: Console, results: Results) -> None:
    """Print the tables."""
    console.print(report.table(EXAMPLES, examples(results), "Comparisons per unit of time"))
    for figure in ("3a", "3b"):
        console.print(report.table(LAZY, lazy_loops(results, figure), f"Figure {figure}: comparisons per unit of time"))
    console.print(report.table(QUALITY, heuristics(results), "Cost over that of the best order"))
    console.print(report.claims_table(claims(results), "the paper"))


# -- the page -----------------------------------------------------------------------------------------------------------------------


def write(results: Results, grid: Grid, out: Path) -> Path:
    """Write the summary and the report; give the report's path."""
    return report.write(list(rows(results)), page(results, grid), out)


def page(results: Results, grid: Grid) -> str:
    """The report."""
    parts = [
        "# Loops and indexes: the experiments of Golab and Özsu",
        report.origin("golab", grid),
        _introduction(grid),
        *report.statements(claims(results), "the paper", _ABOUT),
        "## The examples of section 5",
        "Costs of the eager multi-way join by the equations of appendix A, in comparisons per unit of time:",
        markdown(EXAMPLES, examples(results)),
        "![All orders of table 5: what the equations say, and what the engine counts](golab-orders.png)",
        "## More and more streams (figure 2)",
        "Comparisons per unit of time, eager, one tuple at a time:",
        markdown(SCALING, scaling(results)),
        "![Comparisons by number of streams](golab-scaling.png)",
        "## Lazy loops (figure 3)",
        _lazy_text(results),
        "![Comparisons by the interval between evaluations](golab-lazy.png)",
        "Four equal streams (a):",
        markdown(LAZY, lazy_loops(results, "3a")),
        "The fourth is ten times as fast (b):",
        markdown(LAZY, lazy_loops(results, "3b")),
        "## How good the heuristics are",
        _heuristic_text(results),
        markdown(QUALITY, heuristics(results)),
        "![Cost over that of the best order, on random streams](golab-heuristics.png)",
        "## Loops and hash (table 8)",
        "Table 5's streams. The printed rates are of another machine, and their hash tables have five buckets.",
        markdown(RATES, table_8(results)),
        "## The interval between evaluations (figure 4(a))",
        "Four equal streams, lazy, a batch every tau units:",
        markdown(INTERVALS, by_interval(results)),
        "![Tuples per second by the interval between evaluations](golab-rates.png)",
    ]
    return report.page(parts)


_ABOUT = (
    "Statements about printed numbers, plots and algorithms. A printed cost may differ by "
    f"{PRINTED:.1%}; “nearly”, “as good as” and “good” allow {NEAR:.0%}, “roughly” {ROUGHLY:.0%}."
)


def _introduction(grid: Grid) -> str:
    return (
        f"The equations are computed for the printed examples and for {grid.settings} random sets of streams of each kind. "
        f"The engine joins {grid.units:,} units of time of the printed streams, with windows full, {grid.draws} times with "
        "other values; it counts the rows that loops look at. Time is processor time on a machine that did other work as well. "
        "What the paper leaves out, and where we differ, is said in `experiments.golab`."
    )


def _lazy_text(results: Results) -> str:
    largest = settings(results, "figure-3b")[-1]
    found = drawn(results, "figure-3b", largest, "given", "general")
    computed = one(results, "figure-3b", largest)["model"]["general"]
    return (
        "Comparisons per unit of time: by the equations; counted with the orders that cost least by them; counted with the orders "
        "that a session comes to by itself. The engine compares less than the equations say, the more so the larger tau is "
        f"({np.median(found) / computed:.0%} for general loops in (b) at tau {largest}), for two reasons. The equations let every "
        "window hold T + tau; streams enter a batch one after another, and windows of those to come still hold T. And the "
        "equations let all of these match, while rows that expired before the new tuple came are looked at and left out."
    )


def _heuristic_text(results: Results) -> str:
    found = random_streams(results, "eager", "heuristic")
    optimal, low, high = share(found <= 1 + TINY)
    return (
        "Costs by the equations over that of the best of all orders. Streams are drawn from the ranges of tables 5 to 7: rates "
        "from 1 to 100 and distinct values from 2 to 500 with a uniform logarithm, windows from 100 to 200. Over all numbers of "
        f"streams the heuristic finds the best order in {optimal:.1%} ({low:.1%} to {high:.1%}) of draws."
    )
