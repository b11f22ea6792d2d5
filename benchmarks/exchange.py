"""How often `exchange` misses a plan that fits, and how far it is from the best plan known, where `exact` cannot be asked.

Random sets of queries with more than 24 sub-joins that could be stored, drawn as the small cases of `make reproduce PAPER=alrahmani`,
with more streams and queries. What is known about a case comes from searches that share nothing with `exchange` but prices:

- a *witness*: from a random set of materialized joins, single ones are stored or dropped at random while that lowers a weighted sum of
  CPU and memory. The limits of the case are what the witness takes and up to 4 % more, so that a plan is known to fit;
- *restarts*: `RESTARTS` such climbs within the limits, each from another random set.

Reported by size: cases, in how many `exchange` raises `BudgetError`, in how many its plan takes more CPU than the best of these, and
less, by how much in the mean and at most, and how long it takes, in processor time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from math import exp, inf
from pathlib import Path
from typing import Any

import dovetail as dt
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.query_set import number_queries
from dovetail.optimizer.sharing.search.candidates import MAX_EXHAUSTIVE, materializable_joins
from dovetail.optimizer.sharing.search.exact import MAX_CANDIDATES, candidate_joins
from dovetail.optimizer.sharing.search.join_sets import JoinSet, JoinSetPlans
from dovetail.plan.shared_plan import Load
from engine import console, save

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.alrahmani_optimum import Size, random_queries

UNITS = dt.optimizer.UnitCosts.thesis()
RESTARTS = 25
DEARER = 1 + 1e-4
"""CPU to the best known above which a plan counts as dearer: scores have five digits."""
Rank = tuple[float, ...]


SIZES = {
    "4 to 8, one window": Size((6, 8), (4, 8), (3, 5), further=0.1),
    "4 to 8, three windows": Size((6, 8), (4, 8), (3, 5), (5.0, 10.0, 20.0), 0.1),
    "8 to 20, one window": Size((8, 12), (8, 20), (3, 6), further=0.1),
    "8 to 20, three windows": Size((8, 12), (8, 20), (3, 6), (5.0, 10.0, 20.0), 0.1),
}


class Climber:
    """Hill climbing over sets of materialized joins, one random change after the other."""

    def __init__(self, model: CostModel, rng: random.Random) -> None:
        self._rng = rng
        self._plans = JoinSetPlans(model)
        sub_joins = dict.fromkeys(materializable_joins(model.query_set, MAX_EXHAUSTIVE))
        self._candidates = [self._plans.index_of(sub_join) for sub_join in sub_joins]

    def climb(self, rank: Callable[[Load], Rank]) -> Load:
        """Give what the plan takes at which no single change from a random start helps."""
        few = [join for join in self._candidates if self._rng.random() < 3 / len(self._candidates)]
        joins: JoinSet = sum(1 << join for join in few)
        best = self._plans.load(joins)
        while True:
            for after in self._changes(joins):
                load = self._plans.load(after)
                if rank(load) < rank(best):
                    joins, best = after, load
                    break
            else:
                return best

    def _changes(self, joins: JoinSet) -> Iterator[JoinSet]:
        yield from (joins ^ 1 << join for join in self._rng.sample(self._candidates, len(self._candidates)))


def weighted(rng: random.Random, plain: Load) -> Callable[[Load], Rank]:
    """Rank plans by CPU and a random weight of memory, both over what n-ary joins take."""
    weight = exp(rng.uniform(-7, 1))
    return lambda load: (load.cpu / plain.cpu + weight * load.memory / plain.memory,)


def within(limits: Load) -> Callable[[Load], Rank]:
    """Rank plans by what they take beyond `limits`, then by CPU."""
    return lambda load: (
        max(0.0, load.cpu / limits.cpu - 1) + max(0.0, load.memory / limits.memory - 1),
        load.cpu,
    )


def case(name: str, number: int) -> dict[str, Any] | None:
    """Plan one case; None if it is small enough for `exact`."""
    rng = random.Random(f"exchange {name} {number}")  # noqa: S311 - replayable
    queries = random_queries(rng, SIZES[name])
    model = CostModel(number_queries(queries), UNITS)
    if len(candidate_joins(model.query_set)) <= MAX_CANDIDATES:
        return None
    climber, plain = Climber(model, rng), JoinSetPlans(model).load(0)
    witness = climber.climb(weighted(rng, plain))
    slack = [1 + rng.uniform(0, 0.2) ** 2 for _ in range(2)]
    cpu, memory = rng.choice(((True, True), (True, True), (False, True), (True, False)))
    limits = Load(witness.cpu * slack[0] if cpu else inf, witness.memory * slack[1] if memory else inf)
    ends = [climber.climb(within(limits)) for _ in range(RESTARTS)]
    best = min(load.cpu for load in (witness, *ends) if load.fits(limits))
    budget = dt.Budget(limits.cpu if cpu else None, limits.memory if memory else None)
    began = time.process_time()
    try:
        found = dt.optimizer.plan_queries(queries, budget, units=UNITS).cpu_ms_per_second
    except dt.BudgetError:
        found = None
    seconds = time.process_time() - began
    limited = "both" if cpu and memory else "CPU" if cpu else "memory"
    return {"size": name, "case": number, "limited": limited, "best": best, "found": found, "seconds": seconds}


def summary(size: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a table has of the cases of one size."""
    ratios = [each["found"] / each["best"] for each in cases if each["found"] is not None]
    dearer = [ratio for ratio in ratios if ratio > DEARER]
    return {
        "size": size,
        "cases": len(cases),
        "missed": sum(each["found"] is None for each in cases),
        "dearer": len(dearer),
        "mean": sum(ratios) / len(ratios) - 1,
        "worst": max(ratios) - 1,
        "cheaper": sum(ratio < 2 - DEARER for ratio in ratios),
        "seconds": sum(each["seconds"] for each in cases) / len(cases),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="cases of each size")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        drawn = (case(size, number) for number in count())
        rows.append(summary(size, list(islice((each for each in drawn if each is not None), options.cases))))
        console.print(rows[-1])
    save("exchange", rows)


if __name__ == "__main__":
    main()
