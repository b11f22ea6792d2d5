"""What the paper says of figures 5 to 11, beside the engine and the paper's program, simulated; judged by the one rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.kwon import FEW, TRACE, Point
from experiments.report import Claim, untested
from experiments.significance import ABOVE, BELOW, always, within

Results: TypeAlias = Mapping[Point, Mapping[str, Any]]
Setting: TypeAlias = tuple[str, float, float, int]
Shares: TypeAlias = NDArray[np.float64]
THEIRS = ("frequency", "output", "random")
"""What the paper compares with; `frequency-own` is the other reading of the first."""
RANDOM_TIES = ("frequency, random ties", "output, random ties", "random")
"""The same if of equal tuples a random one goes."""
NEAR = 0.05
"""What "almost the same" and "similar" allow."""
LITTLE = 0.2
"""What "not much affected" allows."""
_AGE = "Fifo shows why: partners come within seconds, so a tuple's age says more than its pattern"
_PLAIN = (
    "by definition 3 a pattern's priority does not fall with age, and what has waited longest for its partners stays; with all orders "
    f"equally likely a pattern says little. {_AGE}"
)
_SEEDS = "the seeds differ too much"
_EQUAL = (
    "of keys that are worth the same the one that has waited longest goes, which the paper leaves open: where a window has each key "
    "once, frequency over it is fifo; over all windows a tuple with partners is not rarest, and keys whose partners are gone already "
    "are kept for them"
)


def settings(results: Results, *figures: str) -> list[Setting]:
    """The settings of some figures, in order."""
    return list(dict.fromkeys(point.setting for point in results if point.figure in figures))


def values(results: Results, setting: Setting, policy: str, field: str = "results") -> Shares:
    """One number of a policy, seed by seed."""
    found = [result for point, result in results.items() if point.setting == setting]
    return np.array([each["policies"][policy][field] for each in found], float)


def shares(results: Results, setting: Setting, policy: str) -> Shares:
    """The share of results that a policy leaves, seed by seed."""
    whole = [result["all"] for point, result in results.items() if point.setting == setting]
    found: Shares = values(results, setting, policy) / np.maximum(1, np.array(whole))
    return found


def ratios(results: Results, setting: Setting, policy: str, others: Sequence[str]) -> Shares:
    """A policy's results over the most that any of some others has, seed by seed."""
    best: Shares = np.max([shares(results, setting, other) for other in others], axis=0)
    found: Shares = shares(results, setting, policy) / np.maximum(best, 1e-9)
    return found


def claims(results: Results) -> Iterator[Claim]:
    """Compare with what section 5 says of its figures."""
    for stated in (_leads, _memory, _skew, _rate, _streams, _times, _normal, _trace):
        yield from stated(results)


def _leads(results: Results) -> Iterator[Claim]:
    kinds = (("", "engine", THEIRS), ("s", "simulated", THEIRS), ("s", "simulated, random ties", RANDOM_TIES))
    for figure, what in (
        ("5", "for all memory sizes"),
        ("7", "for all arrival rates"),
        ("8", "for all numbers of streams"),
    ):
        for prefix, title, others in kinds:
            cells = [ratios(results, cell, "arrival-order", others) for cell in settings(results, prefix + figure)]
            says = f"EP outperforms the other algorithms {what}"
            yield always(f"figure {figure}, {title}", says, cells, ABOVE, " of the best of them", _PLAIN)


def _memory(results: Results) -> Iterator[Claim]:
    cells = settings(results, "5")
    grown = [
        shares(results, more, policy) / np.maximum(shares(results, less, policy), 1e-9)
        for policy in ("arrival-order", *THEIRS)
        for less, more in pairwise(cells)
    ]
    says = "the performance of all algorithms increases with memory"
    yield always("figure 5, engine", says, grown, ABOVE, " of the share with 100 tuples less", _SEEDS)
    for prefix, title, others in (
        ("", "engine", ("frequency-own", "frequency", "output")),
        ("s", "simulated, random ties", ("frequency-own, random ties", *RANDOM_TIES[:2])),
    ):
        pairs = [
            ratios(results, cell, policy, ("random",)) for cell in settings(results, f"{prefix}5") for policy in others
        ]
        says = "the other algorithms show almost the same performance"
        because = _EQUAL if not prefix else _TIES
        yield within(f"figure 5, {title}", says, pairs, (1 - NEAR, 1 + NEAR), " of random", because)
    own = [ratios(results, cell, "frequency-own, random ties", ("random",)) for cell in settings(results, "s5")]
    yield within(
        "figure 5, simulated, random ties",
        "frequency, over its own window, is as good as random",
        own,
        (1 - NEAR, 1 + NEAR),
        " of random",
        "random choices differ by more than that where few results are left",
    )


_TIES = (
    "over its own window frequency is as good as random; but over all windows, and by output, keys whose partners are here or gone "
    "are told from others, mostly the wrong way"
)


def _skew(results: Results) -> Iterator[Claim]:
    for prefix, title, others in (
        ("", "engine", ("frequency-own", "output", "random")),
        ("s", "simulated, random ties", RANDOM_TIES),
    ):
        first, *_, last = settings(results, f"{prefix}6")
        gained = shares(results, last, "arrival-order") / shares(results, first, "arrival-order")
        place = f"figure 6, {title}"
        yield within(place, "EP improves as skew increases", [gained], ABOVE, " of its share without skew", _SEEDS)
        yield within(
            place,
            "skew does not affect the other algorithms",
            [shares(results, last, policy) / shares(results, first, policy) for policy in others],
            (1 - NEAR, 1 + NEAR),
            " of their share without skew",
            "with skew few orders are in use, and streams that they leave out have room: what is shed differs from stream to stream",
        )


def _rate(results: Results) -> Iterator[Claim]:
    overload = "figure 7, overload simulated"
    slow, _, kept, fast = settings(results, "s7")
    yield within(
        overload,
        "EP improves as the rate increases to 16.7",
        [values(results, kept, "arrival-order") / values(results, slow, "arrival-order")],
        ABOVE,
        " of its results at 10 per second",
        "a full window covers less time the higher the rate is, and no results are gained",
    )
    yield within(
        overload,
        "EP degrades beyond 16.7 tuples per second",
        [values(results, fast, "arrival-order") / values(results, kept, "arrival-order")],
        BELOW,
        " of its results at 16.7 per second",
        _SEEDS,
    )
    yield within(
        overload,
        "and only slightly (20 %)",
        [values(results, fast, "arrival-order") / values(results, kept, "arrival-order")],
        (1 - LITTLE, 1),
        " of its results at 16.7 per second",
        "a third of the tuples is lost, and a result needs one of each of five streams",
    )
    for prefix, title, others in (("", "figure 7, engine", THEIRS), ("s", overload, RANDOM_TIES)):
        first, *rest = settings(results, f"{prefix}7")
        yield within(
            title,
            "results of the other algorithms remain almost the same regardless of the rate",
            [values(results, cell, policy) / values(results, first, policy) for cell in rest for policy in others],
            (1 - NEAR, 1 + NEAR),
            " of their results at 10 per second",
            "the same memory covers less time the higher the rate is, and partners take as long as before",
        )


def _streams(results: Results) -> Iterator[Claim]:
    for prefix, title, other in (("", "engine", "random"), ("s", "simulated, random ties", "random")):
        first, *rest = settings(results, f"{prefix}8")
        base = float(np.median(ratios(results, first, "arrival-order", (other,))))
        yield within(
            f"figure 8, {title}",
            "EP's advantage is not much affected by the number of streams (20 %)",
            [ratios(results, cell, "arrival-order", (other,)) / base for cell in rest],
            (1 - LITTLE, 1 + LITTLE),
            " of its ratio to random with three streams",
            "the more streams, the more orders there are, and the more results are lost to a single tuple",
        )


def _times(results: Results) -> Iterator[Claim]:
    """Figure 9: decisions alone."""
    for figure, what in (("9a", "for all memory sizes"), ("9b", "for all numbers of streams")):
        cells = settings(results, f"s{figure}")
        taken = {
            policy: [values(results, cell, policy, "nanoseconds") for cell in cells]
            for policy in ("arrival-order", "frequency", "output")
        }
        best = [np.minimum(*pair) for pair in zip(taken["frequency"], taken["output"], strict=True)]
        yield always(
            f"figure {figure}, simulated",
            f"EP takes less processing time per tuple than frequency and output {what}",
            [own / other for own, other in zip(taken["arrival-order"], best, strict=True)],
            BELOW,
            " of the faster of them",
            "finding the least pattern takes longer the more patterns there are, and these grow with 2 to the number of streams",
        )
        if figure == "9a":
            yield within(
                "figure 9a, simulated",
                "frequency and output take similar time",
                [a / b for a, b in zip(taken["frequency"], taken["output"], strict=True)],
                (1 - LITTLE, 1 + LITTLE),
                " of output's time (20 %)",
                "a value's frequency changes with every tuple, what it has given only with results, and each change is queued",
            )
            continue
        first, *_, last = taken["arrival-order"]
        yield within(
            "figure 9b, simulated",
            "EP's time increases with the number of streams",
            [last / first],
            ABOVE,
            " of the time with three streams",
            _SEEDS,
        )
        yield within(
            "figure 9b, simulated",
            "that of the others is not much affected (20 %)",
            [taken[policy][-1] / taken[policy][0] for policy in ("frequency", "output")],
            (1 - LITTLE, 1 + LITTLE),
            " of the time with three streams",
            "a tuple has more partners whose statistics change with it",
        )


def _normal(results: Results) -> Iterator[Claim]:
    for prefix, title, others in (
        ("", "engine, three streams", THEIRS[:2]),
        ("s", "simulated, five streams", THEIRS[:2]),
        ("s", "simulated, random ties", RANDOM_TIES[:2]),
    ):
        cells = settings(results, f"{prefix}10")
        place = f"figure 10, {title}"
        yield always(
            place,
            "EP is worse than frequency and output when keys repeat",
            [ratios(results, cell, "arrival-order", (other,)) for cell in cells for other in others],
            BELOW,
            " of each of them",
            _SEEDS,
        )
        first, last = cells[0], cells[-1]
        for other in others:
            at_last, at_first = (ratios(results, cell, "arrival-order", (other,)) for cell in (last, first))
            yield within(
                place,
                f"EP and {other} become similar as variance grows",
                [at_last / at_first],
                ABOVE,
                " of the ratio at the smallest variance",
                "in this range keys repeat often at every variance; the table of the crossover goes on to where they hardly do",
            )
        yield within(
            place,
            "frequency and output degrade as variance grows",
            [values(results, last, other) / values(results, first, other) for other in others],
            BELOW,
            " of their results at the smallest variance",
            _SEEDS,
        )


def _trace(results: Results) -> Iterator[Claim]:
    place, says = "figure 11", "EP outperforms the other algorithms on real data"
    similar = "the other algorithms show similar performance on real data"
    by_host = [result["by_host"] for point, result in results.items() if point.figure == "s11"]
    if not by_host:
        for stated in (says, similar):
            yield untested(place, stated, "no trace", f"the file {TRACE} is not there")
        return
    found = by_host[0]
    if len(found) < FEW:
        ours = f"{sum(found)} results of {len(found)} hosts, {sum(found[:2])} of them of two"
        because = (
            f"the trace is NASA's of 1 August 1995, and so few hosts decide nothing (at least {FEW} are asked for)"
        )
        for stated in (says, similar):
            yield untested(place, stated, ours, because)
        return
    cells = [ratios(results, cell, "arrival-order", THEIRS) for cell in settings(results, "11")]
    because = (
        "hosts return to the same pages: their keys repeat, and frequency keeps those that have been to most of them"
    )
    yield always(place, says, cells, ABOVE, " of the best of them", because)
    others = [ratios(results, cell, other, ("random",)) for cell in settings(results, "11") for other in THEIRS[:2]]
    yield within(place, similar, others, (1 - NEAR, 1 + NEAR), " of random", because)
