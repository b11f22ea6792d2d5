"""The cost of shedding: `python benchmarks/shedding.py [repeats]`.

Measures throughput under a cap that is never reached, and under one that binds, relative to that without shedding. Sessions process
the same batches in turn, and processor time is counted. Then measures nanoseconds per tuple of the decisions alone, by policy, with 5
and 7 streams. Every run checks its results: all of them under a cap that is not reached, fewer under one that binds, and windows
within the cap.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt
from dovetail.engine.kernels.tuple_table import NONE, TupleBatch, WindowReaders
from dovetail.engine.shedding import POLICIES
from dovetail.engine.shedding.tracker import Tracker
from engine import save

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
STREAMS = ("a", "b", "c")
SECOND = 1_000_000
RATE, SECONDS, BATCHES = 10_000, 60, 60
SQL = "SELECT a.k AS k FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.k = b.k AND b.k = c.k"
MOST = 3 * 10 * RATE
"""About the number of tuples in the windows when nothing is shed."""


def drawn(seed: int) -> list[dict[str, pa.Table]]:
    """Return batches of a second each; a key has about one tuple in a window."""
    rng, batches = np.random.default_rng(seed), []
    for second in range(BATCHES):
        batch = {}
        for stream in STREAMS:
            times = np.sort(rng.integers(second * SECOND, (second + 1) * SECOND, RATE))
            keys = pa.array(rng.integers(0, 10 * RATE, RATE))
            batch[stream] = pa.table([pa.array(times).cast(SCHEMA.field("ts").type), keys], schema=SCHEMA)
        batches.append(batch)
    return batches


def session(shedding: dt.Shedding | None) -> dt.LocalSession:
    """Return a session that joins three streams."""
    made = dt.LocalSession(config=dt.Config(shedding=shedding, adaptive=False))
    for stream in STREAMS:
        made.stream(stream, SCHEMA, event_time="ts")
    made.query("q", SQL)
    return made


def throughput(repeats: int) -> list[dict[str, Any]]:
    """Measure tuples per second, and their ratio to those without shedding; medians over repeats."""
    kinds = {"none": None, "never reached": dt.Shedding(max_tuples=2 * MOST)}
    kinds |= {f"binding, {policy}": dt.Shedding(policy, max_tuples=MOST // 2) for policy in (*POLICIES, "auto")}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    results: dict[str, int] = {}
    for repeat in range(repeats):
        batches = drawn(repeat)
        sessions = {kind: session(shedding) for kind, shedding in kinds.items()}
        seconds, results = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0)
        for batch in batches:
            for kind, joined in sessions.items():
                began = time.process_time()
                results[kind] += joined.push(batch)["q"].num_rows
                seconds[kind] += time.process_time() - began
        for kind, joined in sessions.items():
            taken[kind].append(seconds[kind])
            held = sum(int(str(stream["state_tuples"])) for stream in joined.metrics()["streams"].values())
            if kind.startswith("binding") and (held > MOST // 2 or not 0 < results[kind] < results["none"]):
                raise AssertionError(f"{kind}: {results[kind]} results, {held} tuples held")
        if results["never reached"] != results["none"]:
            raise AssertionError(f"{results['never reached']} results of {results['none']}")
    print(f"{BATCHES * len(STREAMS) * RATE:,} tuples, {repeats} repeats; without shedding {results['none']:,} results")
    runs = list[dict[str, Any]]()
    for kind, all_seconds in taken.items():
        ratio = float(np.median(np.array(taken["none"]) / np.array(all_seconds)))
        speed = float(BATCHES * len(STREAMS) * RATE / np.median(all_seconds))
        print(f"{kind:24} {speed / 1e6:6.2f} M tuples/s   {ratio:5.2f} of none   {results[kind]:>9,} results")
        runs.append(
            {"what": "throughput", "cap": kind, "tuples_per_second": speed, "ratio": ratio, "results": results[kind]}
        )
    return runs


def readers(streams: int, cap: int) -> WindowReaders:
    """Return the readers of a join of some streams on one key, with windows of 100 s and a cap for each."""
    positions = np.arange(streams)
    retention = np.stack([positions, np.full(streams, 100 * SECOND), (1 << streams) - 1 - (1 << positions)], axis=1)
    table, span = np.zeros(streams, np.int64), np.full(streams, 100 * SECOND)
    caps, lateness = np.full(streams, cap), np.zeros(streams, np.int64)
    return WindowReaders(
        np.arange(streams + 1),
        table,
        positions,
        span,
        np.array([streams]),
        positions[None, :].copy(),
        positions,
        caps,
        retention,
        lateness,
        positions,
        np.full(streams, NONE),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
    )


def decisions(repeats: int) -> list[dict[str, Any]]:
    """Measure nanoseconds per tuple of choosing victims: each key once per stream, 10 tuples/s, 500 held."""
    runs = list[dict[str, Any]]()
    for streams in (5, 7):
        rng, keys = np.random.default_rng(streams), 80_000
        times = rng.uniform(0, keys / 10, keys)[:, None] + np.cumsum(rng.exponential(5, (keys, streams)), axis=1)
        order = np.argsort(times, axis=None)
        window, key = order % streams, order // streams
        moments = (times.ravel()[order] * SECOND).astype(np.int64)
        codes, seen = key.astype(np.uint64)[:, None].copy(), np.ones(len(order), np.int64)
        incoming = TupleBatch(window, np.arange(len(order)), moments, codes, seen, np.ones(len(order), np.int32))
        for name, policy in POLICIES.items():
            taken = []
            for _ in range(repeats):
                tracker = Tracker(readers(streams, 500), policy.code, 0)
                began = time.process_time()
                shed = tracker.add_tuples(incoming, np.ones(streams, np.int64))
                taken.append(time.process_time() - began)
                if tracker.used_units > 500 * streams or not len(shed.row):
                    raise AssertionError(f"{name}: {tracker.used_units} tuples held")
            nanoseconds = float(1e9 * np.median(taken) / len(order))
            print(f"{streams} streams, {name:14} {nanoseconds:6.0f} ns per tuple")
            runs.append({"what": "decisions", "streams": streams, "policy": name, "nanoseconds": nanoseconds})
    return runs


def main() -> None:
    """Measure, print and save."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    save("shedding", [*throughput(repeats), *decisions(repeats)])


if __name__ == "__main__":
    main()
