"""What a window costs that no cache holds: `python benchmarks/windows.py [--sizes 10,100,1000,4000] [--rounds 3]`.

Three streams are joined on one key, of which there are as many as a window has tuples, so a new tuple completes about one result
whatever the size. Windows are filled first, in large pushes; then pushes of 10,000 tuples are timed, in processor time. Sizes take
turns. Reported, in thousand tuples of each stream: tuples per second, how that compares with the smallest window, and bytes of state
per tuple.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt
from engine import PAYLOAD, SCHEMA, START_MICROS, save

NAMES = ("s0", "s1", "s2")
SECOND = 1_000_000
WINDOW = 10
FILLING = 100_000
"""Tuples of a stream in a push that is not timed."""
FILLED = 6
"""Windows' worth of tuples that come first. By then arrays, which have up to four times the room of a window, have their size and
have been written once to their end: the first touch of a page costs as much as a push of 10,000 tuples, and comes once."""
PUSH, PUSHES = 10_000, 40


def pushed(size: int, first: int, count: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """Tuples `first` to `first + count` of every stream; `size` of them are a window."""
    tables = {}
    for name in NAMES:
        times = START_MICROS + np.arange(first, first + count) * (WINDOW * SECOND) // size
        letters = rng.integers(ord("a"), ord("z") + 1, count * PAYLOAD, dtype=np.uint8)
        offsets = np.arange(count + 1, dtype=np.int32) * PAYLOAD
        payload = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
        keys = pa.array(rng.integers(0, size, count))
        tables[name] = pa.table([pa.array(times).cast(SCHEMA.field("ts").type), keys, payload], schema=SCHEMA)
    return tables


def measured(size: int, seed: int) -> dict[str, Any]:
    """One run: windows of `size` tuples of each stream."""
    session, rng = dt.LocalSession(), np.random.default_rng([seed, size])
    for name in NAMES:
        session.stream(name, SCHEMA, event_time="ts", rate=size / WINDOW)
    tables = ", ".join(f"{name} [RANGE {WINDOW} SECONDS]" for name in NAMES)
    session.query("q", f"SELECT * FROM {tables} WHERE s0.k = s1.k AND s1.k = s2.k")
    at, filled = 0, FILLED * size
    while at < filled:
        count = min(FILLING, size // 4, filled - at)
        session.push(pushed(size, at, count, rng))
        at += count
    each = PUSH // len(NAMES)
    pushes = [pushed(size, at + number * each, each, rng) for number in range(PUSHES)]
    results, began = 0, time.process_time()
    for push in pushes:
        results += session.push(push)["q"].num_rows
    taken = time.process_time() - began
    tuples, streams = PUSHES * each * len(NAMES), session.metrics()["streams"].values()
    held, state = (sum(stream[name] for stream in streams) for name in ("state_tuples", "state_bytes"))
    return {
        "size": size, "seed": seed, "tuples": tuples, "seconds": taken, "tuples_per_second": tuples / taken,
        "results": results, "state_bytes_per_tuple": state / held,
    }  # fmt: skip


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,100,1000,4000", help="thousand tuples of each stream in a window")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [1000 * int(size) for size in options.sizes.split(",")]
    measured(min(sizes), -1 % 2**32)  # compiled before the clock starts
    runs = [measured(size, seed) for seed in range(options.rounds) for size in sizes]
    speed = {size: median(run["tuples_per_second"] for run in runs if run["size"] == size) for size in sizes}
    for size in sizes:
        own = [run for run in runs if run["size"] == size]
        print(
            f"{size // 1000:>5} thousand: {speed[size] / 1000:,.0f} thousand tuples/s, {speed[size] / speed[sizes[0]]:.2f} of the "
            f"smallest; {own[0]['state_bytes_per_tuple']:.0f} bytes per tuple; {own[0]['results'] / own[0]['tuples']:.2f} results"
        )
    save("windows", runs)


if __name__ == "__main__":
    main()
