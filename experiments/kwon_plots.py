"""Plots of the shedding experiment, as PNG files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from experiments.kwon import POLICIES
from experiments.kwon_claims import Results, settings, shares, values
from experiments.kwon_report import FIGURES
from experiments.kwon_simulator import TIMED
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
    draw_figures("kwon", {**figures, "simulated": _simulated}, results, out)


def _simulated(plt: Any, results: Results) -> Any:
    """The paper's program: figures 5, 7 and 10 with random ties, and figure 9a."""
    made, panels = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
    for panel, figure in zip(panels, ("5", "7", "10"), strict=False):
        cells = settings(results, f"s{figure}")
        for policy in ("arrival-order", "frequency", "frequency-own", "output", "random"):
            drawn = policy if policy in ("arrival-order", "random") else f"{policy}, random ties"
            _line(panel, [cell[1] for cell in cells], [shares(results, cell, drawn) for cell in cells], policy)
        panel.set_title(f"figure {figure}{', overloaded' if figure == '7' else ''}", fontweight="bold")
        panel.set_xlabel(FIGURES[figure][1])
        panel.set_ylim(0)
    panels[0].set_ylabel("share of results")
    cells = settings(results, "s9a")
    for policy in TIMED:
        _line(
            panels[3],
            [cell[1] for cell in cells],
            [values(results, cell, policy, "nanoseconds") for cell in cells],
            policy,
        )
    panels[3].set_title("figure 9a", fontweight="bold")
    panels[3].set_xlabel("tuples per window")
    panels[3].set_ylabel("ns per tuple")
    panels[3].set_ylim(0)
    made.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return made


def _line(panel: Any, xs: list[float], cells: list[Any], policy: str) -> None:
    """Medians with their intervals."""
    middles, lows, highs = zip(*map(interval, cells), strict=True)
    look: Any = {"color": COLOURS[policy], "ls": DASHES.get(policy, "-"), "lw": 2.0 if policy == "auto" else 1.4}
    panel.plot(xs, middles, marker="o", markersize=3, label=policy, **look)
    panel.fill_between(xs, lows, highs, color=COLOURS[policy], alpha=0.12, lw=0)


def _shares(plt: Any, results: Results, figure: str) -> Any:
    """The share of results that is left, over what a figure varies, with its interval."""
    made, panel = plt.subplots(figsize=(6, 3.6), layout="constrained")
    cells = settings(results, figure)
    for policy in POLICIES:
        _line(panel, [cell[1] for cell in cells], [shares(results, cell, policy) for cell in cells], policy)
    panel.set_xlabel(FIGURES[figure][1])
    panel.set_ylabel("share of results")
    panel.set_ylim(0, 1.02)
    made.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return made
