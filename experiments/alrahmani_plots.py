"""Plots of the experiment with many queries, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.alrahmani import ORDERS, SCENARIOS, SPARSE, STRATEGIES, TIGHTENED, Point
from experiments.alrahmani_claims import Results, above_least, points, values
from experiments.alrahmani_printed import NAIVE, PRINTED, SHARED_NAIVE
from experiments.alrahmani_report import LIMITED
from experiments.raghavan_plots import draw_figures, require
from experiments.significance import Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "require"]

# Okabe and Ito's colours, told apart by all readers.
COLOURS = {"naive": "#E69F00", "shared-naive": "#0072B2", "shared": "#009E73", "exchange": "#D55E00"}
COLOURS |= {"heaviest": "#E69F00", "lightest": "#0072B2", "shared-predicate": "#009E73"}
COLOURS |= {NAIVE: "#E69F00", SHARED_NAIVE: "#0072B2"}
MARKS = {NAIVE: "s", SHARED_NAIVE: "^"}
MARKS |= {"naive": "s", "shared-naive": "^", "shared": "o", "exchange": "D"}
FIGURES = {
    "none": "figures 4-3, 4-4",
    "both": "figures 4-5, 4-6",
    "memory": "figures 4-7, 4-8",
    "cpu": "figures 4-9, 4-10",
}


def draw(results: Results, out: Path) -> None:
    """Write all plots to a directory."""
    figures = {"strategies": _strategies, "avoidable": _avoidable, "qualified": _qualified, "selective": _selective}
    figures["printed"] = _printed
    draw_figures("alrahmani", {**figures, "orders": _orders, "times": _times}, results, out)


def _strategies(plt: Any, results: Results) -> Any:
    """Figures 4-3 to 4-10."""
    titles = {scenario: f"{LIMITED[scenario]}\n({figures})" for scenario, figures in FIGURES.items()}
    figure, _ = _consumption(plt, results, "strategies", titles, width=10, fontsize=9)
    return figure


def _selective(plt: Any, results: Results) -> Any:
    """The same with selective predicates."""
    titles = {scenario: LIMITED[scenario] for scenario in SPARSE}
    figure, grid = _consumption(plt, results, "selective", titles, width=7)
    for panel in grid[1]:
        _plain_log(panel)
    return figure


def _printed(plt: Any, results: Results) -> Any:
    """Beside the baselines as printed."""
    titles = {scenario: f"{LIMITED[scenario]}\n({FIGURES[scenario]})" for scenario in TIGHTENED}
    methods = (*PRINTED, "shared", "exchange")
    figure, _ = _consumption(plt, results, "printed", titles, width=8.5, methods=methods, fontsize=9)
    return figure


def _consumption(
    plt: Any,
    results: Results,
    experiment: str,
    titles: Mapping[str, str],
    width: float,
    methods: Sequence[str] = STRATEGIES,
    **text: Any,
) -> tuple[Any, Any]:
    """CPU above, memory below, one column per scenario; CPU over that of the first method."""
    figure, grid = plt.subplots(2, len(titles), figsize=(width, 5), sharex=True, sharey="row", layout="constrained")
    for (scenario, title), (above, below) in zip(titles.items(), grid.T, strict=True):
        chosen = points(results, experiment, scenario)
        for place, method in enumerate(methods):
            cpu = [
                values(results[point], method, "cpu") / values(results[point], methods[0], "cpu") for point in chosen
            ]
            _band(above, chosen, cpu, method, place)
            _band(below, chosen, [values(results[point], method, "memory") for point in chosen], method, place)
        below.set_yscale("log")
        below.set_xlabel("predicates per query")
        _ticks(above, chosen)
        above.set_title(title, **text)
    grid[0, 0].set_ylabel(f"CPU over {methods[0]}")
    grid[0, 0].set_ylim(0, 1.08)
    grid[1, 0].set_ylabel("memory, tuples")
    _legend(figure, grid[0, 0])
    return figure, grid


def _avoidable(plt: Any, results: Results) -> Any:
    """CPU above the least possible, where sharing results is out of the picture."""
    figure, panels = plt.subplots(1, len(SCENARIOS), figsize=(10, 2.9), sharey=True, layout="constrained")
    for panel, scenario in zip(panels, SCENARIOS, strict=True):
        chosen = points(results, "strategies", scenario)
        for place, strategy in enumerate(STRATEGIES[1:], start=1):
            _band(panel, chosen, [above_least(results[point], strategy) for point in chosen], strategy, place)
        _plain_log(panel)
        panel.set_title(LIMITED[scenario])
        panel.set_xlabel("predicates per query")
        _ticks(panel, chosen)
    panels[0].set_ylabel("CPU above the least, %")
    _legend(figure, panels[0])
    return figure


def _qualified(plt: Any, results: Results) -> Any:
    """In how many draws a plan was found within the tight limits."""
    figure, panels = plt.subplots(1, len(TIGHTENED), figsize=(7.5, 2.8), sharey=True, layout="constrained")
    for panel, scenario in zip(panels, TIGHTENED, strict=True):
        chosen = points(results, "tight", scenario)
        for strategy in STRATEGIES:
            found = [100 * np.mean(~np.isnan(values(results[point], strategy, "cpu"))) for point in chosen]
            line: dict[str, Any] = {"color": COLOURS[strategy], "marker": MARKS[strategy], "markersize": 4, "lw": 1.4}
            panel.plot([point.predicates for point in chosen], found, label=strategy, **line)
        panel.set_title(LIMITED[scenario])
        panel.set_xlabel("predicates per query")
        _ticks(panel, chosen)
    panels[0].set_ylabel("draws with a plan, %")
    _legend(figure, panels[0])
    return figure


def _orders(plt: Any, results: Results) -> Any:
    """Figures 4-1 and 4-2: each draw's three orders over their mean."""
    (point,) = points(results, "orders")
    figure, panels = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
    for panel, field, title in ((panels[0], "cpu", "CPU (figure 4-1)"), (panels[1], "memory", "memory (figure 4-2)")):
        found = np.array([values(results[point], order, field) for order in ORDERS])
        found = found[:, ~np.isnan(found).all(axis=0)]
        relative = found / np.nanmean(found, axis=0)
        spread = np.random.default_rng(1).uniform(-0.16, 0.16, relative.shape)
        for row, order in enumerate(ORDERS):
            panel.plot(row + spread[row], relative[row], ".", color=COLOURS[order], alpha=0.7)
            panel.plot([row - 0.28, row + 0.28], [np.nanmedian(relative[row])] * 2, color="black", lw=1.4)
        panel.set_xticks(range(len(ORDERS)), ORDERS)
        panel.set_title(title)
    panels[0].set_ylabel("over the mean of the three")
    return figure


def _times(plt: Any, results: Results) -> Any:
    """Figure 4-11."""
    figure, panel = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    chosen = points(results, "delay")
    for place, strategy in enumerate(STRATEGIES):
        _band(panel, chosen, [1e3 * values(results[point], strategy, "seconds") for point in chosen], strategy, place)
    _plain_log(panel)
    panel.set_xscale("log", base=2)
    panel.set_xticks([point.predicates for point in chosen], [f"{p.predicates}\n{LIMITED[p.scenario]}" for p in chosen])
    panel.set_xlabel("predicates per query")
    panel.set_ylabel("ms to plan ten queries")
    panel.legend(loc="upper left")
    return figure


def _band(panel: Axes, chosen: Sequence[Point], found: Sequence[Numbers], strategy: str, place: int) -> None:
    """Median and middle half by predicates."""
    apart = 0.016 * (place - 1.5)  # lines that lie on each other can still be told apart
    pairs = [(point, each) for point, each in zip(chosen, found, strict=True) if not np.all(np.isnan(each))]
    if not pairs:
        return
    counts = [point.predicates * (1 + apart) for point, _ in pairs]
    low, middle, high = np.array([np.nanquantile(each, (0.25, 0.5, 0.75)) for _, each in pairs]).T
    panel.fill_between(counts, low, high, color=COLOURS[strategy], alpha=0.16, lw=0)
    line: dict[str, Any] = {"color": COLOURS[strategy], "marker": MARKS[strategy], "markersize": 4, "lw": 1.4}
    panel.plot(counts, middle, label=strategy, **line)


def _plain_log(panel: Axes) -> None:
    """A logarithmic axis with few, plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415

    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e5 else f"{value:.0e}")


def _ticks(panel: Axes, chosen: Sequence[Point]) -> None:
    panel.set_xticks([point.predicates for point in chosen])


def _legend(figure: Any, panel: Axes) -> None:
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=4)
