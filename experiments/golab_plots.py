"""Plots of the experiments with nested loops and hash joins, as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.golab import LOOPS
from experiments.golab_measured import Results, drawn, one, settings
from experiments.raghavan_plots import draw_figures, require
from experiments.significance import Numbers, interval

__all__ = ["draw", "require"]

# Okabe and Ito's colours; dashes, marks and widths tell lines apart in grey, and where one lies on another.
LOOKS: dict[str, dict[str, Any]] = {
    "general": {"color": "#9a9a9a", "ls": "-", "marker": "s", "lw": 4, "markersize": 8},
    "naive": {"color": "#D55E00", "ls": (0, (1, 1.2)), "marker": "^", "lw": 1.6, "markersize": 4.5},
    "multi-way": {"color": "#0072B2", "ls": (0, (5, 2)), "marker": "o", "lw": 1.5, "markersize": 4.5},
    "nested-loop": {"color": "#D55E00", "ls": (0, (5, 2)), "marker": "^", "lw": 1.5, "markersize": 4.5},
    "hash": {"color": "#000000", "ls": "-", "marker": "s", "lw": 1.5, "markersize": 4.5},
}
DRAWN = ("general", "naive", "multi-way")
"""One on top of the other."""
COST = "comparisons per unit of time"


def _thousands(value: float, _: int) -> str:
    return f"{value:,.0f}"


def draw(results: Results, out: Path) -> None:
    """Write all plots to a directory."""
    figures = {"orders": _orders, "scaling": _scaling, "lazy": _lazy, "heuristics": _heuristics, "rates": _rates}
    draw_figures("golab", figures, results, out)


def _line(panel: Any, xs: list[int], cells: list[Numbers], name: str) -> None:
    """Medians with their intervals."""
    middles, lows, highs = zip(*map(interval, cells), strict=True)
    panel.plot(xs, middles, markerfacecolor="white", label=name, **LOOKS[name])
    panel.fill_between(xs, lows, highs, color=LOOKS[name]["color"], alpha=0.15, lw=0)


def _orders(plt: Any, results: Results) -> Any:
    """All orders of table 5: the equations, and what the engine counts."""
    figure, panel = plt.subplots(figsize=(4.6, 4), layout="constrained")
    costs = one(results, "table", 5)["costs"]
    counted = {order: interval(drawn(results, "orders", 5, order)) for order in costs}
    most = 1.1 * max(high for _, _, high in counted.values())
    panel.plot([0, most], [0, most], color="#777777", lw=0.9, ls=(0, (4, 3)), label="equal")
    middles = np.array([counted[order][0] for order in costs])
    errors = [middles - [counted[order][1] for order in costs], [counted[order][2] for order in costs] - middles]
    dots: Any = {"fmt": "o", "color": "black", "markersize": 3.5, "lw": 0.8}
    panel.errorbar(list(costs.values()), middles, errors, label="an order, with its interval", **dots)
    panel.set_xlabel(f"equations, {COST}")
    panel.set_ylabel(f"engine, {COST}")
    panel.xaxis.set_major_formatter(_thousands)
    panel.yaxis.set_major_formatter(_thousands)
    panel.legend()
    return figure


def _scaling(plt: Any, results: Results) -> Any:
    """Figure 2."""
    figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True, layout="constrained")
    counts = settings(results, "figure-2")
    for panel, (kind, title) in zip(panels, (("model", "equations"), ("counted", "engine")), strict=True):
        for loop in DRAWN[1:]:
            _line(panel, counts, [drawn(results, "figure-2", count, kind, loop) for count in counts], loop)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(_thousands)
        panel.set_title(title, fontweight="bold")
        panel.set_xlabel("streams")
        panel.set_xticks(counts)
    panels[0].set_ylabel(COST)
    panels[0].legend()
    return figure


def _lazy(plt: Any, results: Results) -> Any:
    """Figure 3: a row for each of (a) and (b), a column for the equations and one for each kind of measured orders."""
    kinds = {"model": "equations", "given": "engine, the same orders", "chosen": "engine, its own orders"}
    figure, grid = plt.subplots(2, 3, figsize=(10, 6.2), layout="constrained")
    for row, name in zip(grid, ("3a", "3b"), strict=True):
        taus = settings(results, f"figure-{name}")
        for panel, (kind, title) in zip(row, kinds.items(), strict=True):
            for loop in DRAWN:
                _line(panel, taus, [drawn(results, f"figure-{name}", tau, kind, loop) for tau in taus], loop)
            panel.set_title(f"({name[1]}) {title}", fontweight="bold")
            panel.set_xlabel("tau, units of time")
            # Naive loops at the smallest tau are cut off: they would press everything else together.
            rest = [
                drawn(results, f"figure-{name}", tau, kind, loop).max() for tau in taus if tau >= 10 for loop in LOOPS
            ]
            panel.set_ylim(0, 1.05 * max(rest))
            panel.yaxis.set_major_formatter(_thousands)
        row[0].set_ylabel(COST)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LOOPS))
    return figure


def _heuristics(plt: Any, results: Results) -> Any:
    """How much dearer than the best order: the share of random streams up to a ratio."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    greys = {count: str(0.65 - 0.65 * place / 3) for place, count in enumerate(settings(results, "eager"))}
    for panel, (name, title) in zip(
        panels, (("initial", "sizes of joins alone"), ("heuristic", "fast streams moved up")), strict=True
    ):
        for place, (count, grey) in enumerate(greys.items()):
            over = np.sort(one(results, "eager", count)[name])
            dashes: Any = ("-", (0, (5, 2)), (0, (1, 1.2)), "-.")[place]
            panel.plot(
                over,
                100 * np.arange(1, len(over) + 1) / len(over),
                color=grey,
                ls=dashes,
                lw=1.5,
                label=f"{count} streams",
            )
        panel.set_xscale("log")
        panel.set_xlim(0.98, 6)
        panel.set_xticks([1, 1.5, 2, 3, 5], ["1", "1.5", "2", "3", "5"])
        panel.minorticks_off()
        panel.set_ylim(0, 101)
        panel.set_title(title, fontweight="bold")
        panel.set_xlabel("cost over that of the best order")
    panels[0].set_ylabel("random sets of streams, %")
    panels[1].legend(loc="lower right")
    return figure


def _rates(plt: Any, results: Results) -> Any:
    """Figure 4(a)."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
    taus = settings(results, "figure-4a")
    for panel, field, scale in zip(panels, ("comparisons", "rate"), (1, 1000), strict=True):
        for join in ("nested-loop", "hash"):
            _line(panel, taus, [drawn(results, "figure-4a", tau, join, field) / scale for tau in taus], join)
        panel.yaxis.set_major_formatter(_thousands)
        panel.set_xlabel("tau, units of time")
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_formatter(_thousands)
    panels[0].set_ylabel(COST)
    panels[1].set_ylim(0)
    panels[1].set_ylabel("thousand tuples per second of processor time")
    panels[1].legend()
    return figure
