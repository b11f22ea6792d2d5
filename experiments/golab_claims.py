"""What the paper says of its algorithms and heuristics, beside the equations, what was counted and what was timed.

Statements are judged by the one rule (see `significance`). A printed cost is ours if it is the same to `PRINTED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from experiments import golab_engine_claims
from experiments.golab import TABLES, printed
from experiments.golab_measured import EQUAL, NEAR, PRINTED, Results, drawn, one, random_streams, settings
from experiments.report import Claim, untested
from experiments.significance import ABOVE, BELOW, TINY, always, example, share, within


def claims(results: Results) -> Iterator[Claim]:
    """Compare with the statements of sections 3 to 6 and the appendices."""
    for stated in (_algorithms, _examples, _heuristics, _lazy_heuristics, _variants, golab_engine_claims.claims):
        yield from stated(results)


# -- the equations ------------------------------------------------------------------------------------------------------------------


def _as_printed(place: str, says: str, pairs: Mapping[str, tuple[float, float]], near: float = PRINTED) -> Claim:
    """A claim that ours are the printed numbers."""
    same = [abs(ours / theirs - 1) <= near for ours, theirs in pairs.values()]
    shown = "; ".join(f"{name}: {ours:,.0f}" if name else f"{ours:,.0f}" for name, (ours, _) in pairs.items())
    return example(place, says, shown, all(same), "the equations of appendix A give another number", computed=True)


def _algorithms(results: Results) -> Iterator[Claim]:
    theirs, found = printed()["table 3"], one(results, "table", 3)["found"]
    right = [name for name, given in found.items() if given == theirs["results"]]
    yield example(
        "table 3",
        "two results are right, and the six others of the naive join are expired",
        f"{len(right)} of {len(found)} algorithms give these two alone",
        len(right) == len(found),
        "the others lose or add results",
    )
    counts = [count for count in settings(results, "figure-2") if count > 2]
    for title, kind in (("equations", "model"), ("engine", "counted")):
        naive, ours = ([drawn(results, "figure-2", n, kind, loop) for n in counts] for loop in ("naive", "multi-way"))
        yield always(
            f"figure 2, {title}",
            "multi-way scales considerably better with the number of windows than naive",
            [theirs / own for theirs, own in zip(naive, ours, strict=True)],
            (2, np.inf),
            " times the comparisons for naive",
            "naive loops do not cost twice as much",
            computed=kind == "model",
        )
    yield always(
        "section 4.3",
        "eager multi-way always outperforms naive, in equivalent orders",
        random_streams(results, "eager", "naive"),
        ABOVE,
        " of multi-way's cost for naive, at least, over all orders",
        "a window that does not hold all its values can make naive loops cheaper",
        computed=True,
    )
    yield untested(
        "section 3.4",
        "lazy hash joins may put new tuples anywhere, as general nested loops do",
        "built for the second position",
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
        yield example(
            place,
            f"the best order is {best}",
            f"it costs {costs[best]:,.0f}, the least {least:,.0f}",
            costs[best] <= least * (1 + TINY),
            "another order costs less",
            computed=True,
        )
        yield example(
            place,
            f"sizes of joins alone lead to {' or '.join(theirs['initial'])}",
            " or ".join(ours["initial"]),
            bool(set(ours["initial"]) & set(theirs["initial"])),
            "we read “descending selectivities” otherwise",
            computed=True,
        )
        yield example(
            place,
            f"moving fast streams up leads to {best}",
            f"{ours['heuristic']}",
            costs[ours["heuristic"]] <= costs[best] * (1 + TINY),
            "the heuristic chooses another order",
            computed=True,
        )
    five, six, seven = (one(results, "table", number)["costs"] for number in TABLES)
    for number, costs in ((5, five), (6, six)):
        worst = printed()[f"table {number}"]["worst"]
        says = f"the worst order costs nearly {worst:,}"
        yield _as_printed(f"table {number}", says, {"": (max(costs.values()), worst)}, NEAR)
    cheaper = [order for order, cost in five.items() if cost < five["2,1,3,4"]]
    first = sum(order.startswith("1") for order in cheaper)
    yield example(
        "table 5",
        "2,1,3,4 is fifth-best; the cheapest have the fast S1 first",
        f"{len(cheaper)} orders are cheaper, {first} of them have S1 first",
        len(cheaper) == first == 4,
        "the ranks differ",
        computed=True,
    )
    mean, theirs = float(np.mean(list(seven.values()))), printed()["table 7"]
    yield _as_printed("table 7", f"all orders cost {theirs['average']:,} in the mean", {"": (mean, theirs["average"])})
    most = max(seven[order] for order in theirs["tried"])
    yield example(
        "table 7",
        "each order that the heuristic considers costs less than the mean",
        f"at most {most:,.0f} of {mean:,.0f}",
        most < mean,
        "one costs more",
        computed=True,
    )
    top = [
        six["1,2,3,4"] / min(six.values()),
        *(seven[order] / min(seven.values()) for order in ("1,2,3,4", "2,1,3,4")),
    ]
    yield example(
        "tables 6 and 7",
        "moving fast streams all the way to the top is not recommended",
        f"{min(top):.2f} to {max(top):.2f} of the best order's cost",
        min(top) > 1,
        "it is as good",
        computed=True,
    )
    fifth = one(results, "table", 5)
    sizes, by_origin = printed()["tables 10 and 11"], printed()["appendix B"]
    yield _as_printed(
        "tables 10 and 11",
        "sizes of the joins of two and three windows: " + "; ".join(f"{n}: {s:,}" for n, s in sizes.items()),
        {name: (fifth["sizes"][name], size) for name, size in sizes.items()},
    )
    yield _as_printed(
        "appendix B",
        "new tuples cost " + ", ".join(f"{cost:,} for S{name}" for name, cost in by_origin.items()),
        {f"S{name}": (fifth["by_origin"][name], cost) for name, cost in by_origin.items()},
    )


# -- random streams -----------------------------------------------------------------------------------------------------------------


def _good(place: str, says: str, over_best: Any, what: str, because: str) -> Claim:
    """A claim that an order is good: in all cases nearly as cheap as the best."""
    return always(place, says, over_best, (0, 1 + NEAR), f" of {what}", because, computed=True)


def _heuristics(results: Results) -> Iterator[Claim]:
    found, initial, mean = (random_streams(results, "eager", name) for name in ("heuristic", "initial", "mean"))
    optimal, spread = share(found <= 1 + TINY), np.quantile(found, (0.5, 0.95))
    yield _good(
        "section 7",
        "the heuristic finds a good order without trying them all",
        found,
        f"the best order's cost (optimal in {optimal[0]:.1%}, median {spread[0]:.3f}, 95 % {spread[1]:.2f})",
        "streams that are neither fast nor in the smallest pair are not moved",
    )
    yield always(
        "section 5.1",
        "what the heuristic chooses costs less than the mean of all orders",
        found / mean,
        BELOW,
        " of the mean",
        "it chooses among few orders; the paper states it of table 7, where it is so",
        computed=True,
    )
    yield within(
        "section 5.1",
        "it is beneficial to consider orders with fast streams moved up",
        [found / initial],
        BELOW,
        f" of the cost without, in the median; cheaper in {np.mean(found < initial * (1 - TINY)):.1%} of {len(found):,} cases",
        "sizes of joins alone lead to the same order",
        computed=True,
    )
    yield _good(
        "section 5.1",
        "with equal numbers of distinct values, ascending window sizes are a sensible order",
        random_streams(results, "eager", "ascending"),
        "the best order's cost",
        "another order is better",
    )
    fifth = one(results, "table", 5)
    cases = [fifth["heuristic"] == printed()["table 5"]["best"]]
    cases += [fifth["lazy"][tau] == best for tau, best in fifth["lazy_best"].items()]
    yield example(
        "section 6.2, equations",
        "the best order of table 5 is the heuristic's: eager, and lazy with tau 5 and 10",
        f"in {sum(cases)} of {len(cases)} cases",
        all(cases),
        "another order costs less",
        computed=True,
    )
    every = [drawn(results, "orders", 5, order) for order in fifth["costs"]]
    yield within(
        "section 6.2, engine",
        "the best order of table 5 is the heuristic's",
        [drawn(results, "orders", 5, fifth["heuristic"]) / np.min(every, axis=0)],
        EQUAL,
        " of the fewest comparisons of 24 orders",
        "another order looks at fewer rows",
    )


def _lazy_heuristics(results: Results) -> Iterator[Claim]:
    found, multi_way, naive = (random_streams(results, "lazy", name) for name in ("heuristic", "multi-way", "naive"))
    yield always(
        "section 4.3",
        "general lazy loops are never worse than any other",
        np.minimum(multi_way, naive),
        (1 - TINY, np.inf),
        " of general's cost for the better of the others, each in its best order",
        "the best general order was not found",
        computed=True,
    )
    yield _good(
        "section 5.2",
        "the same heuristic orders general loops",
        found,
        f"the best orders' cost (median {np.median(found):.3f}, 95 % {np.quantile(found, 0.95):.2f})",
        "it moves fast streams alone",
    )
    smallest = settings(results, "lazy")[0]
    yield _good(
        "section 5.2",
        f"lazy multi-way is as good as general when tau is small ({smallest})",
        np.array(one(results, "lazy", smallest)["multi-way"]),
        "general's cost",
        "one global order does not suit all origins",
    )


def _variants(results: Results) -> Iterator[Claim]:
    found = one(results, "variants", 4)
    numbers = {name: np.array(found[name]) for name in found}
    yield always(
        "section 5.3",
        "with equal numbers of buckets the ordering problem is that of nested loops",
        numbers["equal"],
        (0, TINY),
        " apart from every cost divided by the buckets",
        "some are not",
        computed=True,
    )
    unequal = numbers["unequal"]
    yield _good(
        "section 5.3",
        "the heuristics can also be used if hash tables have various sizes",
        unequal,
        f"the best order's cost (median {np.median(unequal):.3f}, 95 % {np.quantile(unequal, 0.95):.2f})",
        "discounted sizes mislead: buckets shorten scans, not results",
    )
    yield _good(
        "section 5.4",
        "windows with hash indexes belong into the inner loops",
        numbers["inner"],
        "the best order's cost for the best such order",
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
    yield always(
        "section 5.4",
        "expensive predicates need to be ordered near the top, where the best order changes",
        numbers["moved"][numbers["moved"] != 0],
        (-np.inf, -TINY),
        " places downwards",
        "they move down as well",
        computed=True,
    )
