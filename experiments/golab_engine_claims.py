"""What the paper says of running its algorithms, beside what the engine counts and how long it takes.

The equations stand beside the engine where the paper has curves for them. When a statement agrees, `golab_claims` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from experiments.golab import FIGURE_3
from experiments.golab_measured import EQUAL, NEAR, ROUGHLY, Results, drawn, one, settings
from experiments.report import Claim, untested
from experiments.significance import ABOVE, BELOW, Numbers, always, example, within


def claims(results: Results) -> Iterator[Claim]:
    """Compare with figures 3 and 4, table 8 and what section 6 says of them."""
    for kind, title in (("model", "equations"), ("given", "engine")):
        yield from _equal_streams(results, kind, title)
        yield from _fast_fourth(results, kind, title)
    for figure in ("3a", "3b"):
        yield _general_is_least(results, figure, "chosen", "as a session orders them")
    yield from _orders_and_rates(results)
    yield from _intervals(results)
    for place, says in _BUCKETS:
        yield untested(place, says, "no number of buckets", _NO_BUCKETS)


# -- figure 3 -----------------------------------------------------------------------------------------------------------------------


def _ratios(
    results: Results, figure: str, kind: str, above: str, below: Sequence[str], taus: Sequence[int]
) -> list[Numbers]:
    """Comparisons of one algorithm over the least of some others, by tau."""
    found = []
    for tau in taus:
        own, *others = (drawn(results, f"figure-{figure}", tau, kind, loop) for loop in (above, *below))
        found.append(own / np.min(others, axis=0))
    return found


def _general_is_least(results: Results, figure: str, kind: str, title: str) -> Claim:
    return always(
        f"figure 3({figure[1]}), {title}",
        "general has the lowest cost for every tau",
        _ratios(results, figure, kind, "general", ("naive", "multi-way"), settings(results, f"figure-{figure}")),
        (0, EQUAL[1]),
        " of the cheaper of the others",
        "multi-way orders adapt to what probes find, and so come to know that streams declared later hold no new tuples yet; "
        "general orders follow the equations, by which every window is longer by tau",
        computed=kind == "model",
    )


def _equal_streams(results: Results, kind: str, title: str) -> Iterator[Claim]:
    place, taus, computed = f"figure 3(a), {title}", settings(results, "figure-3a"), kind == "model"
    yield within(
        place,
        "lazy multi-way and general cost the same",
        _ratios(results, "3a", kind, "general", ("multi-way",), taus),
        EQUAL,
        " of multi-way",
        "their orders differ",
        computed=computed,
    )
    naive = _ratios(results, "3a", kind, "naive", ("multi-way",), taus)
    because = "naive loops scan less than supposed"
    yield always(place, "naive costs more", naive, ABOVE, " of multi-way", because, computed=computed)
    yield within(
        place,
        f"naive costs more especially if tau is small ({taus[0]} against {taus[-1]})",
        [naive[0] / naive[-1]],
        ABOVE,
        " of the ratio at the largest tau",
        "the ratio does not fall",
        computed=computed,
    )
    costs = [drawn(results, "figure-3a", tau, kind, "multi-way") for tau in taus]
    yield within(
        place,
        "lazy multi-way costs more and more as tau increases",
        [later / earlier for earlier, later in pairwise(costs)],
        ABOVE,
        " of the cost at the tau before",
        "windows of streams that come later in a batch do not grow with tau",
        computed=computed,
    )


def _fast_fourth(results: Results, kind: str, title: str) -> Iterator[Claim]:
    place, taus, computed = f"figure 3(b), {title}", settings(results, "figure-3b"), kind == "model"
    small, large = taus[:1], taus[-1:]
    yield _general_is_least(results, "3b", kind, title)
    for says, above, below, chosen, band, because in (
        ("lazy multi-way is as good as general for", "multi-way", "general", small, (0, 1 + NEAR), "S4 brings many at once"),
        ("naive is the most expensive for", "naive", "multi-way", small, ABOVE, "naive loops scan less than supposed"),
        ("naive is better than lazy multi-way for", "naive", "multi-way", large, BELOW, "S4 brings too few at once"),
        ("naive is nearly as good as general for", "naive", "general", large, (0, 1 + NEAR), "other origins weigh more"),
    ):  # fmt: skip
        size = "small" if chosen == small else "large"
        cells = _ratios(results, "3b", kind, above, (below,), chosen)
        full = f"{says} {size} tau ({chosen[0]})"
        yield within(place, full, cells, band, f" of {below}", because, computed=computed)
    if computed:
        order = one(results, "figure-3b", taus[-1])["general"]["4"]
        says = f"the best order for new tuples of S4 puts S4 last when tau is large ({taus[-1]})"
        yield example(place, says, order, order.endswith("4"), "another order costs less", computed=True)


# -- section 6 ----------------------------------------------------------------------------------------------------------------------

WAYS = ("eager {}", "lazy {}, 5", "lazy {}, 10")
"""The rows of table 8, for each kind of join."""


def rates(results: Results, title: str, field: str, plan: str = "best") -> Numbers:
    """A number of a row of table 8, by draw."""
    return drawn(results, "table-8", 10 if title.endswith("10") else 5, title, plan, field)


def _batch(results: Results) -> str:
    """Why loops over these windows hardly matter to the time."""
    tau = settings(results, "figure-4a")[0]
    tuples = tau * sum(stream.rate for stream in FIGURE_3["3a"].values())
    taken = 1000 * tuples / float(np.median(drawn(results, "figure-4a", tau, "hash", "rate")))
    return (
        f"a batch of {tuples:.0f} tuples takes {taken:.1f} ms here even with indexes, which is what batches cost by themselves, and "
        "compiled loops go through these few rows in less"
    )


def _orders_and_rates(results: Results) -> Iterator[Claim]:
    every = [drawn(results, "orders", 5, order) for order in one(results, "orders", 5)]
    yield within(
        "section 6.2, engine",
        "the worst order of table 5 costs roughly five times the best",
        [np.max(every, axis=0) / np.min(every, axis=0)],
        (5 * (1 - ROUGHLY), 5 * (1 + ROUGHLY)),
        " times the comparisons",
        "values are drawn anew, and a window is a small sample",
    )
    loops = "eager nested-loop"
    slower = rates(results, loops, "rate") / rates(results, loops, "rate", "worst")
    more = rates(results, loops, "comparisons", "worst") / rates(results, loops, "comparisons")
    yield within(
        "table 8, time",
        "with insertion and expiration included the difference between best and worst diminishes",
        [slower / more],
        BELOW,
        " of the ratio of comparisons",
        "comparisons take nearly all of the time",
    )
    for word, field, less, longer in (("engine", "comparisons", BELOW, ABOVE), ("time", "rate", ABOVE, BELOW)):
        pairs = [(way.format("hash"), way.format("nested-loop")) for way in WAYS]
        yield always(
            f"table 8, {word}",
            "the hash join outperforms the nested loops",
            [rates(results, hashed, field) / rates(results, scanned, field) for hashed, scanned in pairs],
            less,
            f" of the {field} of nested loops",
            _batch(results),
        )
        pairs = [
            (earlier.format(j), later.format(j)) for j in ("nested-loop", "hash") for earlier, later in pairwise(WAYS)
        ]
        yield within(
            f"table 8, {word}",
            "a longer interval hurts: eager, then lazy with tau 5, then 10",
            [rates(results, later, field) / rates(results, earlier, field) for earlier, later in pairs],
            longer,
            f" of the {field} at the shorter interval",
            f"windows are longer, but {_batch(results)}",
        )


def _intervals(results: Results) -> Iterator[Claim]:
    taus, joins = settings(results, "figure-4a"), ("nested-loop", "hash")
    found = {join: [drawn(results, "figure-4a", tau, join, "rate") for tau in taus] for join in joins}
    yield always(
        "figure 4(a), time",
        "nested loops are the slowest for every tau",
        [hashed / scanned for scanned, hashed in zip(*found.values(), strict=True)],
        ABOVE,
        " of the rate of nested loops for hash",
        _batch(results),
    )
    yield within(
        "section 6.4, time",
        f"very frequent evaluation and expiration are inefficient (tau {taus[0]} against {taus[1]})",
        [by_tau[0] / by_tau[1] for by_tau in found.values()],
        BELOW,
        " of the rate at the longer interval",
        "batches are cheap",
    )
    yield within(
        "section 6.4, time",
        f"the rate drops off when tau is large ({taus[-1]} against {taus[-2]})",
        [by_tau[-1] / by_tau[-2] for by_tau in found.values()],
        BELOW,
        " of the rate at the shorter interval",
        f"windows are longer, but {_batch(results)}; longer batches are fewer",
    )
    best = {join: np.array(taus)[np.argmax(by_tau, axis=0)] for join, by_tau in found.items()}
    yield within(
        "section 6.4, time",
        "the best interval is longer for hash joins than for nested loops",
        [best["hash"] / best["nested-loop"]],
        ABOVE,
        " of the best tau of nested loops",
        "both are fastest with the longest batches",
    )
    eager, lazy = (drawn(results, "expiration", 5, how, "comparisons") for how in ("eager", "lazy"))
    yield within(
        "section 6.4, engine",
        "lazy expiration makes joins scan longer windows (eager evaluation, batches of 50)",
        [lazy / eager],
        ABOVE,
        " of the comparisons of eager expiration",
        "hidden rows are looked at as well",
    )


_BUCKETS = (
    ("section 6.3", "the first buckets gain most; more gain less and less"),
    ("section 6.4", "the best interval is about 4, 15 and 30 for 2, 10 and 30 buckets"),
    ("figure 4(b)", "with equal tables the rate reaches over 7,000 at 13 buckets"),
    ("figure 4(b)", "five buckets for slow streams and more for the fast one work best, over 10,000"),
    ("figure 4(b)", "the largest table must not be too large for a small tau"),
)
_NO_BUCKETS = (
    "our index is a hash table whose size follows its window, so that a probe looks at little but matches; it has no number of "
    "buckets to set, and expiry does not visit them"
)
