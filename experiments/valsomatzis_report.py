"""Tables and the report of the experiment with driver policies: on the screen, as CSV and JSON, and as one Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import report
from experiments.report import Headline, markdown
from experiments.significance import interval
from experiments.valsomatzis import DATASETS, PERIODS, POLICIES, STREAMS, Grid, Numbers
from experiments.valsomatzis_claims import NEAR, claims
from experiments.valsomatzis_measured import (
    CELLS,
    Results,
    compiled_alone,
    counted,
    found,
    leaders,
    overall,
    printed,
    values,
)

RANKED = {
    "60 % of the results": ("to60", "seconds"),
    "100 % of the results": ("to100", "seconds"),
    "the whole batch": ("total", "seconds"),
    "`push`": ("total", "whole"),
}
"""What policies are ranked by: a number, and the kind of run it is from."""
HEADLINES = (
    Headline(
        "discussion, tuple at a time",
        "timestamp takes more time than each of the three proposals, everywhere",
        "timestamp's running time",
        "who takes tuples by time goes from table to table with each of them",
    ),
    Headline(
        "discussion, tuple at a time",
        "timestamp has fewer early results than initial-output-size and output-rate, everywhere (by time)",
        "timestamp's early results",
        "results come evenly with tuples of all streams, and early with the buffer that has most of them",
    ),
    Headline(
        "discussion, tuple at a time",
        "timestamp is slower because it makes more probes",
        "probes as the cause",
        "it meets larger windows",
    ),
)
PICTURE = "valsomatzis-compiled-totals.png"


# -- tables -------------------------------------------------------------------------------------------------------------------------


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """One row per point and policy, for CSV and JSON."""
    for point, result in results.items():
        for policy in POLICIES:
            timed, counts = result["seconds"]["policies"][policy], result["seconds"]["counts"][policy]
            made = {"dataset": point.dataset, "period": point.period, "repeat": point.repeat, "policy": policy}
            made |= {name: timed[name] for name in ("cost", "total", "to60", "to100", "half")}
            made |= {f"push_{name}": result["whole"]["policies"][policy][name] for name in ("cost", "total")}
            made |= {
                f"compiled_{name}": result["compiled"]["policies"][policy][name]
                for name in ("cost", "total", "to60", "half")
            }
            work = result["work"]["policies"][policy] if "work" in result else {}
            made |= {f"work_{name}": work.get(name) for name in ("cost", "total", "to60", "half")}
            yield made | {name: counts[name] for name in ("probes", "rows_read", "matches", "results")}


def beside_paper(results: Results, period: str, field: str, unit: str = "seconds") -> Iterator[list[str]]:
    """Table 4 or 5 for one period: ours, with half the width of its interval, and the paper's in brackets."""
    place, theirs = PERIODS.index(period), printed().get(field, {})
    for dataset in (*DATASETS, "average"):
        cells = []
        for policy in POLICIES:
            cell = _spread(_averaged(results, dataset, period, policy, field, unit))
            known = theirs[policy][dataset][place] if policy in theirs and unit in ("seconds", "compiled") else None
            cells.append(cell if known is None else f"{cell} ({known:g})")
        yield [dataset, *cells]


def _averaged(results: Results, dataset: str, period: str, policy: str, field: str, unit: str) -> Numbers:
    """One number by repeat, of one dataset or in the mean over all."""
    chosen = list(DATASETS) if dataset == "average" else [dataset]
    means: Numbers = np.mean([values(results, (each, period), policy, field, unit) for each in chosen], axis=0)
    return means


def _spread(numbers: Numbers) -> str:
    middle, low, high = interval(numbers)
    return f"{middle:.2f}" if high - low < 0.01 else f"{middle:.2f} ±{(high - low) / 2:.2f}"


def ranking(results: Results) -> Iterator[list[str]]:
    """Per policy: times over timestamp's for the whole batch, in the geometric mean over all datasets and periods."""
    numbers = {name: {policy: overall(results, policy, *what) for policy in POLICIES} for name, what in RANKED.items()}
    first = {name: leaders(by_policy) for name, by_policy in numbers.items()}
    for policy in POLICIES:
        cells = (
            f"{'**' if policy in first[name] else ''}{_spread(by_policy[policy])}{'**' if policy in first[name] else ''}"
            for name, by_policy in numbers.items()
        )
        yield [policy, *cells, _spread(overall(results, policy, "to60", "work"))]


def leading(results: Results) -> Iterator[list[str]]:
    """Per dataset and period: the policies that no other is ahead of."""
    for cell in CELLS:
        found_by = []
        for field, unit in RANKED.values():
            found_by.append(
                ", ".join(leaders({policy: values(results, cell, policy, field, unit) for policy in POLICIES}))
            )
        yield [*cell, *found_by]


def work(results: Results) -> Iterator[list[str]]:
    """Per policy: counters over those of timestamp, the least and the most of all datasets, by period."""
    for policy in POLICIES[1:]:
        cells = []
        for names in (("probes",), ("rows_read",), ("matches",)):
            for period in PERIODS:
                ratios = [
                    np.mean(_less_results(results, (dataset, period), policy, names))
                    / np.mean(_less_results(results, (dataset, period), "timestamp", names))
                    for dataset in DATASETS
                ]
                cells.append(f"{min(ratios):.3f} to {max(ratios):.3f}")
        yield [policy, *cells]


def _less_results(results: Results, cell: tuple[str, str], policy: str, names: tuple[str, ...]) -> Numbers:
    """Counters; of matches only the intermediate ones."""
    made = counted(results, cell, policy, *names)
    return made - counted(results, cell, policy, "results") if names == ("matches",) else made


def parts(results: Results, unit: str) -> Iterator[list[str]]:
    """Per policy: seconds of a run for joins, results and the rest, in the mean over datasets and repeats, by period."""
    for policy in POLICIES:
        cells = []
        for period in PERIODS:
            spent = [each["parts"][policy] for dataset in DATASETS for each in found(results, (dataset, period), unit)]
            means = (np.mean([_part(each, kind) for each in spent]) for kind in ("joins", "results", "rest"))
            cells += [f"{seconds:.3f}" for seconds in means]
        yield [policy, *cells]


def by_driver(results: Results) -> Iterator[list[str]]:
    """Per dataset and period: which share of the results the tuples of each stream find, by policy."""
    for cell in CELLS:
        shares = []
        for policy in POLICIES:
            each = [np.mean(counted(results, cell, policy, stream)) for stream in STREAMS]
            shares.append(" / ".join(f"{100 * share / sum(each):.0f}" for share in each))
        yield [*cell, *shares]


def show(console: Console, results: Results) -> None:
    """Print the tables."""
    for period in PERIODS:
        for title, field in (("Running time over timestamp's", "total"), ("Share of results at half time", "half")):
            headings, table = ["dataset", *POLICIES], beside_paper(results, period, field)
            console.print(report.table(headings, table, f"{title}, batches of {period}; the paper's in brackets"))
    console.print(report.table(RANKING, ranking(results), "Time over timestamp's, all datasets and periods"))
    console.print(report.claims_table(claims(results), "the paper"))


RANKING = ["policy", *RANKED, "60 %, in work"]
COUNTERS = [
    "policy",
    *(f"{name}, {period}" for name in ("probes", "rows looked at", "intermediate") for period in PERIODS),
]
SPENT = ["policy", *(f"{part}, {period}" for period in PERIODS for part in ("joins", "results", "rest"))]


# -- the page -----------------------------------------------------------------------------------------------------------------------


def write(results: Results, grid: Grid, out: Path) -> Path:
    """Write the summary and the report; give the report's path."""
    return report.write(list(rows(results)), page(results, grid), out)


def page(results: Results, grid: Grid) -> str:
    """The report."""
    made = [
        "# Whose tuples come first: the experiment of Valsomatzis and Gounaris",
        report.origin("valsomatzis", grid),
        _introduction(grid),
        "![Arrival rates of the six datasets](valsomatzis-arrivals.png)",
        *report.statements(claims(results), "the paper"),
        "## Which policy is first",
        _ranking_text(results),
        markdown(RANKING, ranking(results)),
        _noise_text(results),
        "Policies that no other is ahead of, by dataset and period, the one with the least median first:",
        markdown(["dataset", "batch", *RANKED], leading(results)),
        "## Running time (table 4)",
        _TABLE_TEXT,
        *_both(results, "total"),
        "![Running time by dataset and policy, with the paper's](valsomatzis-totals.png)",
        "### With `push`",
        "The same for batches whose results are taken when all are there.",
        *_both(results, "total", "whole"),
        "## Results at half time (table 5)",
        "The share of a batch's results that is there at half of the time that timestamp needs for the batch.",
        *_both(results, "half"),
        "## Results over time (figures 6 to 8)",
        "![Share of results over time, datasets I to III](valsomatzis-steady.png)",
        "![Share of results over time, datasets IV to VI, by halves](valsomatzis-bursty.png)",
        "## Tuple at a time",
        _compiled_text(results, grid),
        "### Running time (table 4), tuple at a time",
        *_both(results, "total", "compiled"),
        "![Running time, tuple at a time, with the paper's](valsomatzis-compiled-totals.png)",
        "### Results at half time (table 5), tuple at a time",
        *_both(results, "half", "compiled"),
        "### Results over time (figures 6 to 8), tuple at a time",
        "![Share of results over time, tuple at a time, datasets I to III](valsomatzis-compiled-steady.png)",
        "![Share of results over time, tuple at a time, datasets IV to VI, by halves](valsomatzis-compiled-bursty.png)",
        "## Work instead of time",
        _work_text(grid),
        "![Share of results over work](valsomatzis-work.png)",
        "Results at half of timestamp's work:",
        *_both(results, "half", "work"),
        "Counters over those of timestamp, the least and the most of the six datasets:",
        markdown(COUNTERS, work(results)),
        "## Who finds the results",
        "Which share of the results the tuples of S1 / S2 / S3 find, in per cent: each result is found by the last of its three.",
        markdown(["dataset", "batch", *POLICIES], by_driver(results)),
        "## Where the time goes",
        _parts_text(results),
        markdown(SPENT, parts(results, "seconds")),
        "The same with `push`:",
        markdown(SPENT, parts(results, "whole")),
    ]
    return report.page(made)


def _both(results: Results, field: str, unit: str = "seconds") -> Iterator[str]:
    for period in PERIODS:
        yield f"Batches of {period} time units:"
        yield markdown(["dataset", *POLICIES], beside_paper(results, period, field, unit))


_TABLE_TEXT = (
    "Time for all batches but the first fifth, over timestamp's, results taken as they are found: median of the repeats, ± half the "
    "width of its interval, and what the paper prints in brackets. The last row is the mean over the datasets."
)


def _compiled_text(results: Results, grid: Grid) -> str:
    alone = compiled_alone(results)
    probes = [
        counted(alone, cell, policy, "probes") / counted(alone, cell, "timestamp", "probes")
        for cell in CELLS
        for policy in POLICIES
    ]
    seconds = np.median(
        [each["policies"]["timestamp"]["cost"] for cell in CELLS for each in found(results, cell, "compiled")]
    )
    sizes = (1000 * grid.compiled_keys, 10 * grid.compiled_keys, 100 * grid.compiled_keys)
    return (
        "The paper's own program, compiled: a tuple is put into its hash table, probes the next, and each match probes the last; then "
        f"comes the next. Streams of {sizes[0]:,} tuples (in V and VI {sizes[1]:,}, {sizes[2]:,} and {sizes[0]:,}), in processor "
        f"time. Probes are {np.min(probes):.3f} to {np.max(probes):.3f} of timestamp's: whole buffers do not save probes. With "
        f"timestamp a run takes {seconds:.2f} s in the median over all datasets, first fifths left out."
    )


def _parts_text(results: Results) -> str:
    joins, rest = (_part_ratio(results, kind, "seconds") for kind in ("joins", "rest"))
    pushed = [_part_ratio(results, kind, "whole") for kind in ("joins", "rest")]
    return (
        "Seconds of a run, in the mean over datasets and repeats: what the engine says it spent on joins and on making result "
        "tables, and the rest: taking up tuples, storing them, saying who sees whom, cutting pieces. An interleaving policy is "
        "told apart from the others by what each tuple sees, so changing the driver costs nothing; but a piece of it has tuples "
        "of three streams, which are stored and joined one stream after another, where a piece of a whole buffer has one. And "
        "timestamp has to find out, by six searches per batch, how many tuples of each stream come before each of another; "
        "round-robin only counts. In the median over all runs initial-output-size takes "
        f"{joins:.2f} of timestamp's time for the joins and {rest:.2f} for the rest; with `push`, where a batch is one piece, "
        f"{pushed[0]:.2f} and {pushed[1]:.2f}."
    )


def _part_ratio(results: Results, kind: str, unit: str) -> float:
    """What initial-output-size spends on a part over what timestamp does, in the median over all runs."""
    ratios = []
    for cell in CELLS:
        for each in found(results, cell, unit):
            own, other = (_part(each["parts"][policy], kind) for policy in ("initial-output-size", "timestamp"))
            ratios.append(own / other)
    return float(np.median(ratios))


def _part(spent: Mapping[str, float], kind: str) -> float:
    return spent["all"] - spent["joins"] - spent["results"] if kind == "rest" else spent[kind]


def _introduction(grid: Grid) -> str:
    return (
        f"Three streams of {1000 * grid.keys:,} tuples (in V and VI {10 * grid.keys:,}, {100 * grid.keys:,} and "
        f"{1000 * grid.keys:,}) are joined on one key, in {grid.batches[0]} batches (“0.1M” time units) or {grid.batches[1]} "
        f"(“1M”). {grid.repeats} repeats, each with other data; every run is checked for its number of results, "
        f"{5000 * grid.keys:,} in I to IV and {1000 * grid.keys:,} in V and VI. Sessions of all policies get each batch one "
        "after another, in random order, in one process. As in the paper the first fifth of the batches is left out and all is "
        f"divided by what timestamp takes. Results come in about {grid.pieces} pieces per batch (`push_iter`), and in a second run "
        "at the end (`push`). The machine did other work as well.\n\n"
        "`declared` takes S1, S2, S3 in turn, `reversed` is the same with the streams declared as S3, S2, S1. What the paper "
        "leaves out, such as the sinusoid, and how keys, quarters and the b-model are read, is said in "
        "`experiments.valsomatzis`.\n\n"
        "“About” allows "
        f"{100 * NEAR:.0f} % of timestamp's time. A policy is ahead of another if the interval of their ratios, repeat by repeat, "
        "does not reach 1: for ten repeats, if it is so in nine."
    )


def _ranking_text(results: Results) -> str:
    words = []
    for name, what in RANKED.items():
        first = leaders({policy: overall(results, policy, *what) for policy in POLICIES})
        tied = f", not ahead of {_series(first[1:])}" if len(first) > 1 else ", ahead of all others"
        words.append(f"- {name}: {first[0]}{tied}")
    return (
        "Time until a share of a batch's results is there, and for the whole batch, over timestamp's time for the whole batch; "
        "the geometric mean over all datasets and periods. Bold: no other is ahead. Least:\n" + "\n".join(words)
    )


def _noise_text(results: Results) -> str:
    """How far apart the times are of two policies that do the same."""
    ratios = [
        values(results, cell, "output-rate", "total") / values(results, cell, "declared", "total")
        for cell in CELLS
        if all(each["counts"]["output-rate"] == each["counts"]["declared"] for each in found(results, cell, "seconds"))
    ]
    if not ratios:
        return "No two policies did exactly the same."
    ahead = sum(interval(each)[1] > 1 or interval(each)[2] < 1 for each in ratios)
    medians = [np.median(each) for each in ratios]
    return (
        f"How much of this is noise: in {len(ratios)} of {len(CELLS)} cases output-rate and declared have taken the same order in "
        f"every batch of every repeat, by their counters. Their times should be equal; the medians of their ratio are "
        f"{min(medians):.2f} to {max(medians):.2f}, and in {ahead} of these cases one seems to be ahead of the other."
    )


def _work_text(grid: Grid) -> str:
    return (
        "Times depend on the machine and on what else it does; work does not. It is counted here in probes and rows looked at, "
        f"after each piece, in {_plural(grid.counted, 'repeat')}. A row that is looked at may be another key's with the same "
        "place in the index, so their number also depends on when a window's index has last grown. Nor does all work take the "
        "same time. In I to III, S1's and S2's tuples walk the long chains of S3's window, where each row is somewhere else in "
        "memory, and S3's find the few rows of S1 and S2 that match again and again: consumption-rate is behind in work and not "
        "in time."
    )


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _series(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
