"""Is a plan that was chosen slower than joins by themselves? `python benchmarks/strategies.py [--workloads 30] [--rounds 3]`.

Each workload is a random set of queries over six streams (2 to 40 of them, on one key or two, half of the inputs filtered in some,
windows of up to 10,000 tuples), as in `many_queries.py`. The default strategy and `mjoin`, which stores nothing, get each push one
after the other, and take turns to be the first, for the second finds other things in the cache. The median of the ratios of rounds
counts, in processor time. Results must be the same.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np

from engine import save
from many_queries import open_session, pushes, queries

WARM_UP = 14
"""Rounds until windows are full, and plans are what they stay."""


def measured(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One workload."""
    rng = np.random.default_rng(seed)
    kind, count = ("one key", "two keys")[seed % 2], int(np.exp(rng.uniform(np.log(2), np.log(40))))
    chosen = queries(kind, count, seed)
    sessions = {name: open_session(chosen, strategy=name) for name in (arguments.strategy, "mjoin")}
    source, seconds = pushes(1000, seed), {name: list[float]() for name in sessions}
    for number in range(WARM_UP + arguments.rounds):
        results, taken = dict.fromkeys(sessions, 0), dict.fromkeys(sessions, 0.0)
        for turn in range(arguments.pushes):
            push = next(source)
            for name in sessions if turn % 2 else reversed(sessions):
                began = time.process_time()
                results[name] += sum(table.num_rows for table in sessions[name].push(push).values())
                taken[name] += time.process_time() - began
        assert len({*results.values()}) == 1, f"workload {seed}: {results}"
        for name in sessions if number >= WARM_UP else ():
            seconds[name].append(taken[name])
    stored = sessions[arguments.strategy].metrics()["nodes"]["states"]
    ratios = [one / other for one, other in zip(*seconds.values(), strict=True)]
    return {
        "seed": seed, "kind": kind, "queries": count, "stored": len(stored), "ratio": median(ratios), "ratios": ratios,
        "ms": {name: 1000 * median(taken) / arguments.pushes for name, taken in seconds.items()},
    }  # fmt: skip


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pushes", type=int, default=6, help="in a round")
    parser.add_argument("--strategy", default="auto")
    arguments = parser.parse_args()
    runs = []
    for seed in range(arguments.workloads):
        run = measured(seed, arguments)
        runs.append(run)
        print(
            f"{seed:>3}: {run['queries']:>3} queries on {run['kind']}, {run['stored']} sub-joins stored: "
            f"{run['ratio']:.2f} of mjoin ({min(run['ratios']):.2f} to {max(run['ratios']):.2f})",
            flush=True,
        )
    ratios = sorted(run["ratio"] for run in runs)
    print(
        f"median {median(ratios):.2f}, worst {ratios[-1]:.2f}; above 1.05: {sum(ratio > 1.05 for ratio in ratios)} of {len(runs)}"
    )
    save("strategies", runs)


if __name__ == "__main__":
    main()
