"""Plots of the shedding experiment, as PNG files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from experiments.kwon import POLICIES
from experiments.kwon_report import FIGURES, Results, settings, shares
from experiments.raghavan_plots import draw_figures, require
from experiments.significance import interval

__all__ = ["draw", "require"]

# Okabe and Ito's colours, told apart by all readers.
COLOURS = {
    "arrival-order": "#D55E00",
    "frequency": "#0072B2",
    "frequency-own": "#56B4E9",
    "output": "#009E73",
    "random": "#777777",
    "fifo": "#000000",
    "auto": "#CC79A7",
}
DASHES: dict[str, Any] = {"random": (0, (4, 2)), "fifo": (0, (4, 2)), "frequency-own": ":", "auto": ":"}


def draw(results: Results, out: Path) -> None:
    """Write all plots to a directory."""
    figures = {
        name: partial(_shares, figure=figure) for figure, (name, _) in FIGURES.items() if settings(results, figure)
    }
    draw_figures("kwon", figures, results, out)


def _shares(plt: Any, results: Results, figure: str) -> Any:
    """The share of results that is left, over what a figure varies, with its interval."""
    made, panel = plt.subplots(figsize=(6, 3.6), layout="constrained")
    cells = settings(results, figure)
    for policy in POLICIES:
        middles, lows, highs = zip(*(interval(shares(results, cell, policy)) for cell in cells), strict=True)
        xs = [cell[1] for cell in cells]
        look: Any = {"color": COLOURS[policy], "ls": DASHES.get(policy, "-"), "lw": 2.0 if policy == "auto" else 1.4}
        panel.plot(xs, middles, marker="o", markersize=3, label=policy, **look)
        panel.fill_between(xs, lows, highs, color=COLOURS[policy], alpha=0.12, lw=0)
    panel.set_xlabel(FIGURES[figure][1])
    panel.set_ylabel("share of results")
    panel.set_ylim(0, 1.02)
    made.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return made
