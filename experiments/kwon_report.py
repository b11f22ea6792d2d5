"""Tables, statements and the report of the shedding experiment: on the screen, as CSV and JSON, and as one Markdown page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import report
from experiments.kwon import POLICIES, Grid
from experiments.kwon_claims import THEIRS, Results, claims, ratios, settings, shares, values
from experiments.kwon_simulator import PROCESSING, SIMULATED, TIMED
from experiments.report import Headline, markdown

FIGURES = {
    "5": ("memory", "tuples per window"),
    "6": ("skew", "Zipf skew factor"),
    "7": ("rate", "tuples per second and stream"),
    "8": ("streams", "streams"),
    "10": ("normal", "variance"),
    "11": ("trace", "tuples per window"),
}
WITHIN = 0.97
"""What `auto` should have of the best policy's results."""


HEADLINES = (
    Headline(
        "figure 5, simulated, random ties",
        "EP outperforms the other algorithms for all memory sizes",
        "EP's results at every memory size",
        "its patterns tell which tuples still have partners to come",
    ),
    Headline("figure 6, engine", "EP improves as skew increases", "EP with skew", "few orders are in use then"),
    Headline(
        "figure 9a, simulated",
        "EP takes less processing time per tuple than frequency and output for all memory sizes",
        "EP's time per decision",
        "there are few patterns and many values",
    ),
)
PICTURE = "kwon-simulated.png"


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """One row per point and policy, for CSV and JSON."""
    for point, result in results.items():
        for policy, found in result.get("policies", {}).items():
            yield {
                "figure": point.figure, "x": point.x, "gap": point.gap, "orders": point.orders, "seed": point.seed,
                "policy": policy, "results": found["results"], "all": result.get("all"), "tuples": result["tuples"],
                "seconds": found.get("seconds"), "seconds_unshed": result.get("seconds"),
                "decision_nanoseconds": found.get("nanoseconds"),
            }  # fmt: skip


# -- tables -------------------------------------------------------------------------------------------------------------------------


def table(results: Results, figure: str, policies: Iterable[str] = POLICIES) -> Iterator[list[str]]:
    """Per setting: all results, and the share of them that each policy leaves; the most in bold."""
    for cell in settings(results, figure):
        medians = {policy: float(np.median(shares(results, cell, policy))) for policy in policies}
        whole = np.median([result["all"] for point, result in results.items() if point.setting == cell])
        best = max(medians.values())
        shown = (f"**{share:.3f}**" if share == best else f"{share:.3f}" for share in medians.values())
        yield [f"{cell[1]:g}", f"{whole:,.0f}", *shown]


def times(results: Results) -> Iterator[list[str]]:
    """Figure 9: nanoseconds per tuple of the simulated program, by memory and by streams."""
    for figure in ("s9a", "s9b"):
        for cell in settings(results, figure):
            found = (np.median(values(results, cell, policy, "nanoseconds")) for policy in TIMED)
            yield [figure[1:], f"{cell[1]:g}", *(f"{each:,.0f}" for each in found)]


def leads(results: Results) -> Iterator[list[str]]:
    """Where arrival-order leads: its results over the best of the paper's others, and over the best of all, by gap, "
    "orders and skew.
    """
    skews = sorted({cell[1] for cell in settings(results, "map")})
    for orders, gap in dict.fromkeys((cell[3], cell[2]) for cell in settings(results, "map")):
        cells = []
        for skew in skews:
            cell = ("map", skew, gap, orders)
            theirs, fixed = (
                float(np.median(ratios(results, cell, "arrival-order", others)))
                for others in (THEIRS, [policy for policy in POLICIES if policy not in ("auto", "arrival-order")])
            )
            cells.append(f"{'**' if fixed > 1 else ''}{theirs:.2f} / {fixed:.2f}{'**' if fixed > 1 else ''}")
        yield [str(orders or "all"), f"{gap:g} s", *cells]


def auto(results: Results) -> Iterator[list[str]]:
    """How near `auto` comes to the best policy, in the median over seeds, by figure."""
    fixed = [policy for policy in POLICIES if policy != "auto"]
    for figure in (*FIGURES, "map"):
        medians = [
            float(np.median(shares(results, cell, "auto")))
            / max(1e-09, *(float(np.median(shares(results, cell, policy))) for policy in fixed))
            for cell in settings(results, figure)
        ]
        if medians:
            near = sum(ratio >= WITHIN for ratio in medians)
            yield [f"figure {figure}" if figure != "map" else "map", f"{min(medians):.3f}", f"{near} of {len(medians)}"]


# -- output -------------------------------------------------------------------------------------------------------------------------

HEADINGS = ["", "all results", *POLICIES]


def show(console: Console, results: Results) -> None:
    """Print the tables."""
    for figure, (name, axis) in FIGURES.items():
        if settings(results, figure):
            console.print(report.table([axis, *HEADINGS[1:]], table(results, figure), f"Figure {figure}: {name}"))
    console.print(report.table(["figure", "least of the best", "within 3 %"], auto(results), "auto"))
    console.print(report.claims_table(claims(results), "the paper"))


def write(results: Results, grid: Grid, out: Path) -> Path:
    """Write the report and its numbers."""
    return report.write(list(rows(results)), _page(results, grid), out)


def _page(results: Results, grid: Grid) -> str:
    parts = [
        "# What to forget: the experiments of Kwon, Lee and Kim",
        report.origin("kwon", grid),
        (
            f"{grid.tuples:,} tuples per stream, {grid.seeds} seeds (the map has {grid.map_seeds}), windows of 100 s, a cap "
            f"for each. A number "
            "is the share of results that is left, the median over seeds; the most is bold. EP is `arrival-order`. How data "
            "are made, and "
            "where we differ from the paper, is said in `experiments.kwon`: that decides everything. `fifo`, "
            "`frequency-own` and "
            "`auto` are not in the paper."
        ),
        *report.statements(claims(results), "the paper"),
    ]
    for figure, (name, axis) in FIGURES.items():
        if settings(results, figure):
            parts += [
                f"## Figure {figure}: {name}",
                f"![Shares of results by {axis}](kwon-{name}.png)",
                markdown([axis, *HEADINGS[1:]], table(results, figure)),
            ]
    parts += _simulated(results)
    skews = sorted({cell[1] for cell in settings(results, "map")})
    parts += [
        "## The crossover",
        (
            "Three streams with normal keys, as for figure 10, up to variances at which keys hardly repeat. There are few "
            "results then, and "
            "arrival-order still has no order to go by: keys appear in all streams at random."
        ),
        markdown(["variance", *HEADINGS[1:]], table(results, "crossover")),
        "## Where arrival-order leads",
        (
            "Results of arrival-order over those of the best of frequency, output and random, then over the best of all but "
            "auto; bold where "
            "it leads them all. Gaps are the mean time from one appearance of a key to the next, memory is 500 tuples, a "
            "window holds 1,000."
        ),
        markdown(["orders in use", "gap", *(f"skew {skew:g}" for skew in skews)], leads(results)),
        (
            "It leads where few orders are in use and partners take about as long as tuples can be kept. Where they come "
            "sooner the oldest "
            "tuples have met theirs and `fifo` leads; where they come later most are lost anyway, and what counts is how "
            "many windows a key "
            "is in already (`frequency`)."
        ),
        "## `auto`",
        (
            "Its results over those of the best policy of each setting, medians over seeds: the least of all settings, and "
            "in how many it is "
            "at least 97 %."
        ),
        markdown(["", "least", "within 3 %"], auto(results)),
    ]
    return report.page(parts)


def _simulated(results: Results) -> Iterator[str]:
    yield "## The paper's program, simulated"
    yield (
        "The same data by the paper's own program, tuple at a time, with both rules for tuples that are worth the same: the oldest "
        f"goes, or a random one. In figure 7 it processes {PROCESSING:g} tuples per second and stream, as many as it may store wait, "
        "and others are lost. Figure 10 has the paper's five streams, 10,000 tuples each; results are counted and not made. On equal "
        "tuples the program and the engine count the same results without shedding and with fifo."
    )
    yield "![What the simulated program leaves, and its time](kwon-simulated.png)"
    for figure, (name, axis) in FIGURES.items():
        if settings(results, f"s{figure}") and figure != "11":
            yield f"### Figure {figure}, simulated: {name}"
            yield markdown([axis, "all results", *SIMULATED], table(results, f"s{figure}", SIMULATED))
    yield "### Figure 9, simulated: nanoseconds per tuple"
    yield "By tuples per window with five streams (9a), and by streams with 500 tuples per window (9b)."
    yield markdown(["figure", "", *TIMED], times(results))
