"""What the thesis says about figures 4-1 to 4-11, beside what was measured.

The figures are plots without printed numbers, so what can be compared is which method is better, and in how many draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dovetail.experiments.alrahmani import DELAYS, ORDERS, Point
from dovetail.experiments.report import Claim

Results: TypeAlias = Mapping[Point, Sequence[Mapping[str, Any]]]
Numbers: TypeAlias = NDArray[np.float64]


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
    for stated in (_orders, _unlimited, _both, _memory, _cpu, _delays):
        yield from stated(results)


_RESULTS = "nearly all CPU goes into final results, which every plan produces: what plans can differ in is a few per cent at most"
_STORES = (
    "the baselines take the first plan that fits, mostly n-ary joins, which store nothing; shared stores sub-joins to save CPU, "
    "so it cannot take less memory than plans without any"
)


def _orders(results: Results) -> Iterator[Claim]:
    # That an order is the least is taken to hold if it is so in the mean, and mostly not worse.
    chosen = points(results, "orders")
    others = ORDERS[:2]
    for figure, field, word in (("4-1", "cpu", "CPU"), ("4-2", "memory", "memory")):
        found = {other: compared(results, chosen, ("shared-predicate", other), field) for other in others}
        holds = all(np.mean(each <= 1 + 1e-9) > 0.5 and np.mean(each) <= 1 for each in found.values())
        yield Claim(
            f"figure {figure}",
            f"the shared-predicate order takes the least {word} of the three",
            "; ".join(
                f"{_less(each)} than {other}, equal in {np.mean(abs(each - 1) <= 1e-9):.0%}, mean ratio {np.mean(each):.4g}"
                for other, each in found.items()
            ),
            bool(holds),
            "an order decides which sub-joins are there to be reused, and with queries drawn at random no order is better as a rule",
        )


def _ratio(results: Results, scenario: str, methods: tuple[str, str], field: str) -> Numbers:
    return compared(results, points(results, "strategies", scenario), methods, field)


def _takes_less(place: str, says: str, ratios: Numbers, form: str, because: str) -> Claim:
    measured = f"{_less(ratios)}; median ratio {np.median(ratios):{form}}"
    return Claim(place, says, measured, bool(np.mean(ratios < 1) > 0.9), because)


def _unlimited(results: Results) -> Iterator[Claim]:
    for other in ("naive", "shared-naive"):
        cpu = _ratio(results, "none", ("shared", other), "cpu")
        yield _takes_less("figure 4-3", f"without limits, shared takes less CPU than {other}", cpu, ".4f", _RESULTS)
    memory = _ratio(results, "none", ("shared", "naive"), "memory")
    yield Claim(
        "figure 4-4",
        "without limits, shared takes more memory than both baselines",
        f"{_less(memory, more=True)} than naive; median ratio {np.median(memory):.3g}",
        bool(np.mean(memory > 1) > 0.9),
        "",
    )


def _both(results: Results) -> Iterator[Claim]:
    for place, word, because in (("figure 4-5", "CPU", _RESULTS), ("figure 4-6", "memory", _STORES)):
        for other in ("naive", "shared-naive"):
            found = _ratio(results, "both", ("shared", other), word.lower())
            says = f"with both limited, shared takes less {word} than {other}"
            yield _takes_less(place, says, found, ".4g", because)


def _memory(results: Results) -> Iterator[Claim]:
    cpu = _ratio(results, "memory", ("shared", "shared-naive"), "cpu")
    memory = _ratio(results, "memory", ("shared", "shared-naive"), "memory")
    yield Claim(
        "figures 4-7, 4-8",
        "with memory limited, shared and shared-naive act much the same",
        f"median ratios: CPU {np.median(cpu):.4f}, memory {np.median(memory):.4g}",
        bool(abs(np.median(cpu) - 1) < 0.05 and 0.5 < np.median(memory) < 2),
        "",
    )
    yield Claim(
        "figures 4-7, 4-8",
        "with memory limited, shared takes slightly less CPU and slightly more memory than shared-naive",
        f"CPU {_less(cpu)}, memory {_less(memory, more=True)}",
        bool(np.mean(cpu < 1) > 0.5 and np.mean(memory > 1) > 0.5),
        "a query's allocation of memory (3-5) is a share of a limit that is little more than its windows, so hardly any sub-join "
        "fits into it; the limit as a whole has room, which exchange uses",
    )
    naive = _ratio(results, "memory", ("naive", "shared-naive"), "memory")
    yield Claim(
        "figure 4-8",
        "with memory limited, naive takes the most memory, because it keeps windows per query",
        f"median {np.median(naive):.3g} times shared-naive",
        bool(np.median(naive) > 1),
        "",
    )


def _cpu(results: Results) -> Iterator[Claim]:
    chosen = points(results, "strategies", "cpu")
    states = np.concatenate([values(results[point], "naive", "states") for point in chosen])
    yield Claim(
        "section 4.2.5",
        "with CPU limited, the baselines always produce binary trees",
        f"naive stores nothing at all in {np.mean(states == 0):.0%} of draws, {np.nanmedian(states):.0f} sub-joins in the median",
        bool(np.median(states) > 0),
        "binary trees save about one per cent of CPU here, and the shares of equation 3-4 differ from what queries need by much "
        "more: a limit that forces trees on most queries leaves others without any plan",
    )
    cpu = _ratio(results, "cpu", ("shared", "shared-naive"), "cpu")
    says = "with CPU limited, shared takes less CPU than shared-naive"
    yield _takes_less("figure 4-9", says, cpu, ".4f", _RESULTS)
    largest = chosen[-1:]
    memory = compared(results, largest, ("shared", "shared-naive"), "memory")
    yield Claim(
        "figure 4-10",
        "with CPU limited and many predicates, the baselines take more memory than shared",
        f"{largest[0].predicates} predicates: {_less(memory)}; median ratio {np.median(memory):.3g}",
        bool(np.mean(memory < 1) > 0.5),
        "the baselines' n-ary joins store nothing (see above), while shared stores sub-joins",
    )


def _delays(results: Results) -> Iterator[Claim]:
    chosen = points(results, "delay")
    found = compared(results, chosen, ("shared", "naive"), "seconds")
    by_point = ", ".join(
        f"{point.predicates}: {np.median(compared(results, [point], ('shared', 'naive'), 'seconds')):.2g}"
        for point in chosen
    )
    yield Claim(
        "figure 4-11",
        "shared takes more time to plan than naive",
        f"{_less(found, more=True)}; median ratio by predicates {by_point}",
        bool(np.mean(found > 1) > 0.9),
        "a query that is equal to an earlier one is answered at once, and naive, where its first plan does not fit, tries plans one "
        "after the other as well; "
        f"limits are {', '.join(f'{limited} at {count}' for count, limited in DELAYS.items())}",
    )


def _less(ratios: Numbers, *, more: bool = False) -> str:
    """In how many draws it is less, or more."""
    share = np.mean(ratios > 1 + 1e-9) if more else np.mean(ratios < 1 - 1e-9)
    return f"{'more' if more else 'less'} in {share:.0%} of draws"
