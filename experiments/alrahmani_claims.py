"""What the thesis says about figures 4-1 to 4-11, beside what was measured.

The figures are plots without printed numbers, so what can be compared is which method is better. A statement agrees if it is so in
every setting (a number of predicates under one kind of limits) by more than chance: the interval of the median ratio over the draws
(see `significance`) must lie inside what the statement says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from experiments.alrahmani import DELAYS, ORDERS, Point
from experiments.report import Claim
from experiments.significance import ABOVE, BELOW, Band, Numbers, interval, share

Results: TypeAlias = Mapping[Point, Sequence[Mapping[str, Any]]]


def points(results: Results, experiment: str, scenario: str | None = None) -> list[Point]:
    """The points of an experiment, by predicates."""
    return [point for point in results if point.experiment == experiment and scenario in (None, point.scenario)]


def values(draws: Sequence[Mapping[str, Any]], method: str, field: str) -> Numbers:
    """One number of a method's plans, by draw; not a number where it found none."""
    return np.array([draw["plans"][method][field] if draw["plans"][method] else np.nan for draw in draws], dtype=float)


def compared(results: Results, chosen: Sequence[Point], methods: tuple[str, str], field: str) -> Numbers:
    """One method's number over another's, in all draws of some points in which both found a plan."""
    ratios = [values(results[point], methods[0], field) / values(results[point], methods[1], field) for point in chosen]
    found = np.concatenate(ratios)
    return found[~np.isnan(found)]


def above_least(draws: Sequence[Mapping[str, Any]], method: str) -> Numbers:
    """By how many per cent a method's CPU is above the least possible, by draw."""
    least: Numbers = np.array([draw["unavoidable"] for draw in draws], dtype=float)
    return 100 * (values(draws, method, "cpu") / least - 1)


def claims(results: Results) -> Iterator[Claim]:
    """Compare with every statement that the text makes about the figures."""
    for stated in (_orders, _unlimited, _both, _qualified, _memory, _cpu, _delays):
        yield from stated(results)


_RESULTS = "nearly all CPU goes into final results, which every plan produces: what plans can differ in is a few per cent at most"
_STORES = (
    "the baselines take the first plan that fits, mostly n-ary joins, which store nothing; shared stores sub-joins to save CPU, "
    "so it cannot take less memory than plans without any"
)


def _claim(place: str, says: str, cells: Mapping[str, Sequence[Numbers]], band: Band, because: str) -> Claim:
    """Ratios to some methods, by setting: the statement agrees if every interval of a median lies inside the band."""
    shown, inside, likely = [], list[bool](), True
    for against, ratios in cells.items():
        intervals = [interval(each) for each in ratios if len(each)]
        medians = [middle for middle, _, _ in intervals]
        so = [band[0] <= low and high <= band[1] for _, low, high in intervals]
        if len(intervals) == 1:
            ((middle, low, high),) = intervals
            shown.append(f"{middle:.4g} ({low:.4g} to {high:.4g}) of {against}")
        elif intervals:
            spread = f"medians {min(medians):.4g} to {max(medians):.4g} of {against}"
            shown.append(f"{spread}, so in {sum(so)} of {len(so)} settings")
        inside += so
        likely &= all(band[0] <= middle <= band[1] for middle in medians)
    holds = bool(inside) and all(inside)
    if likely:
        because = "the medians are as stated, but the draws differ too much to be sure of it"
    return Claim(place, says, "; ".join(shown) or "no draw in which both find a plan", holds, because)


def _cells(results: Results, scenario: str, method: str, others: Sequence[str], field: str) -> dict[str, list[Numbers]]:
    """A method's number over that of others, by setting: loose limits and tight ones, and predicates."""
    chosen = [*points(results, "strategies", scenario), *points(results, "tight", scenario)]
    return {
        f"{other}'s {_WORDS[field]}": [compared(results, [point], (method, other), field) for point in chosen]
        for other in others
    }


_WORDS = {"cpu": "CPU", "memory": "memory", "seconds": "time"}
BASELINES = ("naive", "shared-naive")


def _orders(results: Results) -> Iterator[Claim]:
    chosen = points(results, "orders")
    for figure, field in (("4-1", "cpu"), ("4-2", "memory")):
        cells = {f"{other}'s": [compared(results, chosen, ("shared-predicate", other), field)] for other in ORDERS[:2]}
        yield _claim(
            f"figure {figure}",
            f"the shared-predicate order takes less {_WORDS[field]} than the other two",
            cells,
            BELOW,
            "an order decides which sub-joins are there to be reused, and with queries drawn at random no order is better as a rule",
        )


def _unlimited(results: Results) -> Iterator[Claim]:
    for other in BASELINES:
        says = f"without limits, shared takes less CPU than {other}"
        yield _claim("figure 4-3", says, _cells(results, "none", "shared", (other,), "cpu"), BELOW, _RESULTS)
    memory = _cells(results, "none", "shared", BASELINES, "memory")
    says = "without limits, shared takes more memory than both baselines"
    yield _claim("figure 4-4", says, memory, ABOVE, "the baselines store more")


def _both(results: Results) -> Iterator[Claim]:
    for place, field, because in (("figure 4-5", "cpu", _RESULTS), ("figure 4-6", "memory", _STORES)):
        for other in BASELINES:
            says = f"with both limited, shared takes less {_WORDS[field]} than {other}"
            yield _claim(place, says, _cells(results, "both", "shared", (other,), field), BELOW, because)


def _qualified(results: Results) -> Iterator[Claim]:
    found: dict[str, float] = {}
    for strategy in (*BASELINES, "shared"):
        plans = [values(results[point], strategy, "cpu") for point in points(results, "tight")]
        found[strategy] = float(np.mean(~np.isnan(np.concatenate(plans))))
    yield Claim(
        "sections 4.2.3 to 4.2.5",
        "all three techniques stay within limited resources",
        f"plans found within tight limits: {', '.join(f'{name} {part:.0%}' for name, part in found.items())} of draws",
        min(found.values()) == 1,
        "within loose limits naive finds a plan, because that is how they are chosen; tight ones lie between what n-ary joins and "
        "binary trees need that share, so there is no room to compute equal joins more than once, nor for windows per query, and each "
        "query gets an allocation that may be less than what it needs",
    )


def _memory(results: Results) -> Iterator[Claim]:
    cpu, memory = (_cells(results, "memory", "shared", ("shared-naive",), field) for field in ("cpu", "memory"))
    place = "figures 4-7, 4-8"
    yield _claim(
        place, "with memory limited, shared and shared-naive take much the same CPU (5 %)", cpu, (0.95, 1.05), _RESULTS
    )
    yield _claim(
        place,
        "with memory limited, shared and shared-naive take much the same memory (a factor of 2)",
        memory,
        (0.5, 2.0),
        "where the limit leaves room for sub-joins, shared stores some, and shared-naive takes n-ary joins, which fit",
    )
    scarce = (
        "table 3-1 prefers what takes less of the scarcer resource, and CPU without a limit is never scarce: a stored sub-join takes "
        "memory, so shared stores none, though the limit has room, which exchange uses"
    )
    yield _claim(place, "with memory limited, shared takes slightly less CPU than shared-naive", cpu, BELOW, scarce)
    yield _claim(
        place, "with memory limited, shared takes slightly more memory than shared-naive", memory, ABOVE, scarce
    )
    yield _claim(
        "figure 4-8",
        "with memory limited, naive takes the most memory, because it keeps windows per query",
        _cells(results, "memory", "naive", ("shared-naive", "shared"), "memory"),
        ABOVE,
        "where the limit leaves room for sub-joins, shared stores more than windows per query take",
    )


def _cpu(results: Results) -> Iterator[Claim]:
    chosen = [*points(results, "strategies", "cpu"), *points(results, "tight", "cpu")]
    plans = [(point, draw["plans"]["naive"]) for point in chosen for draw in results[point] if draw["plans"]["naive"]]
    # A tree of binary joins over n streams stores n - 2 sub-joins.
    trees, low, _ = share([plan["states"] == point.queries * (point.predicates - 1) for point, plan in plans])
    yield Claim(
        "section 4.2.5",
        "with CPU limited, the baselines always produce binary trees",
        f"all joins of naive's plan are binary in {trees:.0%} of draws, and it stores nothing in "
        f"{np.mean([plan['states'] == 0 for _, plan in plans]):.0%}",
        low > 0.9,
        "binary trees save about one per cent of CPU here, and the shares of equation 3-4 differ from what queries need by much "
        "more: a limit that forces trees on most queries leaves others without any plan",
    )
    says = "with CPU limited, shared takes less CPU than shared-naive"
    yield _claim("figure 4-9", says, _cells(results, "cpu", "shared", ("shared-naive",), "cpu"), BELOW, _RESULTS)
    most = max(point.predicates for point in chosen)
    largest = [point for point in chosen if point.predicates == most]
    yield _claim(
        "figure 4-10",
        "with CPU limited and many predicates, both baselines take more memory than shared",
        {
            f"{other}'s at {most} predicates": [
                compared(results, [point], ("shared", other), "memory") for point in largest
            ]
            for other in BASELINES
        },
        BELOW,
        "the baselines' n-ary joins store nothing (see above), while shared stores sub-joins",
    )


def _delays(results: Results) -> Iterator[Claim]:
    cells = {
        f"naive's at {point.predicates} predicates": [compared(results, [point], ("shared", "naive"), "seconds")]
        for point in points(results, "delay")
    }
    yield _claim(
        "figure 4-11",
        "shared takes more time to plan than naive",
        cells,
        ABOVE,
        "a query that is equal to an earlier one is answered at once, and naive, where its first plan does not fit, tries plans one "
        "after the other as well; "
        f"limits are {', '.join(f'{limited} at {count}' for count, limited in DELAYS.items())}",
    )
