"""What the paper says about figures 4, 7, 9 and 10, beside ours; statements are judged by the one rule (see `significance`).

Costs are arithmetic of the cost model, times are measured. “Up to about” allows a factor of 2. Times are compared point by point: the
mean over a point's settings is one observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.raghavan import ACYCLIC, SHAPES, Point
from experiments.report import Claim
from experiments.significance import BELOW, YES, Interval, Numbers, always, happens, inside, interval, share

Results: TypeAlias = Mapping[Point, Mapping[str, Any]]
CYCLIC = ("cyclic", "complete")
STEPS = 9
"""So many of the largest numbers of streams are looked at for the growth of times."""


def main_grid(results: Results, shapes: Sequence[str]) -> list[tuple[Point, Mapping[str, Any]]]:
    """The points of the paper's grid with one of some shapes."""
    return [(point, result) for point, result in results.items() if point.is_papers and point.shape in shapes]


def optimal(results: Results, method: str, shapes: Sequence[str]) -> float:
    """The share of optimal plans over the whole grid."""
    return float(np.mean([result["optimal"][method] for _, result in main_grid(results, shapes)]))


def ratios(results: Results, method: str, shapes: Sequence[str]) -> Numbers:
    """Costs over the optimum, of all settings."""
    return np.concatenate([result["ratios"][method] for _, result in main_grid(results, shapes)])


def claims(results: Results) -> Iterator[Claim]:
    """Compare with every statement that the text makes about figures 4, 7, 9 and 10."""
    for stated in (_f_greedy, _treeopt, _fab):
        yield from stated(results)


def _cases(results: Iterable[tuple[Point, Mapping[str, Any]]], method: str) -> NDArray[np.bool_]:
    """Whether plans are optimal, to nine digits; ratios are kept with seven."""
    found = [(round(result["optimal"][method] * point.runs), point.runs) for point, result in results]
    return np.concatenate([np.arange(runs) < count for count, runs in found])


def _optimal(place: str, says: str, cases: NDArray[np.bool_], because: str) -> Claim:
    """A claim that every plan is optimal."""
    return always(place, says, cases.astype(float), YES, "", because, computed=True)


def _quantile(numbers: Numbers, part: float) -> Interval:
    """A quantile of many settings, and what it lies between: order statistics, by the normal approximation of their ranks."""
    count, ordered = len(numbers), np.sort(numbers)
    ranks = (part * count + side * 1.959964 * sqrt(part * (1 - part) * count) for side in (-1, 1))
    low, high = (float(ordered[min(max(round(rank), 0), count - 1)]) for rank in ranks)
    return float(np.quantile(numbers, part)), low, high


def _times(results: Results, methods: tuple[str, str], shapes: Sequence[str]) -> Numbers:
    """One method's planning time over another's, by point."""
    times = [result["seconds"] for _, result in main_grid(results, shapes)]
    return np.array([each[methods[0]] / each[methods[1]] for each in times if set(methods) <= set(each)])


# -- figure 4 ---------------------------------------------------------------------------------------------------------------------


def _f_greedy(results: Results) -> Iterator[Claim]:
    yield _growth(results)
    yield _optimal(
        "figure 4(b)",
        "F-Greedy is optimal on stars",
        _cases(main_grid(results, ("star",)), "f-greedy"),
        "it is not on ours",
    )
    compared = [(point, result) for point, result in results.items() if point.objective == "comparisons"]
    yield _optimal(
        "figure 4(b)",
        "F-Greedy is optimal on stars, if comparisons are counted as in equation 2",
        _cases(compared, "f-greedy"),
        "it is so for tuples produced only; the last selectivity costs no comparisons, so the best order is another one",
    )
    leaves = np.mean([result["from_leaves"]["f-greedy"] for _, result in main_grid(results, ("linear",))])
    yield _optimal(
        "figure 4(b)",
        "F-Greedy is optimal on linear queries",
        _cases(main_grid(results, ("linear",)), "f-greedy"),
        f"it is from the two end streams ({leaves:.0%} of those pipelines), where there is no choice; an inner stream has two "
        "arms, and a poor next stream can hide a good arm. The statement would hold if only the pipeline of one end, such as S1, "
        "had been looked at",
    )
    for figure, shape, worst in (("4(c)", "acyclic", 5.0), ("4(d)", "complete", 15.0)):
        yield always(
            f"figure {figure}",
            f"F-Greedy costs up to about {worst:g} times the optimum on {shape} graphs",
            ratios(results, "f-greedy", (shape,)),
            (1, 2 * worst),
            " times",
            "the worst of many draws depends on the range of selectivities, which is not printed, and on counting whole plans or "
            "single pipelines",
            computed=True,
        )


def _growth(results: Results) -> Claim:
    """Exponential: with each stream more the time grows by a factor, which for F-Greedy, a polynomial, is near 1."""
    by_count = sorted((point.count, result["seconds"]) for point, result in main_grid(results, ("complete",)))[-STEPS:]
    slow, other = (
        _factor([count for count, _ in by_count], [seconds[method] for _, seconds in by_count])
        for method in ("dmjoin", "f-greedy")
    )
    return inside(
        "figure 4(a)",
        "DMJoin's planning time grows exponentially with the streams",
        [slow],
        (other[2], np.inf),
        f" times as long with each stream more, F-Greedy's {other[0]:.3g} ({other[1]:.3g} to {other[2]:.3g}) times",
        "times differ too much between points, or what a plan costs besides is most of it",
    )


def _factor(counts: Sequence[int], seconds: Sequence[float]) -> Interval:
    """By what a time grows with each stream, and what that lies between: a line through its logarithm, with Student's t."""
    x, y = np.array(counts) - np.mean(counts), np.log(seconds)
    slope = float(np.sum(x * y) / np.sum(x * x))
    rest = y - np.mean(y) - slope * x
    free = len(counts) - 2
    half = _STUDENT[free] * sqrt(float(np.sum(rest * rest)) / free / float(np.sum(x * x)))
    return exp(slope), exp(slope - half), exp(slope + half)


_STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
"""By degrees of freedom: two-sided, 95 %."""


# -- figure 7 ---------------------------------------------------------------------------------------------------------------------


def _treeopt(results: Results) -> Iterator[Claim]:
    trees = _cases(main_grid(results, ACYCLIC), "treeopt")
    yield _optimal("figure 7(a)", "TreeOpt is optimal on every acyclic graph", trees, "it is not on ours")
    largest = max(point.count for point, _ in main_grid(results, CYCLIC))
    last = [(point, result) for point, result in main_grid(results, CYCLIC) if point.count == largest]
    yield inside(
        "figure 7(a)",
        "TreeOpt's share of optimal plans on cyclic graphs falls to zero (less than 1 %)",
        [share(_cases(last, "treeopt"))],
        (0, 0.01),
        f" of plans at {largest} streams",
        "our cyclic graphs have fewer edges outside the spanning tree, or too few streams",
        computed=True,
    )
    yield inside(
        "figure 7(b)",
        "TreeOpt plans acyclic graphs faster than F-Greedy",
        [interval(_times(results, ("treeopt", "f-greedy"), ACYCLIC))],
        BELOW,
        " of F-Greedy's time, by points",
        "with few streams ranks and merging cost more than looking at all candidates",
    )
    tree = ratios(results, "treeopt", CYCLIC)
    yield inside(
        "figure 7(c)",
        "TreeOpt's upper quartile on cyclic graphs is about 2.5 times the optimum (2 to 3)",
        [_quantile(tree, 0.75)],
        (2.0, 3.0),
        " times",
        "the spanning tree ignores all other edges, so the figure depends on how many there are and how selective: the paper "
        "prints neither",
        computed=True,
    )
    yield happens(
        "figure 7(c)",
        "TreeOpt can cost 50 times the optimum, or more",
        tree,
        (50, np.inf),
        " times",
        "fewer or smaller graphs were drawn",
        computed=True,
    )
    for shape in CYCLIC:
        relative = ratios(results, "f-greedy", (shape,)) / ratios(results, "treeopt", (shape,))
        yield inside(
            "section 4",
            f"F-Greedy outperforms TreeOpt on {shape} graphs",
            [_quantile(relative, 0.5)],
            BELOW,
            f" of TreeOpt's cost; less in {np.mean(relative < 1):.0%} of settings, more in {np.mean(relative > 1):.0%}",
            "the spanning tree holds most of what matters in our graphs",
            computed=True,
        )


# -- figures 9 and 10 -------------------------------------------------------------------------------------------------------------


def _fab(results: Results) -> Iterator[Claim]:
    yield inside(
        "figure 9(a)",
        "FAB plans faster than DMJoin",
        [interval(_times(results, ("fab", "dmjoin"), SHAPES))],
        BELOW,
        f" of DMJoin's time, by points; {_times(results, ('fab', 'dmjoin'), CYCLIC)[-1]:.2g} on the largest complete graphs",
        "our DMJoin fills one table for all streams, which is fast for few of them",
    )
    more, shown = [], list[str]()
    for shape in SHAPES:
        ours, theirs = (share(_cases(main_grid(results, (shape,)), method)) for method in ("fab", "f-greedy"))
        if not ours[0] == theirs[0] == 1:  # on stars both are optimal
            more.append((ours[0] - theirs[0], ours[1] - theirs[2], ours[2] - theirs[1]))
        shown.append(f"{shape} {ours[0]:.0%} against {theirs[0]:.0%}")
    yield inside(
        "figure 9(b)",
        "FAB is optimal more often than F-Greedy, for all shapes (or both always)",
        more,
        (0, 1),
        f" more ({', '.join(shown)})",
        "F-Greedy is optimal as often",
        computed=True,
    )
    for figure, shape, bound in (("10(a)", "acyclic", 1.25), ("10(b)", "complete", 2.0), ("10(b)", "cyclic", 2.0)):
        yield always(
            f"figure {figure}",
            f"FAB costs at most {bound:g} times the optimum on {shape} graphs",
            ratios(results, "fab", (shape,)),
            (1, bound),
            " times",
            "both of FAB's orders go wrong on the same graph now and then, more often the more streams there are; by how much "
            "depends on the selectivities (see the other ranges below)",
            computed=True,
        )
    for figure, shape in (("10(a)", "acyclic"), ("10(b)", "complete")):
        yield inside(
            f"figure {figure}",
            f"FAB's upper quartile is optimal on {shape} graphs",
            [_quantile(ratios(results, "fab", (shape,)), 0.75)],
            (1.0, 1.0005),
            " times the optimum",
            "optimal plans get rare as streams are added, because one pipeline of many is enough to spoil a plan",
            computed=True,
        )
