"""The paper's batch MJoin on the kind of machine it was written for: one tuple after another, compiled.

A tuple is put into its stream's hash table, then probes the next table with its key, and each match probes the last one. A table is an
array of buckets, each the newest of a chain of tuples, as one would write it in Java. Policies decide, before each tuple (`timestamp`
and `round-robin`) or before each buffer, whose tuple comes next. Selectivities are known, as in the paper: ties of `consumption-rate`
take the streams as declared.

The same datasets, batches, policies and order of probes as for the engine (`valsomatzis`); so everything that is measured there is
measured here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Buffers: TypeAlias = tuple[tuple[Integers, ...], tuple[Integers, ...]]
"""Times and keys of a batch, by stream."""
ORDERS = np.array([(1, 2), (0, 2), (0, 1)])
"""Whom the tuples of each stream probe."""
TIMESTAMP, ROUND_ROBIN, BUFFERS = range(3)
INTERLEAVING = {"timestamp": TIMESTAMP, "round-robin": ROUND_ROBIN}
COUNTED = ("probes", "rows_read", "matches", "results", "s1", "s2", "s3")


class MJoin:
    """The join of three streams under one policy."""

    def __init__(self, policy: str, sizes: Sequence[int], results: int) -> None:
        self.policy, self.sizes = policy, sizes
        self.buckets = [1 << max(4, size.bit_length()) for size in sizes]
        self.heads = tuple(np.full(buckets, -1, np.int32) for buckets in self.buckets)
        self.chains = tuple(np.full(size, -1, np.int32) for size in sizes)
        self.keys = tuple(np.zeros(size, np.int64) for size in sizes)
        self.stored = np.zeros(3, np.int64)
        self.counts = np.zeros(len(COUNTED), np.int64)
        self.given = np.zeros(results, np.int64)

    def run(self, batch: Buffers, rows: int) -> list[tuple[float, float, int]]:
        """Join a batch: after each piece of so many tuples the seconds, the work and the results so far."""
        times, keys = batch
        taken, turn, trace = np.zeros(3, np.int64), np.zeros(1, np.int64), list[tuple[float, float, int]]()
        work, results = int(self.counts[:2].sum()), int(self.counts[3])
        rule = INTERLEAVING.get(self.policy, BUFFERS)
        began = time.process_time()
        left = sum(map(len, keys))
        while left:
            if rule == BUFFERS:
                stream = self._next(keys, taken)
                most = min(rows, len(keys[stream]) - int(taken[stream]))
                turn[0] = stream
            else:
                most = min(rows, left)
            process(
                rule, most, turn, taken, times, keys, self.heads, self.chains, self.keys, self.stored, self.counts, self.given
            )  # fmt: skip
            left -= most
            now = time.process_time() - began
            trace.append((now, float(self.counts[:2].sum() - work), int(self.counts[3] - results)))
        trace.append((time.process_time() - began, float(self.counts[:2].sum() - work), int(self.counts[3] - results)))
        return trace

    def _next(self, keys: Sequence[Integers], taken: Integers) -> int:
        """The stream whose buffer comes next; one that was begun goes on."""
        waiting = [stream for stream in range(3) if taken[stream] < len(keys[stream])]
        begun = [stream for stream in waiting if taken[stream]]
        if begun:
            return begun[0]
        if self.policy == "reversed":
            return waiting[-1]
        if self.policy == "consumption-rate":
            return max(waiting, key=lambda stream: self.sizes[stream])  # σ_S is |Mjoin| / |S|
        if self.policy in ("initial-output-size", "output-rate"):
            return max(waiting, key=lambda stream: self._expected(stream, len(keys[stream])))
        return waiting[0]

    def _expected(self, stream: int, size: int) -> float:
        """Equation 1 without the factor that is common to all."""
        others = float(np.prod([float(stored) for other, stored in enumerate(self.stored) if other != stream]))
        return others * (size if self.policy == "initial-output-size" else 1)


@nb.njit(cache=True)
def process(  # noqa: PLR0913, PLR0917 - one loop, compiled
    rule: int,
    most: int,
    turn: Any,
    taken: Any,
    times: Any,
    keys: Any,
    heads: Any,
    chains: Any,
    kept: Any,
    stored: Any,
    counts: Any,
    given: Any,
) -> None:
    """Take so many tuples, one after another."""
    for _ in range(most):
        own = turn[0]
        if rule == TIMESTAMP:
            own = -1
            for stream in range(3):
                if taken[stream] < len(keys[stream]) and (
                    own < 0 or times[stream][taken[stream]] < times[own][taken[own]]
                ):
                    own = stream
        elif rule == ROUND_ROBIN:
            while taken[own] >= len(keys[own]):
                own = (own + 1) % 3
            turn[0] = (own + 1) % 3
        key = keys[own][taken[own]]
        taken[own] += 1
        place = stored[own]
        bucket = _bucket(key, len(heads[own]))
        kept[own][place] = key
        chains[own][place] = heads[own][bucket]
        heads[own][bucket] = place
        stored[own] += 1
        first, second = ORDERS[own]
        counts[0] += 1
        match = heads[first][_bucket(key, len(heads[first]))]
        while match >= 0:
            counts[1] += 1
            if kept[first][match] == key:
                counts[0] += 1
                counts[2] += 1
                last = heads[second][_bucket(key, len(heads[second]))]
                while last >= 0:
                    counts[1] += 1
                    if kept[second][last] == key:
                        counts[2] += 1
                        given[counts[3] % len(given)] = key
                        counts[3] += 1
                        counts[4 + own] += 1
                    last = chains[second][last]
            match = chains[first][match]


@nb.njit(cache=True, inline="always")
def _bucket(key: Any, buckets: int) -> Any:
    """Where a key is, in a table whose size is a power of two."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(20)) & (buckets - 1)


def buffers(batch: Mapping[str, pa.Table]) -> Buffers:
    """The arrays of a batch."""
    times = tuple(table.column("ts").cast(pa.int64()).to_numpy() for table in batch.values())
    return times, tuple(table.column("k").to_numpy() for table in batch.values())
