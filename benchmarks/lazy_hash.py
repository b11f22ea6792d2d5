"""What does it save to look up a slow stream's tuples among a batch of a fast one? `python benchmarks/lazy_hash.py [--rounds 3]`.

One stream is a hundred times as fast as the others, and few tuples match. The batches of the fast stream are joined as before, each
new tuple probing the slow window, or from the other side where that pays (Golab and Özsu, section 3.4), push by push in turns.
Reported: microseconds of the fast stream's probes and of the whole push.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt
from dovetail.engine.join import reversed as reversed_probe
from engine import save

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("j", pa.int64())])
SECOND, PUSHES, RATIO, KEYS = 1_000_000, 40, 100, 1_000_000
SQL = {
    2: "SELECT a.ts FROM a [RANGE {0} s], b [RANGE {0} s] WHERE a.k = b.k",
    3: "SELECT a.ts FROM a [RANGE {0} s], b [RANGE {0} s], c [RANGE {0} s] WHERE a.k = b.k AND a.j = c.j",
}
CASES = [(inputs, slow, window) for inputs in SQL for slow, window in ((100, 5), (100, 20), (1000, 5))]
BEFORE, AFTER = 1e18, reversed_probe.MIN_RATIO


def session_of(inputs: int, slow: int, window: int) -> dt.LocalSession:
    """Declare a fast stream `a` and slow ones, and their join."""
    session = dt.LocalSession()
    for name in "abc"[:inputs]:
        session.stream(name, SCHEMA, "ts", rate=float(slow * (RATIO if name == "a" else 1)))
    session.query("q", SQL[inputs].format(window))
    return session


def measured(case: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """Measure one run of a case: both ways get the same pushes."""
    inputs, slow, window = case
    rng = np.random.default_rng([seed, *case])
    sessions = {ratio: session_of(*case) for ratio in (BEFORE, AFTER)}
    pushes: dict[float, list[float]] = {BEFORE: [], AFTER: []}
    probes: dict[float, list[float]] = {BEFORE: [], AFTER: []}
    results = dict.fromkeys(sessions, 0)
    for number in range(window + PUSHES):
        batch = {}
        for name in "abc"[:inputs]:
            rows = slow * (RATIO if name == "a" else 1)
            times = np.sort(rng.integers(number * SECOND, (number + 1) * SECOND, rows))
            keys = [pa.array(rng.integers(0, KEYS, rows)) for _ in "kj"]
            batch[name] = pa.table([pa.array(times, SCHEMA.field("ts").type), *keys], schema=SCHEMA)
        for ratio in sorted(sessions, reverse=bool(number % 2)):
            reversed_probe.MIN_RATIO = ratio
            began = time.perf_counter()
            results[ratio] += sessions[ratio].push(batch)["q"].num_rows
            seconds = time.perf_counter() - began
            runner = sessions[ratio]._engine.run_of("q").runners["a"]  # noqa: SLF001 - times of one path
            if number >= window:
                pushes[ratio].append(seconds)
            probes[ratio].append(sum(runner.seconds[1:]))
    assert len(set(results.values())) == 1
    medians = {name: median(pushes[ratio]) for name, ratio in (("before", BEFORE), ("after", AFTER))}
    in_probes = {
        name: median(np.diff(probes[ratio])[window:]) for name, ratio in (("before", BEFORE), ("after", AFTER))
    }
    return {
        "inputs": inputs,
        "slow": slow,
        "window": window,
        "seed": seed,
        "results": results[AFTER],
        "push_us": {name: 1e6 * value for name, value in medians.items()},
        "probing_us": {name: 1e6 * float(value) for name, value in in_probes.items()},
    }


def times(runs: list[dict[str, Any]], kind: str) -> str:
    """Return the median times of some runs, before and after."""
    return " -> ".join(f"{median(run[f'{kind}_us'][way] for run in runs):,.0f}" for way in ("before", "after"))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    runs = [measured(case, seed) for seed in range(parser.parse_args().rounds) for case in CASES]
    for inputs, slow, window in CASES:
        own = [run for run in runs if (run["inputs"], run["slow"], run["window"]) == (inputs, slow, window)]
        case = f"{inputs} streams, {slow * RATIO:,} and {slow:,} tuples per push, windows of {window} pushes"
        print(case, *(f"{kind} {times(own, kind)} us" for kind in ("probing", "push")), sep=", ")
    save("lazy-hash", runs)


if __name__ == "__main__":
    main()
