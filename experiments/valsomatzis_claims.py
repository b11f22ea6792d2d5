"""What the paper says of its policies, beside what was measured; statements are judged by the one rule (see `significance`).

A statement about one dataset or one kind is about a median; what is so “everywhere”, or for “all” policies, is about all cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from experiments.report import Claim
from experiments.significance import BELOW, always, within
from experiments.valsomatzis import AXIS, PERIODS, POLICIES, STREAMS, Numbers, arrival_times
from experiments.valsomatzis_measured import (
    CELLS,
    Cell,
    Results,
    by_half,
    compiled_alone,
    counted,
    curve,
    overall,
    printed,
    values,
)

STEADY, BURSTY = ("I", "II", "III"), ("IV", "V", "VI")
EARLY = ("initial-output-size", "output-rate")
WHOLE = ("consumption-rate", *EARLY)
"""The paper's proposals, which take whole buffers."""
NEAR = 0.05
"""What "about", "almost" and "similar" allow."""


def _cells(datasets: Sequence[str], periods: Sequence[str] = PERIODS) -> list[Cell]:
    return list(product(datasets, periods))


@dataclass(frozen=True)
class Program:
    """What was measured of the engine or of the paper's program, and why it differs from the paper."""

    title: str
    results: Results
    noise: str
    total: str


def claims(results: Results) -> Iterator[Claim]:
    """Compare with tables 4 and 5, the statements of section 4.2 and its discussion."""
    engine = Program("engine", results, _NOISE, _TOTAL)
    compiled = Program("tuple at a time", compiled_alone(results), _CACHES, _DRIVERS)
    for program in (engine, compiled):
        for stated in (_printed, _steady, _fourth, _fifth_and_sixth, _discussion):
            yield from (replace(claim, place=f"{claim.place}, {program.title}") for claim in stated(program))


def _printed(of: Program) -> Iterator[Claim]:
    """Tables 4 and 5: every printed number but timestamp's own."""
    for number, field, what, because in (
        (4, "total", "running times", of.total),
        (5, "half", "shares of results at half time", _results_reason(of.results)),
    ):
        for policy, rows in printed()[field].items():
            known = [(cell, rows[cell[0]][PERIODS.index(cell[1])]) for cell in CELLS]
            cells = [values(of.results, cell, policy, field) - theirs for cell, theirs in known if theirs is not None]
            if field == "total" and policy == "timestamp":
                continue
            yield within(
                f"table {number}",
                f"{policy}'s {what} (to {NEAR:g})",
                cells,
                (-NEAR, NEAR),
                " more than printed",
                because,
            )


def _totals(results: Results, cells: Sequence[Cell], policies: Sequence[str]) -> list[Numbers]:
    return [values(results, cell, policy, "total") for cell in cells for policy in policies]


def _ratios(results: Results, cells: Sequence[Cell], policy: str, others: Sequence[str]) -> list[Numbers]:
    return [
        values(results, cell, policy, "total") / values(results, cell, other, "total")
        for cell in cells
        for other in others
    ]


def _steady(of: Program) -> Iterator[Claim]:
    results = of.results
    cells = _cells(STEADY)
    yield within(
        "I-III",
        "timestamp and round-robin differ by less than 0.2 % in running time",
        _totals(results, cells, ("round-robin",)),
        (0.998, 1.002),
        " of timestamp",
        f"{_rank_reason(of)}. The paper's own table 4 has differences up to 1.5 %",
    )
    yield within(
        "I-III",
        "initial-output-size and output-rate have 60 % of the results in less than 30 % of timestamp's time",
        [values(results, cell, policy, "to60") for cell in cells for policy in EARLY],
        (0, 0.3),
        " of timestamp's time",
        _results_reason(results),
    )
    yield within(
        "I-III",
        "initial-output-size and output-rate take about 20 % less time than timestamp",
        _totals(results, cells, EARLY),
        (0.8 - NEAR, 0.8 + NEAR),
        " of timestamp",
        of.total,
    )
    yield within(
        "I-III",
        "initial-output-size and output-rate take similar times",
        _ratios(results, cells, EARLY[0], EARLY[1:]),
        (1 - NEAR, 1 + NEAR),
        " of output-rate",
        of.noise,
    )


def _fourth(of: Program) -> Iterator[Claim]:
    results = of.results
    cells = _cells(("IV",))
    yield within(
        "IV",
        "timestamp and round-robin end at almost the same time",
        _totals(results, cells, ("round-robin",)),
        (1 - NEAR, 1 + NEAR),
        " of timestamp",
        _rank_reason(of),
    )
    yield within(
        "IV, first half",
        "round-robin is slightly faster than timestamp",
        [by_half(results, cell, "round-robin", 0) for cell in cells],
        (0.8, BELOW[1]),
        " of timestamp",
        _rank_reason(of),
    )
    for period, less in (("0.1M", 0.25), ("1M", 0.2)):
        yield within(
            f"IV, {period}",
            f"initial-output-size and output-rate take about {100 * less:.0f} % less time than timestamp",
            _totals(results, [("IV", period)], EARLY),
            (1 - less - NEAR, 1 - less + NEAR),
            " of timestamp",
            of.total,
        )
    yield within(
        "IV",
        "initial-output-size and output-rate gain more in the first half, where S3 is sparse",
        [by_half(results, cell, policy, 0) / by_half(results, cell, policy, 1) for cell in cells for policy in EARLY],
        BELOW,
        " of the second half's ratio",
        of.noise,
    )


def _fifth_and_sixth(of: Program) -> Iterator[Claim]:
    results = of.results
    cells = _cells(("V",))
    yield within(
        "V",
        "initial-output-size and output-rate have 80 % of the results in 20-30 % of timestamp's time",
        [curve(results, cell, policy)[:, _at(0.3)] for cell in cells for policy in EARLY],
        (0.8, 1),
        " of the results at 30 %",
        _results_reason(results),
    )
    yield always(
        "V",
        "all other policies take less time than timestamp",
        _totals(results, cells, ("round-robin", *WHOLE)),
        BELOW,
        " of timestamp",
        of.noise,
    )
    yield within(
        "V",
        "consumption-rate has only a very small share (up to 10 %) of the results at 70 % of its time",
        [values(results, cell, "consumption-rate", "own70") for cell in cells],
        (0, 0.1),
        " of the results",
        _third_reason(results),
    )
    yield within(
        "V",
        "consumption-rate takes about as long as output-rate",
        _ratios(results, cells, "consumption-rate", ("output-rate",)),
        (1 - NEAR, 1 + NEAR),
        " of output-rate",
        of.noise,
    )
    yield within(
        "V, 1M",
        "initial-output-size takes about half of timestamp's time",
        _totals(results, [("V", "1M")], EARLY[:1]),
        (0.5 - NEAR, 0.5 + NEAR),
        " of timestamp",
        of.total,
    )
    sixth = _cells(("VI",))
    yield within(
        "VI",
        "initial-output-size takes the least time",
        _ratios(results, sixth, EARLY[0], ("timestamp", "round-robin", "consumption-rate", "output-rate")),
        BELOW,
        " of another's time",
        of.noise,
    )
    yield within(
        "VI, first half",
        "consumption-rate takes less time than timestamp",
        [by_half(results, cell, "consumption-rate", 0) for cell in sixth],
        BELOW,
        " of timestamp",
        of.noise,
    )
    yield within(
        "VI",
        "consumption-rate is slower than timestamp with early results",
        [
            values(results, cell, "consumption-rate", "half") - values(results, cell, "timestamp", "half")
            for cell in sixth
        ],
        (-1, -1e-9),
        " more of the results at half of timestamp's time",
        "at half of timestamp's time it has done more of its work than timestamp, though it does the poorest part first; "
        "counted in work instead of time it has fewer results at half than timestamp, as in the paper (table 5 in work)",
    )


def _discussion(of: Program) -> Iterator[Claim]:
    results = of.results
    yield always(
        "discussion",
        "timestamp takes more time than each of the three proposals, everywhere",
        _totals(results, CELLS, WHOLE),
        BELOW,
        " of timestamp",
        of.noise,
    )
    for unit, counted_in in (("seconds", "time"), ("work", "work")):
        yield always(
            "discussion",
            f"timestamp has fewer early results than initial-output-size and output-rate, everywhere (by {counted_in})",
            [
                values(results, cell, policy, "half", unit) - values(results, cell, "timestamp", "half", unit)
                for cell in CELLS
                for policy in EARLY
            ],
            (1e-9, 1),
            f" more of the results at half of timestamp's {counted_in}",
            of.noise if unit == "seconds" else _work_reason(results),
        )
    yield within(
        "discussion",
        "round-robin may take less time than timestamp for bursty arrivals and large batches",
        _totals(results, _cells(BURSTY, ("1M",)), ("round-robin",)),
        BELOW,
        " of timestamp",
        of.noise,
    )
    yield within(
        "discussion",
        "timestamp is slower because it makes more probes",
        [
            counted(results, cell, policy, "probes") / counted(results, cell, "timestamp", "probes")
            for cell in CELLS
            for policy in WHOLE
        ],
        BELOW,
        " of timestamp's probes",
        "every tuple probes once, and every intermediate tuple once more; who comes first changes only the latter, and only within a "
        "batch: they are more if S3 comes last, fewer if it comes first",
    )
    others = ("consumption-rate", "output-rate")
    for says, field in (("takes the least time", "total"), ("is the first with 60 % of the results", "to60")):
        own = overall(results, EARLY[0], field)
        yield within(
            "discussion",
            f"of the three proposals, initial-output-size {says} over all datasets",
            [own / overall(results, other, field) for other in others],
            BELOW,
            " of another's",
            of.noise if field == "total" else _size_reason(results),
        )


# -- why we differ ------------------------------------------------------------------------------------------------------------------

_NOISE = (
    "policies that take whole buffers do the same work to a few per cent, and their times cannot be told apart here"
)
_TOTAL = "what is saved is not probes, and how much it is depends on the size of pieces and batches: see “Where the time goes”"


def _at(share: float) -> int:
    return int(np.searchsorted(AXIS, share - 1e-9))


_CACHES = "policies that take whole buffers do the same work to a few per cent, and what is left depends on the caches of the machine"
_DRIVERS = (
    "the probes are the same; taking whole buffers saves going from table to table with each tuple, and how much that is depends on "
    "the machine and on how large the tables are: least in V and VI, where two of them are small"
)


def _rank_reason(of: Program) -> str:
    results = of.results
    probes = [counted(results, c, "round-robin", "probes") / counted(results, c, "timestamp", "probes") for c in CELLS]
    low, high = np.min(probes), np.max(probes)
    same = f"the probes are the same ({low:.3f} to {high:.3f} of timestamp's)"
    if of.title != "engine":
        return f"{same}, and so are the changes of streams, to a few per cent"
    return (
        f"{same}, but to know who comes before whom timestamp has to "
        "search by time, six times per batch, and round-robin to count"
    )


def _results_reason(results: Results) -> str:
    shares = [
        counted(results, cell, "timestamp", "results") / counted(results, cell, "timestamp", "probes", "rows_read")
        for cell in CELLS
    ]
    least = min(np.min(values(results, cell, policy, "to60", "work")) for cell in CELLS for policy in POLICIES)
    return (
        f"of all probes and rows looked at, {np.min(shares):.0%} to {np.max(shares):.0%} are the last row of a result, which is "
        "looked at when the result comes and not later; taking up and storing tuples comes on top. So no policy has 60 % of the "
        f"results for 30 % of the work: the least is {least:.0%}. The paper's costs must be mostly in tuples that match nothing"
    )


def _size_reason(results: Results) -> str:
    own = [
        np.median(values(results, cell, EARLY[0], "to60") / values(results, cell, EARLY[1], "to60")) for cell in CELLS
    ]
    worst = CELLS[int(np.argmax(own))]
    return (
        "equation 1 ranks buffers by |buffer| / |window|, as all other factors are common: the size of the results, not what "
        "they cost. A large buffer with many results may take longest, and output-rate divides by that size. The difference is "
        f"largest in dataset {worst[0]} at {worst[1]}: {max(own):.2f} of output-rate's time"
    )


def _work_reason(results: Results) -> str:
    less = {
        (*cell, policy): np.median(
            values(results, cell, policy, "half", "work") - values(results, cell, "timestamp", "half", "work")
        )
        for cell in CELLS
        for policy in EARLY
    }
    dataset, period, policy = worst = min(less, key=lambda case: float(less[case]))
    return (
        f"a policy that takes the buffer with the most results first need not take the one with the most per probe: {policy} has "
        f"{-less[worst]:.2f} less in dataset {dataset} at {period}"
    )


def _third_reason(results: Results) -> str:
    shares = [
        counted(results, cell, "consumption-rate", "s3") / counted(results, cell, "consumption-rate", *STREAMS)
        for cell in _cells(("V",))
    ]
    arrived = np.bincount(arrival_times("80-20", 1_000_000, 100, np.random.default_rng(0)), minlength=100)[20:]
    third = np.mean(arrived / (arrived + 1100))  # S1 and S2 have 1,100 tuples in each batch of 0.1M
    return (
        f"it takes S3, then S2, then S1, as in the paper, and S3 finds {np.min(shares):.0%} to {np.max(shares):.0%} of the results. "
        f"But between its bursts S3 has few tuples: in the mean over the batches {third:.0%} of all. S2's turn comes before 70 % of "
        "the time is over, and results take time as well"
    )
