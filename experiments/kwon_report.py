"""Tables, statements and the report of the shedding experiment: on the screen, as CSV and JSON, and as one Markdown page.

A statement agrees if the interval of the median over seeds (see `significance`) lies inside what it says, in every setting that it is
about; figure 9, timed once, if every setting is so by 5 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from experiments import report
from experiments.kwon import POLICIES, TRACE, Grid, Point
from experiments.report import Claim, markdown
from experiments.significance import ABOVE, BELOW, within

Results: TypeAlias = Mapping[Point, Mapping[str, Any]]
Setting: TypeAlias = tuple[str, float, float, int]
Shares: TypeAlias = NDArray[np.float64]
FIGURES = {
    "5": ("memory", "tuples per window"),
    "6": ("skew", "Zipf skew factor"),
    "7": ("rate", "tuples per second and stream"),
    "8": ("streams", "streams"),
    "10": ("normal", "variance"),
    "11": ("trace", "tuples per window"),
}
THEIRS = ("frequency", "output", "random")
"""What the paper compares with; `frequency-own` is the other reading of the first."""
NEAR = 0.05
"""What "almost the same" and "similar" allow."""
WITHIN = 0.97
"""What `auto` should have of the best policy's results."""


def settings(results: Results, *figures: str) -> list[Setting]:
    """The settings of some figures, in order."""
    return list(dict.fromkeys(point.setting for point in results if point.figure in figures))


def shares(results: Results, setting: Setting, policy: str) -> Shares:
    """The share of results that a policy leaves, seed by seed."""
    found = [result for point, result in results.items() if point.setting == setting]
    return np.array([each["policies"][policy]["results"] / max(1, each["all"]) for each in found])


def ratios(results: Results, setting: Setting, policy: str, others: Sequence[str]) -> Shares:
    """A policy's results over the most that any of some others has, seed by seed."""
    best: Shares = np.max([shares(results, setting, other) for other in others], axis=0)
    found: Shares = shares(results, setting, policy) / np.maximum(best, 1e-9)
    return found


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """One row per point and policy, for CSV and JSON."""
    for point, result in results.items():
        for policy in POLICIES:
            found = result["policies"][policy]
            yield {
                "figure": point.figure, "x": point.x, "gap": point.gap, "orders": point.orders, "seed": point.seed,
                "policy": policy, "results": found["results"], "all": result["all"], "tuples": result["tuples"],
                "seconds": found["seconds"], "seconds_unshed": result["seconds"],
            }  # fmt: skip


# -- statements ---------------------------------------------------------------------------------------------------------------------


def claims(results: Results) -> Iterator[Claim]:
    """Compare with what section 5 says of its figures."""
    fifo = "Fifo shows why: partners come within seconds, so a tuple's age says more than its pattern"
    plain = (
        "by definition 3 a pattern's priority does not fall with age, and what has waited longest for its partners "
        "stays; with all orders "
        f"equally likely a pattern says little. {fifo}"
    )
    for figure, what in (
        ("5", "for all memory sizes"),
        ("7", "for all arrival rates"),
        ("8", "for all numbers of streams"),
    ):
        yield _above(results, figure, f"EP outperforms the other algorithms {what}", plain)
    cells = settings(results, "5")
    pairs = [
        ratios(results, cell, policy, ("random",))
        for cell in cells
        for policy in ("frequency-own", "frequency", "output")
    ]
    yield within(
        "figure 5", "the other algorithms show almost the same performance", pairs, (1 - NEAR, 1 + NEAR), " of random",
        "of keys that are worth the same the one that has waited longest goes, which the paper leaves open: where a window has "
        "each key once, frequency over it is fifo; over all windows a tuple with partners is not rarest, and keys whose partners "
        "are gone already are kept for them",
    )  # fmt: skip
    cells = settings(results, "6")
    yield within(
        "figure 6", "EP improves as skew increases",
        [shares(results, cells[-1], "arrival-order") / shares(results, cells[0], "arrival-order")], ABOVE,
        " of its share without skew", "the seeds differ too much",
    )  # fmt: skip
    drift = [
        shares(results, cells[-1], policy) / shares(results, cells[0], policy)
        for policy in ("frequency-own", "output", "random")
    ]
    yield within(
        "figure 6", "skew does not affect the other algorithms", drift, (1 - NEAR, 1 + NEAR), " of their share without skew",
        "with skew few orders are in use, and streams that they leave out have room: what is shed differs from stream to stream",
    )  # fmt: skip
    yield Claim(
        "figure 7", "EP degrades beyond 16.7 tuples per second", "not simulated", None,
        "that is the paper's program no longer keeping up; results do not depend on how fast this one is",
    )  # fmt: skip
    yield from _times(results)
    cells = settings(results, "10")
    yield within(
        "figure 10", "EP is worse than frequency and output when keys repeat",
        [ratios(results, cell, "arrival-order", ("frequency", "output")) for cell in cells], BELOW, " of the better one",
        "the seeds differ too much",
    )  # fmt: skip
    yield within(
        "figure 10", "the difference becomes smaller as variance grows",
        [
            ratios(results, cells[-1], "arrival-order", ("frequency",)) / ratios(results, cells[0], "arrival-order", ("frequency",))
        ],
        ABOVE, " of the ratio at the smallest variance",
        "in this range keys repeat often at every variance; the table of the crossover goes on to where they hardly do, and "
        "arrival-order does not overtake",
    )  # fmt: skip
    says = "EP outperforms the other algorithms on real data"
    if settings(results, "11"):
        yield _above(
            results, "11", says,
            "hosts return to the same pages: their keys repeat, and frequency over all windows keeps those that have "
            "been to most of them",
        )  # fmt: skip
    else:
        yield Claim("figure 11", says, "no trace", None, f"the file {TRACE} is not there")


def _above(results: Results, figure: str, says: str, because: str) -> Claim:
    cells = [ratios(results, cell, "arrival-order", THEIRS) for cell in settings(results, figure)]
    return within(f"figure {figure}", says, cells, ABOVE, " of the best of them", because)


def _times(results: Results) -> Iterator[Claim]:
    """Figure 9: whole pushes, so that the difference between decisions is part of much else."""
    faster, shown = [], []
    for point, result in results.items():
        if point.figure in ("9a", "9b"):
            taken = {
                policy: result["policies"][policy]["seconds"] for policy in ("arrival-order", "frequency", "output")
            }
            faster.append(taken["arrival-order"] < min(taken["frequency"], taken["output"]))
            shown.append(taken["arrival-order"] / min(taken["frequency"], taken["output"]))
    if shown:
        yield Claim(
            "figure 9", "EP takes much less processing time than frequency and output",
            f"{min(shown):.2f} to {max(shown):.2f} of the faster of them for whole pushes; less in {sum(faster)} of "
            f"{len(faster)} cases",
            max(shown) < 1 - NEAR,
            "keys are found by hash, so that their number does not matter, and joins take most of the time; "
            "benchmarks/shedding.py times "
            "the decisions alone",
        )  # fmt: skip


# -- tables -------------------------------------------------------------------------------------------------------------------------


def table(results: Results, figure: str) -> Iterator[list[str]]:
    """Per setting: all results, and the share of them that each policy leaves; the most in bold."""
    for cell in settings(results, figure):
        medians = {policy: float(np.median(shares(results, cell, policy))) for policy in POLICIES}
        whole = np.median([result["all"] for point, result in results.items() if point.setting == cell])
        best = max(medians.values())
        shown = (f"**{share:.3f}**" if share == best else f"{share:.3f}" for share in medians.values())
        yield [f"{cell[1]:g}", f"{whole:,.0f}", *shown]


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
        report.origin("kwon", grid.seed),
        (
            f"{grid.tuples:,} tuples per stream, {grid.seeds} seeds (the map has {grid.map_seeds}), windows of 100 s, a cap "
            f"for each. A number "
            "is the share of results that is left, the median over seeds; the most is bold. EP is `arrival-order`. How data "
            "are made, and "
            "where we differ from the paper, is said in `experiments.kwon`: that decides everything. `fifo`, "
            "`frequency-own` and "
            "`auto` are not in the paper."
        ),
        (
            "**When a difference counts.** The interval of a median goes from the second smallest to the second largest of "
            "ten seeds. A "
            "statement agrees if it lies inside what the statement says, in every setting that it is about; “almost” allows 5 %, "
            "and “much less” time, which is taken once, means 5 % less in every setting."
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
