"""Does AMJoin's bit-vector table pay that rejects hopeless tuples before they are probed? `python benchmarks/rejection.py [repeats]`.

Streams are joined on one key, with hardly any results: a key is in a window with so much chance, in each independently of the others.
What the table would cost, an entry counted up for each tuple, down again when it expires, and looked at once for every new tuple, is
measured in a kernel of its own; so is what it could save at most, all the time that probes of hash indexes take. In processor time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pyarrow as pa

import dovetail as dt
from dovetail.engine.join import path as probe
from engine import save

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
SECOND = 1_000_000
RATE, WINDOW, BATCHES = 10_000, 10, 30
SPENT = [0.0]
"""Seconds of probes."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@numba.njit
def rejected(table: Any, codes: Any, old: Any, window: int, others: int, shift: np.uint64) -> int:
    """Count new keys of a window, count old ones down, and say how many new ones some other window lacks."""
    hopeless = 0
    for code in old:
        table[(code * GOLDEN) >> shift, window] -= 1
    for code in codes:
        slot = (code * GOLDEN) >> shift
        table[slot, window] += 1
        for other in range(others):
            if table[slot, other] == 0:
                hopeless += 1
                break
    return hopeless


def drawn(streams: int, chance: float, rng: np.random.Generator) -> list[list[np.ndarray]]:
    """Keys by batch and stream: a stream takes its keys from its own part of them all, in which each is with this chance."""
    keys = np.arange(int(RATE * WINDOW / chance))
    own = [keys[rng.random(len(keys)) < chance] for _ in range(streams)]
    return [[rng.choice(part, RATE) for part in own] for _ in range(BATCHES)]


def probing(streams: int, batches: list[list[np.ndarray]]) -> tuple[float, float, int]:
    """Nanoseconds per tuple of whole pushes, and of probes alone; and results."""
    session = dt.LocalSession()
    names = [f"s{number}" for number in range(streams)]
    for name in names:
        session.stream(name, SCHEMA, event_time="ts")
    tables = ", ".join(f"{name} [RANGE {WINDOW} SECONDS]" for name in names)
    equal = " AND ".join(f"s0.k = {name}.k" for name in names[1:])
    session.query("q", f"SELECT s0.k AS k FROM {tables} WHERE {equal}")
    results, taken, probes, warm = 0, 0.0, 0.0, WINDOW
    for number, batch in enumerate(batches):
        times = pa.array(np.linspace(number * SECOND, (number + 1) * SECOND - 1, RATE).astype(np.int64))
        pushed = {
            name: pa.table([times.cast(SCHEMA.field("ts").type), pa.array(keys)], schema=SCHEMA)
            for name, keys in zip(names, batch, strict=True)
        }
        before, began = SPENT[0], time.process_time()
        results += session.push(pushed)["q"].num_rows
        if number >= warm:
            taken += time.process_time() - began
            probes += SPENT[0] - before
    tuples = streams * RATE * (len(batches) - warm)
    return 1e9 * taken / tuples, 1e9 * probes / tuples, results


def timed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Add up the time that a kernel takes."""

    def called(*arguments: Any) -> Any:
        began = time.process_time()
        found = kernel(*arguments)
        SPENT[0] += time.process_time() - began
        return found

    return called


def filtering(streams: int, batches: list[list[np.ndarray]]) -> tuple[float, float]:
    """Nanoseconds per tuple of the table, and the share of tuples that it rejects."""
    bits = (RATE * WINDOW * streams * 2 - 1).bit_length()
    table, shift = np.zeros((1 << bits, streams), np.int32), np.uint64(64 - bits)
    codes = [[keys.astype(np.uint64) for keys in batch] for batch in batches]
    nothing, taken, hopeless = np.zeros(0, np.uint64), 0.0, 0
    rejected(table, nothing, nothing, 0, streams, shift)
    for number, batch in enumerate(codes):
        old = codes[number - WINDOW] if number >= WINDOW else [nothing] * streams
        began = time.process_time()
        found = sum(rejected(table, keys, old[place], place, streams, shift) for place, keys in enumerate(batch))
        if number >= WINDOW:
            taken += time.process_time() - began
            hopeless += found
    tuples = streams * RATE * (len(batches) - WINDOW)
    return 1e9 * taken / tuples, hopeless / tuples


def main() -> None:
    """Measure, print and keep."""
    vars(probe)["probe_hash"] = timed(vars(probe)["probe_hash"])
    repeats, runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3, list[dict[str, Any]]()
    for streams in (3, 5):
        for chance in (0.01, 0.1, 0.5):
            found = []
            for repeat in range(repeats):
                batches = drawn(streams, chance, np.random.default_rng([repeat, streams]))
                found.append((*probing(streams, batches), *filtering(streams, batches)))
            push, probes, results, table, share = (float(np.median(column)) for column in zip(*found, strict=True))
            print(
                f"{streams} streams, chance {chance}: push {push:.0f} ns per tuple, probes {probes:.0f}, table {table:.0f}, "
                f"{share:.1%} rejected, {results:,.0f} results"
            )
            runs.append(
                {"streams": streams, "chance": chance, "push": push, "probes": probes, "table": table, "rejected": share,
                 "results": results}
            )  # fmt: skip
    save("rejection", runs)


if __name__ == "__main__":
    main()
