"""Tables and the report of the experiment with many queries: on the screen, as CSV and JSON, and as one Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import report
from experiments.alrahmani import (
    DIVISOR,
    MEMORY,
    ORDERS,
    SCENARIOS,
    SPARSE,
    STRATEGIES,
    SUFFICIENT,
    TIGHTENED,
    Grid,
    Point,
)
from experiments.alrahmani_claims import Results, above_least, claims, compared, points, values
from experiments.alrahmani_optimum import STRATEGIES as SMALL_STRATEGIES
from experiments.alrahmani_printed import PRINTED
from experiments.report import Headline, markdown

LIMITED = {"none": "nothing limited", "both": "both limited", "memory": "memory limited", "cpu": "CPU limited"}
HEADLINES = (
    Headline(
        "figure 4-3",
        "without limits, shared takes less CPU than naive",
        "CPU without limits",
        "equal joins are computed once",
    ),
    Headline(
        "figure 4-5",
        "with both limited, shared takes less CPU than naive",
        "CPU within limits",
        "equal joins are computed once",
    ),
    Headline(
        "figure 4-6",
        "with both limited, shared takes less memory than naive",
        "memory within limits",
        "the baselines store more sub-joins",
    ),
)
PICTURE = "alrahmani-strategies.png"


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """One row per point and method: medians and quartiles."""
    for point, draws in results.items():
        for method in draws[0]["plans"] if point.experiment != "optimum" else ():
            row: dict[str, Any] = {
                "experiment": point.experiment,
                "limited": point.scenario,
                "predicates": point.predicates,
                "method": method,
                "plans": int(np.sum(~np.isnan(values(draws, method, "cpu")))),
                "sharing_ratio": round(float(np.mean([draw["ratio"] for draw in draws])), 4),
            }
            for field in ("cpu", "memory", "states", "shared", "seconds"):
                for name, share in (("25", 0.25), ("50", 0.5), ("75", 0.75)):
                    found = values(draws, method, field)
                    row[f"{field}_{name}"] = float(f"{np.nanquantile(found, share):.6g}") if row["plans"] else None
            yield row


def consumption(results: Results, chosen: Sequence[Point]) -> Iterator[list[str]]:
    """CPU over naive's, CPU over the least possible, memory and states, by predicates and strategy."""
    for point in chosen:
        draws = results[point]
        for strategy in (name for name in (*PRINTED, *STRATEGIES) if name in draws[0]["plans"]):
            cpu, memory = values(draws, strategy, "cpu"), values(draws, strategy, "memory")
            relative = compared(results, [point], (strategy, "naive"), "cpu")
            missing = int(np.sum(np.isnan(cpu)))
            states = ["-"]
            if missing < len(cpu):
                states = [f"{np.nanmedian(values(draws, strategy, field)):.0f}" for field in ("states", "shared")]
            yield [
                str(point.predicates),
                strategy,
                _spread(cpu, ".3g"),
                _spread(relative, ".4f"),
                _spread(above_least(draws, strategy), ".3g"),
                _spread(memory, ".3g"),
                " / ".join(states),
                str(missing or ""),
            ]


CONSUMPTION = ["predicates", "strategy", "CPU, ms/s", "CPU / naive", "% above least CPU", "memory, tuples"]
CONSUMPTION += ["states / shared", "no plan"]


def binding(results: Results) -> Iterator[list[str]]:
    """How far limits bind: whether n-ary joins and binary trees that share would fit, and what the plans take of the limits."""
    for point, draws in results.items():
        if point.experiment == "optimum" or point.scenario == "none":
            continue
        kept = [[_fits(draw["shared"][name], draw["limits"]) for draw in draws] for name in ("mjoin", "bjtree")]
        cells = [f"{np.mean(each):.0%}" for each in kept]
        for method in ("shared", "exchange") if point.experiment != "orders" else ("shared-predicate",):
            used = [_used(draws, method, resource) for resource in ("cpu", "memory")]
            yield [
                point.experiment, LIMITED[point.scenario], str(point.predicates), *cells, method, *used,
                _missing(values(draws, method, "cpu")),
            ]  # fmt: skip


BINDING = ["experiment", "limits", "predicates", "n-ary fits", "binary fits", "method", "CPU, % of limit"]
BINDING += ["memory, % of limit", "no plan"]


def _fits(load: Mapping[str, float], limits: Mapping[str, float | None]) -> bool:
    return all(limit is None or load[resource] <= limit for resource, limit in limits.items())


def _used(draws: Sequence[Mapping[str, Any]], method: str, resource: str) -> str:
    if draws[0]["limits"][resource] is None:
        return "no limit"
    limits = np.array([draw["limits"][resource] for draw in draws])
    return _spread(100 * values(draws, method, resource) / limits, ".3g")


def limits_table(results: Results) -> Iterator[list[str]]:
    """The limits of each point, and the sharing ratio that was drawn."""
    for point, draws in results.items():
        if point.experiment == "optimum":
            continue
        cells = []
        for resource in ("cpu", "memory"):
            found = [draw["limits"][resource] for draw in draws]
            cells.append("none" if found[0] is None else _spread(np.array(found), ".3g"))
        ratio = np.mean([draw["ratio"] for draw in draws])
        yield [point.experiment, LIMITED[point.scenario], str(point.predicates), *cells, f"{ratio:.3f}"]


def orders_table(results: Results) -> Iterator[list[str]]:
    """CPU and memory of the three orders."""
    (point,) = points(results, "orders")
    for order in ORDERS:
        cpu, memory = (values(results[point], order, field) for field in ("cpu", "memory"))
        relative = compared(results, [point], (order, "shared-predicate"), "cpu")
        states = values(results[point], order, "shared")
        yield [
            order,
            _spread(cpu, ".4g"),
            _spread(relative, ".5f"),
            _spread(memory, ".3g"),
            f"{np.nanmean(states):.1f}",
            _missing(cpu),
        ]


def delay_table(results: Results) -> list[list[str]]:
    """Planning time in milliseconds."""
    return [
        [
            strategy,
            *(_spread(1e3 * values(results[point], strategy, "seconds"), ".3g") for point in points(results, "delay")),
        ]
        for strategy in STRATEGIES
    ]


def optimum_table(results: Results) -> Iterator[list[str]]:
    """CPU above the optimum of small cases, and how often no plan was found although there is one."""
    (point,) = points(results, "optimum")
    best = values(results[point], "exact", "cpu")
    feasible = ~np.isnan(best)
    for strategy in SMALL_STRATEGIES:
        above = 100 * (values(results[point], strategy, "cpu")[feasible] / best[feasible] - 1)
        numbers = (np.nanmean(above), np.nanquantile(above, 0.95), np.nanmax(above))
        optimal = np.mean(above[~np.isnan(above)] < 1e-4)
        missed = np.mean(np.isnan(above))
        yield [strategy, *(f"{max(value, 0.0):.3g} %" for value in numbers), f"{optimal:.1%}", f"{missed:.1%}"]


def _optimum_text(results: Results) -> str:
    (point,) = points(results, "optimum")
    feasible = int(np.sum(~np.isnan(values(results[point], "exact", "cpu"))))
    return (
        f"{len(results[point]):,} random sets of two or three queries over three to five streams, with limits around what they need; "
        f"in {feasible:,} of them a plan exists, as an exact search shows. CPU above the least that any plan within the limits needs:"
    )


def _spread(found: Any, form: str) -> str:
    """Median, and the middle half."""
    if np.all(np.isnan(found)):
        return "-"
    low, middle, high = (f"{value:{form}}" for value in np.nanquantile(found, (0.25, 0.5, 0.75)))
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def _missing(cpu: Any) -> str:
    count = int(np.sum(np.isnan(cpu)))
    return str(count) if count else ""


def show(console: Console, results: Results) -> None:
    """Print the tables."""
    for scenario in SCENARIOS:
        rows_of = consumption(results, points(results, "strategies", scenario))
        console.print(report.table(CONSUMPTION, rows_of, LIMITED[scenario]))
    console.print(report.claims_table(claims(results), "the thesis"))


# -- the page ----------------------------------------------------------------------------------------------------------------------


def write(results: Results, grid: Grid, out: Path) -> Path:
    """Write the summary and the report; give the report's path."""
    return report.write(list(rows(results)), page(results, grid), out)


def page(results: Results, grid: Grid) -> str:
    """The report."""
    parts = [
        "# Many queries, one plan: the experiments of Alrahmani",
        report.origin("alrahmani", grid),
        _introduction(grid),
        *report.statements(claims(results), "the thesis"),
        "## Where the CPU goes",
        _where_it_goes(results),
        "![CPU and memory by predicates, one column per scenario](alrahmani-strategies.png)",
        "![CPU above the least possible, by predicates](alrahmani-avoidable.png)",
    ]
    for scenario in SCENARIOS:
        title = _title(f"## {LIMITED[scenario]} (appendix {SCENARIOS[scenario]})")
        parts += [title, markdown(CONSUMPTION, consumption(results, points(results, "strategies", scenario)))]
    parts += ["## Tight limits", _TIGHT_TEXT]
    parts.append("![Draws with a plan within tight limits, by predicates](alrahmani-qualified.png)")
    for scenario in TIGHTENED:
        chosen = points(results, "tight", scenario)
        parts += [_title(f"### {LIMITED[scenario]}, tightly"), markdown(CONSUMPTION, consumption(results, chosen))]
    parts += ["### How far limits bind", _BINDING_TEXT, markdown(BINDING, binding(results))]
    parts += ["## The baselines as printed", _PRINTED_TEXT]
    parts.append("![CPU and memory beside the baselines as printed](alrahmani-printed.png)")
    for scenario in TIGHTENED:
        chosen = points(results, "printed", scenario)
        title = _title(f"### {LIMITED[scenario]}, what is sufficient finite")
        parts += [title, markdown(CONSUMPTION, consumption(results, chosen))]
    parts += ["## Selective predicates", _selective_text(results)]
    parts.append("![CPU and memory with selective predicates](alrahmani-selective.png)")
    for scenario in SPARSE:
        chosen = points(results, "selective", scenario)
        parts += [
            _title(f"### {LIMITED[scenario]}, selective"),
            markdown(CONSUMPTION, consumption(results, chosen)),
        ]
    parts += _orders_and_times(results)
    return report.page(parts)


def _title(text: str) -> str:
    """A heading with a capital at its first word."""
    marks, words = text.split(" ", 1)
    return f"{marks} {words[0].upper()}{words[1:]}"


_TIGHT_TEXT = (
    "The limits above let `naive` find a plan, so they hardly bind for methods that share. Tight limits lie between what n-ary joins "
    "need for all queries, equal ones computed once (too much CPU), and what binary trees need (too much memory): the mean of the CPU "
    "of the two, the geometric mean of their memory. So a qualified plan is a mixture, and has to be found."
)
_PRINTED_TEXT = (
    "Algorithm 4 as printed takes a tree if the n-ary join exceeds its *allocation*, gives up where the tree takes more CPU than is "
    "left, and charges every query its whole cost; 3-5 allots each query its part of all windows. The mended baselines try the n-ary "
    "join against all that is left before they give up. “Sufficient” is finite here: 1 to "
    f"{SUFFICIENT:g} times what the plans need that need most of it. So CPU counts for table 3-1, and shared stores sub-joins."
)
_BINDING_TEXT = (
    "Whether n-ary joins, or binary trees, that share would be within the limits, in so many draws, and what the plans of two methods "
    "take of the limits. The orders are compared under tight limits as well."
)


def _orders_and_times(results: Results) -> list[str]:
    delays = [f"{point.predicates} ({LIMITED[point.scenario]})" for point in points(results, "delay")]
    headings = ["order", "CPU, ms/s", "CPU / shared-predicate", "memory, tuples", "shared states, mean", "no plan"]
    return [
        "## The order of queries (figures 4-1 and 4-2)",
        "![CPU and memory of the three orders](alrahmani-orders.png)",
        markdown(headings, orders_table(results)),
        "## Planning time (figure 4-11)",
        "Milliseconds for ten queries, by predicates per query, on a machine that did other work as well.",
        "![Planning time by predicates](alrahmani-times.png)",
        markdown(["strategy", *delays], delay_table(results)),
        "## Distance from the optimum",
        _optimum_text(results),
        markdown(
            ["strategy", "mean", "95 %", "largest", "optimal", "no plan although there is one"], optimum_table(results)
        ),
        "## Limits and sharing ratios",
        markdown(
            ["experiment", "limits", "predicates", "CPU, ms/s", "memory, tuples", "sharing ratio"],
            limits_table(results),
        ),
    ]


def _introduction(grid: Grid) -> str:
    return (
        f"Ten queries over twenty streams are planned together, {grid.draws} times for each point, with the rates and selectivities "
        "of the thesis's appendix A, windows of 10 s and the prices of its table 4-2; memory is counted in tuples. This is the cost "
        "model alone: nothing is run. Numbers are medians over the draws, with the middle half in brackets.\n\n"
        "The thesis prints neither its queries nor its limits. Queries are drawn from a connected part of the appendix's predicates "
        "so that the mean over predicates of (queries that have it / queries) is 0.6, as near as whole numbers allow. There are two "
        "kinds of limits. Loose ones are such that every method finds a plan: memory is "
        f"{MEMORY} times what n-ary joins need that share nothing, and, with both limited, the geometric mean of that and "
        "of what binary trees need that share nothing; CPU is a multiple of what such trees need, the tightest, of a few, "
        "under which `naive` still finds a plan. [Tight ones](#tight-limits) bind for methods that share. All limits are at the end "
        "of this page.\n\n"
        "`naive`, `shared-naive` and `shared` are the thesis's, mended where they do not work as printed; `exchange` is Dovetail's. "
        "One difference is in all of them: probe orders are the cheapest (`weave`), where the thesis takes Viglas's greedy ones.\n\n"
        "Ratios of two methods are taken draw by draw, over the draws in which both find a plan."
    )


def _where_it_goes(results: Results) -> str:
    medians = []
    for strategy in STRATEGIES[1:]:
        above = [above_least(results[point], strategy) for point in points(results, "strategies")]
        medians.append(f"{strategy} {np.nanmedian(np.concatenate(above)):.2f} %")
    return (
        "A tuple finds about 50 partners in each window of the appendix, so the last step of a query produces about 50 times as much "
        "as the one before, and all plans produce the same results. Sharing saves a lot where queries are equal (their results are "
        "produced once: that is most of what separates `naive` from the others, and it fades as queries get longer and fewer of "
        "them are equal); beyond that, what a plan can save is small. CPU above the least possible (each window kept once, each "
        f"different result produced once), in the median over all scenarios: {', '.join(medians)}."
    )


def _selective_text(results: Results) -> str:
    chosen = points(results, "selective")
    shared, ours, gain = (
        compared(results, chosen, pair, "cpu")
        for pair in (("shared", "naive"), ("exchange", "naive"), ("exchange", "shared"))
    )
    return (
        f"The same with every selectivity divided by {DIVISOR}: a tuple finds about one partner in each window, as joins on keys do. "
        f"Now plans differ. In the median shared takes {np.median(shared):.2f} of naive's CPU, exchange {np.median(ours):.2f}; "
        f"exchange over shared: median {np.median(gain):.3f}, mean {np.mean(gain):.3f}, at best {np.min(gain):.3f}."
    )
