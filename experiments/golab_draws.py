"""How good the heuristics of section 5 are on streams drawn at random, by the cost model, beside all orders there are.

Streams are drawn from the ranges of tables 5 to 7: rates from 1 to 100 and distinct values from 2 to 500 with a uniform logarithm,
windows from 100 to 200. A window holds each of its values at least once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from math import exp, log
from typing import Any

import dovetail as dt
from experiments.golab_orders import (
    Order,
    Streams,
    StreamStatistics,
    all_costs,
    common_key,
    heuristic_order,
    initial_orders,
    multi_way_cost,
    naive_cost,
    search_general,
    search_orders,
)

EQUAL_BUCKETS = 5
"""As in section 6.2."""
MOST_BUCKETS = 50
EXPENSE = 20.0


def random_streams(count: int, rng: random.Random) -> dict[str, StreamStatistics]:
    """Draw the statistics of some streams.

    >>> list(random_streams(3, random.Random(1)))
    ['1', '2', '3']
    """
    streams = {}
    for number in range(1, count + 1):
        rate, window = _log_uniform(rng, 1, 100), rng.uniform(100, 200)
        streams[str(number)] = StreamStatistics(rate, window, _log_uniform(rng, 2, min(500, rate * window)))
    return streams


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return exp(rng.uniform(log(low), log(high)))


def eager_draw(count: int, rng: random.Random) -> dict[str, float]:
    """What the heuristics' orders, the worst and the mean of all cost over the best (5.1); what naive costs over multi-way (4.3)."""
    streams = random_streams(count, rng)
    costs, naive = all_costs(streams), all_costs(streams, naive_cost)
    distinct = min(stream.distinct for stream in streams.values())
    alike = {name: replace(stream, distinct=distinct) for name, stream in streams.items()}
    ascending = tuple(sorted(alike, key=lambda name: alike[name].tuples()))
    return {
        **_over_best(costs, heuristic=heuristic_order(streams)),
        "initial": min(costs[order] for order in initial_orders(streams)) / min(costs.values()),
        "mean": sum(costs.values()) / len(costs) / min(costs.values()),
        "worst": max(costs.values()) / min(costs.values()),
        "naive": min(naive[order] / cost for order, cost in costs.items()),
        **_over_best(all_costs(alike), ascending=ascending),
    }


def lazy_draw(tau: float, rng: random.Random) -> dict[str, float]:
    """What the best order of each algorithm, and the heuristics' orders, cost over the best general orders (5.2); four streams."""
    streams = random_streams(4, rng)
    best = search_general(streams, tau).best
    found = dt.optimizer.general_orders(common_key(streams), tau)
    return {
        "heuristic": sum(dt.optimizer.nested_loop.general_cost(streams, found, tau).values()) / best,
        "multi-way": search_orders(streams, multi_way_cost, tau).best / best,
        "naive": search_orders(streams, naive_cost, tau).best / best,
    }


def variant_draw(rng: random.Random) -> dict[str, Any]:
    """Hash buckets (5.3), some indexes and an expensive predicate (5.4); four streams."""
    streams = random_streams(4, rng)
    plain, equal = all_costs(streams), all_costs(_with_buckets(streams, dict.fromkeys(streams, EQUAL_BUCKETS)))
    unequal = _with_buckets(streams, {name: round(_log_uniform(rng, 1, MOST_BUCKETS)) for name in streams})
    indexed = rng.sample(sorted(streams), rng.randint(1, len(streams) - 1))
    hybrid = _with_buckets(streams, {name: round(streams[name].distinct) for name in indexed})
    costs = all_costs(hybrid)
    inner = [order for order in costs if set(order[-len(indexed) :]) == set(indexed)]
    dear = rng.choice(sorted(streams))
    expensive = {**streams, dear: replace(streams[dear], expense=EXPENSE)}
    return {
        "equal": max(abs(EQUAL_BUCKETS * equal[order] / cost - 1) for order, cost in plain.items()),
        **_over_best(all_costs(unequal), unequal=heuristic_order(unequal)),
        **_over_best(costs, hybrid=heuristic_order(hybrid)),
        "inner": min(costs[order] for order in inner) / min(costs.values()),
        **_over_best(all_costs(expensive), expensive=heuristic_order(expensive)),
        "moved": _cheapest(all_costs(expensive)).index(dear) - _cheapest(plain).index(dear),
    }


def _with_buckets(streams: Streams, buckets: Mapping[str, int]) -> dict[str, StreamStatistics]:
    return {name: replace(stream, buckets=buckets.get(name, 1)) for name, stream in streams.items()}


def _cheapest(costs: Mapping[Order, float]) -> Order:
    return min(costs, key=costs.__getitem__)


def _over_best(costs: Mapping[Order, float], **orders: Order) -> dict[str, float]:
    return {name: costs[order] / min(costs.values()) for name, order in orders.items()}
