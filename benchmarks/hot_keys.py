"""What does one value cost that is half of a stream? `python benchmarks/hot_keys.py [--rounds 3]`.

Three streams are joined on one key with as many values as a window has tuples; in some of them every second tuple has the same value
instead. Where a stream has it, all results that it gives are there to be delivered; where one stream lacks it, none are, and what the
join does in vain shows. Reported: nanoseconds of processor time per tuple and result, and partial matches made per tuple and result.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt
from engine import save

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
NAMES = ("s0", "s1", "s2")
SECOND = 1_000_000
RATE, WINDOW, PUSHES, WARM_UP = 1000, 4, 30, 10
HOT = -1
CASES = {
    "no value is hot": {},
    "hot in one stream, others have it seldom": {"s0": 0.5, "s1": 0.001, "s2": 0.001},
    "hot in one stream, one lacks it": {"s0": 0.5, "s1": 0.001, "s2": 0.0},
    "hot in two streams, one lacks it": {"s0": 0.5, "s1": 0.5, "s2": 0.0},
    "hot in two streams, one has it seldom": {"s0": 0.5, "s1": 0.5, "s2": 0.0005},
}


def measured(case: str, seed: int) -> dict[str, Any]:
    """One run of a case."""
    session, rng = dt.LocalSession(), np.random.default_rng([seed, len(case)])
    for name in NAMES:
        session.stream(name, SCHEMA, event_time="ts", rate=float(RATE))
    tables = ", ".join(f"{name} [RANGE {WINDOW} SECONDS]" for name in NAMES)
    session.query("q", f"SELECT s0.k AS k FROM {tables} WHERE s0.k = s1.k AND s1.k = s2.k")
    taken, results, before = 0.0, 0, 0
    for number in range(PUSHES):
        push = {}
        for name in NAMES:
            keys = rng.integers(0, RATE * WINDOW, RATE)
            keys[rng.random(RATE) < CASES[case].get(name, 0.0)] = HOT
            times = pa.array(np.linspace(number * SECOND, (number + 1) * SECOND - 1, RATE).astype(np.int64))
            push[name] = pa.table([times.cast(SCHEMA.field("ts").type), pa.array(keys)], schema=SCHEMA)
        if number == WARM_UP:
            before = session.metrics()["queries"]["q"]["matches"]
        began = time.process_time()
        found = session.push(push)["q"].num_rows
        if number >= WARM_UP:
            taken, results = taken + time.process_time() - began, results + found
    work = (PUSHES - WARM_UP) * RATE * len(NAMES) + results
    matches = session.metrics()["queries"]["q"]["matches"] - before
    return {"case": case, "seed": seed, "results": results, "ns": 1e9 * taken / work, "matches": matches / work}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    runs = [measured(case, seed) for seed in range(parser.parse_args().rounds) for case in CASES]
    for case in CASES:
        own = [run for run in runs if run["case"] == case]
        ns, matches, results = (median(run[name] for run in own) for name in ("ns", "matches", "results"))
        print(f"{case}: {ns:.0f} ns and {matches:.2f} partial matches per tuple and result, {results:,.0f} results")
    save("hot-keys", runs)


if __name__ == "__main__":
    main()
