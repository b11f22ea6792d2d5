"""Plots of the ordering experiment, as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.errors import ConfigError
from experiments.raghavan import METHODS, SHAPES
from experiments.raghavan_claims import Results, main_grid
from experiments.raghavan_report import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by all readers.
COLOURS = {
    "linear": "#0072B2",
    "star": "#E69F00",
    "acyclic": "#009E73",
    "cyclic": "#CC79A7",
    "complete": "#D55E00",
    "f-greedy": "#E69F00",
    "treeopt": "#009E73",
    "fab": "#0072B2",
    "weave": "#D55E00",
    "dmjoin": "#555555",
}
TOP = 200.0
"""Costs over the optimum that are still drawn where they are."""
MARKS = {"linear": "o", "star": "s", "acyclic": "^", "cyclic": "D", "complete": "v"}
MARKS |= {"f-greedy": "o", "treeopt": "s", "fab": "^", "weave": "D", "dmjoin": "x"}
CLAIMED = {("f-greedy", "acyclic"): 5.0, ("f-greedy", "complete"): 15.0, ("treeopt", "cyclic"): 50.0}
CLAIMED |= {("treeopt", "complete"): 50.0, ("fab", "acyclic"): 1.25, ("fab", "cyclic"): 2.0, ("fab", "complete"): 2.0}
STYLE: dict[str, object] = {
    "figure.dpi": 110,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def require() -> None:
    """Raise a kind error if matplotlib is missing."""
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "the plots need matplotlib, which is not installed", "pip install 'dovetail[plots]'"
        ) from None
    mpl.use("Agg")


def draw_figures(paper: str, figures: Mapping[str, Callable[[Any, Any], Any]], results: Any, out: Path) -> None:
    """Write all plots of a paper to a directory."""
    from matplotlib import pyplot as plt  # noqa: PLC0415

    style: Any = STYLE  # matplotlib's stubs want every key as a literal
    with plt.rc_context(style):
        for name, figure in figures.items():
            drawn = figure(plt, results)
            drawn.savefig(out / f"{paper}-{name}.png")
            plt.close(drawn)


def draw(results: Results, out: Path) -> None:
    """Write all plots to a directory."""
    draw_figures("raghavan", {"optimal": _optimal, "costs": _costs, "times": _times}, results, out)


def _optimal(plt: Any, results: Results) -> Any:
    """Figures 4(b), 7(a) and 9(b): one panel per method, one line per shape."""
    figure, panels = plt.subplots(1, len(METHODS), figsize=(10, 3.1), sharey=True, layout="constrained")
    for panel, method in zip(panels, METHODS, strict=True):
        for shape in SHAPES:
            points = main_grid(results, (shape,))
            counts = [point.count for point, _ in points]
            shares = [100 * result["optimal"][method] for _, result in points]
            panel.plot(counts, shares, color=COLOURS[shape], marker=MARKS[shape], markersize=3.5, lw=1.3, label=shape)
        panel.set_title(TITLES[method], fontweight="bold")
        panel.set_xlabel("streams")
        _whole_numbers(panel, counts)
    panels[0].set_ylabel("optimal plans, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SHAPES))
    return figure


def _costs(plt: Any, results: Results) -> Any:
    """Figures 4(c), 4(d), 7(c), 10(a) and 10(b): quartiles, 95 % and the worst, with the paper's worst."""
    shapes = ("acyclic", "cyclic", "complete")
    figure, grid = plt.subplots(
        len(shapes), len(METHODS), figsize=(10, 6.6), sharex=True, sharey=True, layout="constrained"
    )
    for row, shape in zip(grid, shapes, strict=True):
        for panel, method in zip(row, METHODS, strict=True):
            points = main_grid(results, (shape,))
            _bands(panel, [p.count for p, _ in points], [r["ratios"][method] for _, r in points], COLOURS[method])
            if (method, shape) in CLAIMED:
                panel.axhline(CLAIMED[method, shape], color="black", lw=0.9, ls=(0, (4, 3)), label="worst in the paper")
        row[0].set_ylabel(f"{shape}\ncost / optimum")
    for panel, method in zip(grid[0], METHODS, strict=True):
        panel.set_title(TITLES[method], fontweight="bold")
    for panel in grid[-1]:
        panel.set_xlabel("streams")
    figure.legend(*_grey_key(grid[0][0]), loc="outside lower center", ncols=5)
    return figure


def _bands(panel: Axes, counts: list[int], found: list[list[float]], colour: str) -> None:
    quantiles = np.array([np.quantile(ratios, (0.25, 0.5, 0.75, 0.95, 1.0)) for ratios in found]).T
    panel.fill_between(counts, quantiles[0], quantiles[3], color=colour, alpha=0.18, lw=0, label="up to 95 %")
    panel.fill_between(counts, quantiles[0], quantiles[2], color=colour, alpha=0.4, lw=0, label="middle half")
    panel.plot(counts, quantiles[1], color=colour, lw=1.6, label="median")
    above = quantiles[4] > TOP
    dots: dict[str, Any] = {"color": colour, "ls": "none", "markersize": 5}
    panel.plot(np.array(counts)[~above], quantiles[4][~above], marker=".", label=f"worst (▲ above {TOP:g})", **dots)
    panel.plot(np.array(counts)[above], np.full(above.sum(), 0.82 * TOP), marker="^", **dots)
    _plain_log(panel)
    panel.set_ylim(0.9, TOP)
    _whole_numbers(panel, counts)


def _grey_key(panel: Axes) -> tuple[list[Any], list[str]]:
    """The legend of one panel in grey: the colour says which method, the rest holds for all."""
    handles, labels = panel.get_legend_handles_labels()
    key: list[Any] = [copy(handle) for handle in handles]
    for handle in key[:-1]:
        handle.set_color("#777777")
    return key, labels


def _times(plt: Any, results: Results) -> Any:
    """Figures 4(a), 7(b) and 9(a): mean planning time, for cyclic graphs."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for panel, shape in zip(panels, ("cyclic", "complete"), strict=True):
        points = main_grid(results, (shape,))
        counts = [point.count for point, _ in points]
        for method in (*METHODS, "dmjoin"):
            times = [1e3 * result["seconds"][method] for _, result in points]
            panel.plot(
                counts, times, color=COLOURS[method], marker=MARKS[method], markersize=3.5, lw=1.3, label=TITLES[method]
            )
        _plain_log(panel)
        panel.set_title(f"{shape} graphs", fontweight="bold")
        panel.set_xlabel("streams")
        _whole_numbers(panel, counts)
    panels[0].set_ylabel("ms for all pipelines, mean")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _plain_log(panel: Axes) -> None:
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _whole_numbers(panel: Axes, counts: list[int]) -> None:
    panel.set_xticks([count for count in counts if count % 4 == 0])
    panel.set_xlim(counts[0] - 0.5, counts[-1] + 0.5)
