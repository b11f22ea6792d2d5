"""What the paper says of its algorithms and heuristics, beside the equations, what was counted and what was timed.

A printed cost agrees if ours is the same to `PRINTED`. What was drawn several times agrees if the interval of the median (see
`significance`) lies inside what is said, in every setting that it is about. Of streams drawn at random, “always” means every draw, and
what is called good or sensible has to be so, to `NEAR`, in more than half of the draws by the interval of that share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from experiments import golab_engine_claims
from experiments.golab import TABLES, printed
from experiments.golab_measured import EQUAL, NEAR, PRINTED, Results, drawn, one, random_streams, settings
from experiments.report import Claim
from experiments.significance import BELOW, TINY, share, within


def claims(results: Results) -> Iterator[Claim]:
    """Compare with the statements of sections 3 to 6 and the appendices."""
    for stated in (_algorithms, _examples, _heuristics, _lazy_heuristics, _variants, golab_engine_claims.claims):
        yield from stated(results)


# -- the equations ------------------------------------------------------------------------------------------------------------------


def _as_printed(place: str, says: str, pairs: Mapping[str, tuple[float, float]], near: float = PRINTED) -> Claim:
    """A claim that ours are the printed numbers."""
    same = [abs(ours / theirs - 1) <= near for ours, theirs in pairs.values()]
    shown = "; ".join(f"{name}: {ours:,.0f}" if name else f"{ours:,.0f}" for name, (ours, _) in pairs.items())
    return Claim(place, says, shown, all(same), "the equations of appendix A give another number")


def _algorithms(results: Results) -> Iterator[Claim]:
    example, found = printed()["table 3"], one(results, "table", 3)["found"]
    right = [name for name, given in found.items() if given == example["results"]]
    yield Claim(
        "table 3",
        "two results are right, and the six others of the naive join are expired",
        f"{len(right)} of {len(found)} algorithms give these two alone",
        len(right) == len(found),
        "the others lose or add results",
    )
    counts = [count for count in settings(results, "figure-2") if count > 2]
    for title, kind in (("equations", "model"), ("engine", "counted")):
        naive, ours = ([drawn(results, "figure-2", n, kind, loop) for n in counts] for loop in ("naive", "multi-way"))
        yield within(
            f"figure 2, {title}",
            "multi-way scales considerably better with the number of windows than naive",
            [theirs / own for theirs, own in zip(naive, ours, strict=True)],
            (2, np.inf),
            " times the comparisons for naive",
            "naive loops do not cost twice as much",
        )
    least = random_streams(results, "eager", "naive")
    yield Claim(
        "section 4.3",
        "eager multi-way always outperforms naive, in equivalent orders",
        f"naive costs at least {least.min():.3g} times as much, over all orders of {len(least):,} random sets of streams",
        bool(least.min() > 1),
        "a window that does not hold all its values can make naive loops cheaper",
    )
    yield Claim(
        "section 3.4",
        "lazy hash joins may put new tuples anywhere, as general nested loops do",
        "built for the second position",
        None,
        "chosen per batch where it saves probes; docs/performance.md has its times. The paper states no figure to compare with",
    )


def _examples(results: Results) -> Iterator[Claim]:
    for number in TABLES:
        theirs, ours = printed()[f"table {number}"], one(results, "table", number)
        place, costs = f"table {number}", ours["costs"]
        said = "; ".join(f"{order}: {cost:,}" for order, cost in theirs["costs"].items())
        pairs = {order: (costs[order], cost) for order, cost in theirs["costs"].items()}
        yield _as_printed(place, f"the orders cost {said}", pairs)
        best, least = theirs["best"], min(costs.values())
        yield Claim(
            place,
            f"the best order is {best}",
            f"it costs {costs[best]:,.0f}, the least {least:,.0f}",
            costs[best] <= least * (1 + TINY),
            "another order costs less",
        )
        yield Claim(
            place,
            f"sizes of joins alone lead to {' or '.join(theirs['initial'])}",
            " or ".join(ours["initial"]),
            bool(set(ours["initial"]) & set(theirs["initial"])),
            "we read “descending selectivities” otherwise",
        )
        yield Claim(
            place,
            f"moving fast streams up leads to {best}",
            f"{ours['heuristic']}",
            costs[ours["heuristic"]] <= costs[best] * (1 + TINY),
            "the heuristic chooses another order",
        )
    five, six, seven = (one(results, "table", number)["costs"] for number in TABLES)
    for number, costs in ((5, five), (6, six)):
        worst = printed()[f"table {number}"]["worst"]
        says = f"the worst order costs nearly {worst:,}"
        yield _as_printed(f"table {number}", says, {"": (max(costs.values()), worst)}, NEAR)
    cheaper = [order for order, cost in five.items() if cost < five["2,1,3,4"]]
    first = sum(order.startswith("1") for order in cheaper)
    yield Claim(
        "table 5",
        "2,1,3,4 is fifth-best; the cheapest have the fast S1 first",
        f"{len(cheaper)} orders are cheaper, {first} of them have S1 first",
        len(cheaper) == first == 4,
        "the ranks differ",
    )
    mean, theirs = float(np.mean(list(seven.values()))), printed()["table 7"]
    yield _as_printed("table 7", f"all orders cost {theirs['average']:,} in the mean", {"": (mean, theirs["average"])})
    most = max(seven[order] for order in theirs["tried"])
    yield Claim(
        "table 7",
        "each order that the heuristic considers costs less than the mean",
        f"at most {most:,.0f} of {mean:,.0f}",
        most < mean,
        "one costs more",
    )
    top = [
        six["1,2,3,4"] / min(six.values()),
        *(seven[order] / min(seven.values()) for order in ("1,2,3,4", "2,1,3,4")),
    ]
    yield Claim(
        "tables 6 and 7",
        "moving fast streams all the way to the top is not recommended",
        f"{min(top):.2f} to {max(top):.2f} of the best order's cost",
        min(top) > 1,
        "it is as good",
    )
    example = one(results, "table", 5)
    sizes, by_origin = printed()["tables 10 and 11"], printed()["appendix B"]
    yield _as_printed(
        "tables 10 and 11",
        "sizes of the joins of two and three windows: " + "; ".join(f"{n}: {s:,}" for n, s in sizes.items()),
        {name: (example["sizes"][name], size) for name, size in sizes.items()},
    )
    yield _as_printed(
        "appendix B",
        "new tuples cost " + ", ".join(f"{cost:,} for S{name}" for name, cost in by_origin.items()),
        {f"S{name}": (example["by_origin"][name], cost) for name, cost in by_origin.items()},
    )


# -- random streams -----------------------------------------------------------------------------------------------------------------


def _mostly(place: str, says: str, cases: Any, what: str, because: str) -> Claim:
    """A claim that something is so in more than half of the draws."""
    found, low, high = share(cases)
    if found > 0.5:
        because = "it is so in most draws, but these are too few to be sure of it"
    return Claim(
        place,
        says,
        f"{what} in {found:.1%} ({low:.1%} to {high:.1%}) of {len(cases):,} random sets of streams",
        low > 0.5,
        because,
    )


def _heuristics(results: Results) -> Iterator[Claim]:
    found, initial, mean = (random_streams(results, "eager", name) for name in ("heuristic", "initial", "mean"))
    optimal, spread = share(found <= 1 + TINY), np.quantile(found, (0.5, 0.95, 1))
    yield _mostly(
        "section 7",
        "the heuristic finds a good order without trying them all",
        found <= 1 + NEAR,
        f"optimal in {optimal[0]:.1%} ({optimal[1]:.1%} to {optimal[2]:.1%}); "
        f"median {spread[0]:.3f}, 95 % {spread[1]:.2f}, worst {spread[2]:.3g} times the best; within {NEAR:.0%} of it",
        "streams that are neither fast nor in the smallest pair are not moved",
    )
    yield _mostly(
        "section 5.1",
        "what the heuristic chooses costs less than the mean of all orders",
        found < mean,
        "less",
        "it chooses among few orders",
    )
    yield _mostly(
        "section 5.1",
        "it is beneficial to consider orders with fast streams moved up",
        found < initial * (1 - TINY),
        "cheaper than without",
        "sizes of joins alone lead to the same order",
    )
    yield _mostly(
        "section 5.1",
        "with equal numbers of distinct values, ascending window sizes are a sensible order",
        random_streams(results, "eager", "ascending") <= 1 + NEAR,
        f"within {NEAR:.0%} of the best order",
        "another order is better",
    )
    example = one(results, "table", 5)
    cases = [example["heuristic"] == printed()["table 5"]["best"]]
    cases += [example["lazy"][tau] == best for tau, best in example["lazy_best"].items()]
    yield Claim(
        "section 6.2, equations",
        "the best order of table 5 is the heuristic's: eager, and lazy with tau 5 and 10",
        f"in {sum(cases)} of {len(cases)} cases",
        all(cases),
        "another order costs less",
    )
    every = [drawn(results, "orders", 5, order) for order in example["costs"]]
    yield within(
        "section 6.2, engine",
        "the best order of table 5 is the heuristic's",
        [drawn(results, "orders", 5, example["heuristic"]) / np.min(every, axis=0)],
        EQUAL,
        " of the fewest comparisons of 24 orders",
        "another order looks at fewer rows",
    )


def _lazy_heuristics(results: Results) -> Iterator[Claim]:
    found, multi_way, naive = (random_streams(results, "lazy", name) for name in ("heuristic", "multi-way", "naive"))
    least = min(multi_way.min(), naive.min())
    yield Claim(
        "section 4.3",
        "general lazy loops are never worse than any other",
        f"each of the others costs at least {least:.4f} times as much, in its best order",
        bool(least >= 1 - TINY),
        "the best general order was not found",
    )
    yield _mostly(
        "section 5.2",
        "the same heuristic orders general loops",
        found <= 1 + NEAR,
        f"within {NEAR:.0%} of the best orders",
        "it moves fast streams alone",
    )
    smallest = settings(results, "lazy")[0]
    yield _mostly(
        "section 5.2",
        f"lazy multi-way is as good as general when tau is small ({smallest})",
        np.array(one(results, "lazy", smallest)["multi-way"]) <= 1 + NEAR,
        f"within {NEAR:.0%}",
        "one global order does not suit all origins",
    )


def _variants(results: Results) -> Iterator[Claim]:
    found = one(results, "variants", 4)
    numbers = {name: np.array(found[name]) for name in found}
    yield Claim(
        "section 5.3",
        "with equal numbers of buckets the ordering problem is that of nested loops",
        f"every cost is divided by the buckets, to {numbers['equal'].max():.1g}",
        bool(numbers["equal"].max() < TINY),
        "some are not",
    )
    yield _mostly(
        "section 5.3",
        "the heuristics can also be used if hash tables have various sizes",
        numbers["unequal"] <= 1 + NEAR,
        f"within {NEAR:.0%} of the best order",
        "discounted sizes mislead: buckets shorten scans, not results",
    )
    yield _mostly(
        "section 5.4",
        "windows with hash indexes belong into the inner loops",
        numbers["inner"] <= 1 + NEAR,
        f"the best such order is within {NEAR:.0%} of the best",
        "a small window with an index is better near the top",
    )
    yield within(
        "section 5.4, engine",
        "orders should know which windows have an index (hybrid, table 5)",
        [drawn(results, "hybrid", 5, "aware") / drawn(results, "hybrid", 5, "unaware")],
        BELOW,
        " of the comparisons of orders for scans",
        "only large windows get an index",
    )
    moved = numbers["moved"][numbers["moved"] != 0]
    yield _mostly(
        "section 5.4",
        "expensive predicates need to be ordered near the top",
        moved < 0,
        "where the best order changes, further up",
        "they move down as well",
    )
