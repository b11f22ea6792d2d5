"""What the thesis says about figures 4-1 to 4-11, beside ours; statements are judged by the one rule (see `significance`).

The figures are plots without printed numbers, so what can be compared is which method is better: by the median ratio over the draws,
in each setting (a number of predicates under one kind of limits). All but planning times is arithmetic of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from experiments.alrahmani import DELAYS, ORDERS, Point
from experiments.alrahmani_printed import PRINTED
from experiments.report import Claim, untested
from experiments.significance import ABOVE, BELOW, YES, Band, Interval, Numbers, always, inside, interval

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


def _claim(
    place: str, says: str, cells: Mapping[str, Sequence[Numbers]], band: Band, because: str, *, computed: bool = True
) -> Claim:
    """Ratios to some methods, by setting, over the draws in which both found a plan."""
    found = {against: [interval(each) for each in ratios if len(each)] for against, ratios in cells.items()}
    every = [each for intervals in found.values() for each in intervals]
    if not every:
        return untested(place, says, "no draw in which both find a plan", "no draw in which both find a plan")
    shown = "; ".join(_shown(intervals, band, against) for against, intervals in found.items() if intervals)
    return replace(inside(place, says, every, band, "", because, computed=computed), measured=shown)


def _shown(intervals: Sequence[Interval], band: Band, against: str) -> str:
    if len(intervals) == 1:
        ((middle, low, high),) = intervals
        return f"{middle:.4g} ({low:.4g} to {high:.4g}) of {against}"
    medians = [middle for middle, _, _ in intervals]
    so = sum(band[0] <= low and high <= band[1] for _, low, high in intervals)
    return f"medians {min(medians):.4g} to {max(medians):.4g} of {against}, so in {so} of {len(intervals)} settings"


def _cells(results: Results, scenario: str, method: str, others: Sequence[str], field: str) -> dict[str, list[Numbers]]:
    """A method's number over that of others, by setting: predicates, and loose and tight limits, or those of the printed methods."""
    kinds = ("printed",) if {method, *others}.intersection(PRINTED) else ("strategies", "tight")
    chosen = [point for kind in kinds for point in points(results, kind, scenario)]
    return {
        f"{other}'s {_WORDS[field]}": [compared(results, [point], (method, other), field) for point in chosen]
        for other in others
    }


_WORDS = {"cpu": "CPU", "memory": "memory", "seconds": "time"}
BASELINES = ("naive", "shared-naive")
"""As they are mended; `PRINTED` are those of the thesis."""


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
        for other in (*BASELINES, *PRINTED):
            says = f"with both limited, shared takes less {_WORDS[field]} than {other}"
            yield _claim(place, says, _cells(results, "both", "shared", (other,), field), BELOW, because)


def _qualified(results: Results) -> Iterator[Claim]:
    found = {}
    for strategy in (*BASELINES, "shared", *PRINTED):
        kind = "printed" if strategy in PRINTED else "tight"
        draws = [draw for point in points(results, kind) for draw in results[point]]
        found[strategy] = np.array([_keeps_limits(draw, strategy) for draw in draws])
    shares = ", ".join(f"{name} {np.mean(each):.0%}" for name, each in found.items())
    yield always(
        "sections 4.2.3 to 4.2.5",
        "all three techniques stay within limited resources",
        np.concatenate(list(found.values())).astype(float),
        YES,
        f"; a plan within tight limits, for the printed ones within theirs, has {shares}",
        "within loose limits naive finds a plan, because that is how they are chosen; tight ones lie between what n-ary joins and "
        "binary trees need that share, so there is no room to compute equal joins more than once, nor for windows per query, and each "
        "query gets an allocation that may be less than what it needs; as printed, an n-ary join within its allocation is taken even "
        "if less CPU than that is left",
        computed=True,
    )


def _keeps_limits(draw: Mapping[str, Any], method: str) -> bool:
    """Whether a plan was found that is within the limits; as printed, a query may exceed what is left."""
    plan = draw["plans"][method]
    limits = draw["limits"].items()
    return plan is not None and all(limit is None or plan[name] <= limit * (1 + 1e-6) for name, limit in limits)


def _memory(results: Results) -> Iterator[Claim]:
    place = "figures 4-7, 4-8"
    scarce = (
        "table 3-1 prefers what takes less of the scarcer resource, and CPU without a limit is never scarce: a stored sub-join takes "
        "memory, so shared stores none, though the limit has room, which exchange uses"
    )
    room = (
        "where the limit leaves room for sub-joins, shared stores some, and shared-naive takes n-ary joins, which fit"
    )
    for naive, other in (BASELINES, PRINTED):
        cpu, memory = (_cells(results, "memory", "shared", (other,), field) for field in ("cpu", "memory"))
        told = f"with memory limited, shared {{}} {other}"
        yield _claim(place, told.format("takes much the same CPU (5 %) as"), cpu, (0.95, 1.05), _RESULTS)
        yield _claim(place, told.format("takes much the same memory (a factor of 2) as"), memory, (0.5, 2.0), room)
        yield _claim(place, told.format("takes slightly less CPU than"), cpu, BELOW, scarce)
        yield _claim(place, told.format("takes slightly more memory than"), memory, ABOVE, scarce)
        yield _claim(
            "figure 4-8",
            f"with memory limited, {naive} takes the most memory, because it keeps windows per query",
            _cells(results, "memory", naive, (other, "shared"), "memory"),
            ABOVE,
            "where the limit leaves room for sub-joins, shared stores more than windows per query take",
        )


def _cpu(results: Results) -> Iterator[Claim]:
    for kinds, (naive, other) in ((("strategies", "tight"), BASELINES), (("printed",), PRINTED)):
        chosen = [point for kind in kinds for point in points(results, kind, "cpu")]
        yield _trees(results, chosen, naive)
        says = f"with CPU limited, shared takes less CPU than {other}"
        yield _claim("figure 4-9", says, _cells(results, "cpu", "shared", (other,), "cpu"), BELOW, _RESULTS)
        most = max(point.predicates for point in chosen)
        largest = [point for point in chosen if point.predicates == most]
        yield _claim(
            "figure 4-10",
            f"with CPU limited and many predicates, {naive} and {other} take more memory than shared",
            {
                f"{each}'s at {most} predicates": [
                    compared(results, [point], ("shared", each), "memory") for point in largest
                ]
                for each in (naive, other)
            },
            BELOW,
            "where an n-ary join fits its allocation the baselines store nothing, while shared stores sub-joins",
        )


def _trees(results: Results, chosen: Sequence[Point], naive: str) -> Claim:
    plans = [(point, draw["plans"][naive]) for point in chosen for draw in results[point] if draw["plans"][naive]]
    says = f"with CPU limited, the baselines always produce binary trees ({naive})"
    if not plans:
        return untested("section 4.2.5", says, "no plan in any draw", "it finds no plan in any draw")
    # A tree of binary joins over n streams stores n - 2 sub-joins.
    trees = np.array([plan["states"] == point.queries * (point.predicates - 1) for point, plan in plans], float)
    return always(
        "section 4.2.5",
        says,
        trees,
        YES,
        f"; it stores nothing in {np.mean([plan['states'] == 0 for _, plan in plans]):.0%}",
        "binary trees save about one per cent of CPU here, and the shares of equation 3-4 differ from what queries need by much "
        "more: some queries' n-ary joins fit their allocations whatever the limit",
        computed=True,
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
        computed=False,
    )
