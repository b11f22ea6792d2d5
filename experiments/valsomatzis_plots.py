"""Plots of the experiment with driver policies, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.raghavan_plots import draw_figures, require
from experiments.significance import interval
from experiments.valsomatzis import AXIS, DATASETS, PERIODS, POLICIES, arrival_times
from experiments.valsomatzis_claims import BURSTY, STEADY
from experiments.valsomatzis_measured import Results, curve, printed, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "require"]

# Okabe and Ito's colours, told apart by all readers.
COLOURS = {
    "timestamp": "#000000",
    "round-robin": "#E69F00",
    "consumption-rate": "#CC79A7",
    "initial-output-size": "#D55E00",
    "output-rate": "#0072B2",
    "declared": "#009E73",
    "reversed": "#56B4E9",
}
MARKS = dict(zip(COLOURS, "osD^vP*", strict=True))
DASHES: dict[str, Any] = {"timestamp": (0, (4, 2)), "round-robin": (0, (4, 2)), "declared": ":", "reversed": ":"}
STREAM_COLOURS = ("#0072B2", "#E69F00", "#D55E00")
Panel = tuple[str, str, tuple[int, ...], str]
"""A dataset, a period, halves of the run and a title."""


def draw(results: Results, out: Path) -> None:
    """Write all plots to a directory."""
    figures: dict[str, Any] = {
        "arrivals": _arrivals,
        "totals": _totals,
        "steady": _steady,
        "bursty": _bursty,
        "work": _work,
    }
    compiled = {f"compiled-{name}": partial(figures[name], unit="compiled") for name in ("totals", "steady", "bursty")}
    draw_figures("valsomatzis", figures | compiled, results, out)


def _arrivals(plt: Any, _: Results) -> Any:
    """Figure 5: tuples per ten time units, over the run."""
    figure, panels = plt.subplots(2, 3, figsize=(9, 4), sharex=True, sharey=True, layout="constrained")
    rng, count, length, bins = np.random.default_rng(1), 200_000, 10_000_000, 200
    for panel, (name, dataset) in zip(panels.flat, DATASETS.items(), strict=True):
        for number, (pattern, size) in enumerate(zip(dataset.arrivals, dataset.sizes, strict=True)):
            times = arrival_times(pattern, count, length, rng)
            rates = np.histogram(times, bins, (0, length))[0] * size / 1000 * bins / count
            edges = np.linspace(0, 10, bins + 1)
            look: Any = {"color": STREAM_COLOURS[number], "ls": "--" if number == 1 else "-", "lw": 1.2}
            panel.stairs(rates, edges, label=f"S{number + 1}", baseline=None, **look)
        panel.set_title(f"dataset {name}", fontweight="bold")
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for panel in panels[-1]:
        panel.set_xlabel("time, M units")
    for panel in panels[:, 0]:
        panel.set_ylabel("tuples per 10 units")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _totals(plt: Any, results: Results, unit: str = "seconds") -> Any:
    """Table 4: running time with its interval, and the paper's."""
    figure, panels = plt.subplots(2, 1, figsize=(9, 5.6), sharex=True, sharey=True, layout="constrained")
    for panel, period in zip(panels, PERIODS, strict=True):
        for number, policy in enumerate(POLICIES[1:]):
            for place, dataset in enumerate(DATASETS):
                where = place + 0.12 * (number - (len(POLICIES) - 2) / 2)
                middle, low, high = interval(values(results, (dataset, period), policy, "total", unit))
                label = policy if place == 0 else None
                panel.plot(where, middle, MARKS[policy], color=COLOURS[policy], markersize=5, label=label)
                panel.plot([where, where], [low, high], color=COLOURS[policy], lw=1.4)
                theirs = printed()["total"].get(policy, {}).get(dataset)
                if theirs is not None and theirs[PERIODS.index(period)] is not None:
                    label = "the paper's" if (place, policy) == (0, "round-robin") else None
                    panel.plot(
                        where, theirs[PERIODS.index(period)], "x", color="#777777", markersize=6, mew=1.5, label=label
                    )
        panel.axhline(1, color="black", lw=0.9, ls=(0, (4, 3)))
        panel.set_title(f"batches of {period} time units", fontweight="bold")
        panel.set_ylabel("running time / timestamp's")
        panel.set_xticks(range(len(DATASETS)), [f"dataset {name}" for name in DATASETS])
        panel.grid(visible=False, axis="x")
        panel.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _steady(plt: Any, results: Results, unit: str = "seconds") -> Any:
    """Figure 6: datasets I to III."""
    rows = [[(dataset, period, (0, 1), f"{dataset}, {period}") for dataset in STEADY] for period in PERIODS]
    return _curves(plt, results, rows, unit)


def _bursty(plt: Any, results: Results, unit: str = "seconds") -> Any:
    """Figures 7 and 8: datasets IV to VI, by halves."""
    rows: list[list[Panel]] = [
        [(dataset, period, (half,), f"{dataset}, {period}, {word} half") for dataset in BURSTY]
        for half, word in enumerate(("first", "second"))
        for period in PERIODS
    ]
    return _curves(plt, results, rows, unit)


def _work(plt: Any, results: Results) -> Any:
    """All datasets, over work."""
    rows: list[list[Panel]] = [
        [(dataset, period, (0, 1), f"{dataset}, {period}") for dataset in datasets]
        for datasets in (STEADY, BURSTY)
        for period in PERIODS
    ]
    return _curves(plt, results, rows, "work")


def _curves(plt: Any, results: Results, rows: Sequence[Sequence[Panel]], unit: str) -> Any:
    size = (9, 0.8 + 2.1 * len(rows))
    figure, panels = plt.subplots(len(rows), 3, figsize=size, sharex=True, sharey=True, layout="constrained")
    for shown, row in zip(panels, rows, strict=True):
        for panel, (dataset, period, halves, title) in zip(shown, row, strict=True):
            for policy in POLICIES:
                shares = 100 * np.mean(curve(results, (dataset, period), policy, halves, unit), axis=0)
                _line(panel, policy, shares)
            panel.set_title(title, fontweight="bold")
        shown[0].set_ylabel("results, %")
    for panel in panels[-1]:
        panel.set_xlabel(f"{'work' if unit == 'work' else 'time'} / timestamp's")
        panel.set_xlim(0, 1.2)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _line(panel: Axes, policy: str, shares: Any) -> None:
    style = DASHES.get(policy, "-")
    panel.plot(AXIS, shares, color=COLOURS[policy], ls=style, lw=1.6 if style != ":" else 2.0, label=policy)
