"""The paper's program, simulated: windows of counted tuples, its four policies, and what it leaves open about ties.

The engine sheds the oldest of tuples that are worth the same. The paper says so of EP's patterns alone, so for the others a random
one may be meant: here both can be had. Results are counted and not made, so the paper's own sizes can be run where there are 10^11.

A tuple's existence pattern is the set of windows in which its value had appeared when it came, its own included. EP drops tuples with
all bits first, then the oldest of the pattern with the fewest results per tuple (definition 3). `frequency` counts a value's tuples in
all windows, `frequency-own` in the tuple's own; `output` counts the results that a value has given.

`count_results` looks at the whole window for each victim and takes any keys. `timed_results` is for keys that appear once in a stream;
it keeps what section 4 describes (a list of tuples by pattern, a priority queue by value), so that it can be timed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any, TypeAlias

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
EP, FREQUENCY, OWN, OUTPUT, RANDOM, FIFO, NOTHING = range(7)
SIMULATED = {
    "arrival-order": (EP, False),
    "frequency": (FREQUENCY, False),
    "frequency-own": (OWN, False),
    "output": (OUTPUT, False),
    "random": (RANDOM, False),
    "fifo": (FIFO, False),
    "frequency, random ties": (FREQUENCY, True),
    "frequency-own, random ties": (OWN, True),
    "output, random ties": (OUTPUT, True),
}
"""What a policy counts, and whether a random one of equal tuples goes."""
TIMED = {"arrival-order": EP, "frequency": FREQUENCY, "output": OUTPUT}
PROCESSING = 16.7
"""Tuples per second and stream that the overloaded program takes up."""
SECOND = 1_000_000


def arrivals(streams: Mapping[str, pa.Table]) -> tuple[Integers, Integers, Integers]:
    """The stream, the key (from 0) and the time of all tuples, in the order of time."""
    times = [table.column("ts").cast(pa.int64()).to_numpy() for table in streams.values()]
    keys = np.concatenate([table.column("k").to_numpy() for table in streams.values()])
    stream = np.repeat(np.arange(len(times)), [len(each) for each in times])
    order = np.argsort(np.concatenate(times), kind="stable")
    found = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    return stream[order], found[order], np.concatenate(times)[order]


def kept_up(stream: Integers, key: Integers, moment: Integers, rate: float, room: int) -> tuple[Integers, ...]:
    """The tuples that a program takes up that processes `rate` per second and has room for so many that wait; others are lost."""
    waiting, last, kept = 0.0, 0, np.ones(len(moment), bool)
    for number, now in enumerate(moment.tolist()):
        waiting, last = max(0.0, waiting - (now - last) / SECOND * rate), now
        kept[number] = waiting + 1 <= room
        waiting += kept[number]
    return stream[kept], key[kept], moment[kept]


def simulate(streams: Mapping[str, pa.Table], memory: int, span: int, seed: int, rate: float | None) -> dict[str, Any]:
    """Results of all policies, and without shedding; with a `rate` the program may fall behind."""
    stream, key, moment = arrivals(streams)
    if rate is not None:
        stream, key, moment = kept_up(stream, key, moment, rate * len(streams), memory * len(streams))
    given = (stream, key, moment, len(streams), int(key.max()) + 1)
    found: dict[str, Any] = {"all": int(count_results(*given, 1 << 40, span, NOTHING, False, seed)), "policies": {}}
    for name, (policy, random_ties) in SIMULATED.items():
        results = count_results(*given, memory, span, policy, random_ties, seed)
        found["policies"][name] = {"results": int(results)}
    return {**found, "tuples": len(stream)}


def decisions(streams: Mapping[str, pa.Table], memory: int, span: int) -> dict[str, Any]:
    """Nanoseconds per tuple that policies take to insert, expire, decide and keep their statistics."""
    stream, key, moment = arrivals(streams)
    sizes = (len(streams), int(key.max()) + 1, memory, span)
    found = {}
    for name, policy in TIMED.items():
        timed_results(stream[:100], key[:100], moment[:100], *sizes, policy)  # compiled and loaded
        began = time.process_time()
        results = timed_results(stream, key, moment, *sizes, policy)
        found[name] = {"results": int(results), "nanoseconds": 1e9 * (time.process_time() - began) / len(stream)}
    return {"policies": found, "tuples": len(stream)}


@nb.njit(cache=True)
def count_results(  # noqa: PLR0913, PLR0915, PLR0917 - one loop, compiled
    stream: Any,
    key: Any,
    moment: Any,
    streams: int,
    keys: int,
    memory: int,
    span: int,
    policy: int,
    random_ties: bool,  # noqa: FBT001 - Numba has no keyword-only arguments
    seed: int,
) -> int:
    """How many results a policy leaves."""
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    size, total, full = len(stream), 0, (1 << streams) - 1
    number = np.zeros((streams, size), np.int64)  # of the tuples of a window, in the order of arrival
    first, stop, held = np.zeros(streams, np.int64), np.zeros(streams, np.int64), np.zeros(streams, np.int64)
    alive, pattern = np.zeros(size, np.bool_), np.zeros(size, np.int64)
    count, seen, given = np.zeros((streams, keys), np.int64), np.zeros(keys, np.int64), np.zeros(keys, np.float64)
    tuples, results = np.zeros((streams, full + 1)), np.zeros((streams, full + 1))
    for new in range(size):
        own, value, now = stream[new], key[new], moment[new]
        for window in range(streams):
            while first[window] < stop[window]:
                oldest = number[window, first[window]]
                if alive[oldest]:
                    if moment[oldest] >= now - span:
                        break
                    alive[oldest] = False
                    held[window] -= 1
                    count[window, key[oldest]] -= 1
                first[window] += 1
        if held[own] >= memory:
            victim, least, equal = -1, np.inf, 0
            for place in range(first[own], stop[own]):
                each = number[own, place]
                if not alive[each]:
                    continue
                if policy == EP:
                    bits = pattern[each]
                    worth = -1.0 if bits == full else results[own, bits] / tuples[own, bits]
                elif policy == FREQUENCY:
                    worth = float(np.sum(count[:, key[each]]))
                elif policy == OWN:
                    worth = float(count[own, key[each]])
                elif policy == OUTPUT:
                    worth = given[key[each]]
                elif policy == RANDOM:
                    worth = np.random.random()  # noqa: NPY002
                else:
                    worth = 0.0
                if worth < least:
                    victim, least, equal = each, worth, 1
                elif random_ties and worth == least:
                    equal += 1
                    if np.random.randint(equal) == 0:  # noqa: NPY002
                        victim = each
            alive[victim] = False
            held[own] -= 1
            count[own, key[victim]] -= 1
        seen[value] |= 1 << own
        pattern[new], alive[new] = seen[value], True
        number[own, stop[own]] = new
        stop[own] += 1
        held[own] += 1
        count[own, value] += 1
        tuples[own, pattern[new]] += 1
        found = 1
        for window in range(streams):
            if window != own:
                found *= count[window, value]
        if found == 0:
            continue
        total += found
        given[value] += found
        if policy == EP:
            results[own, pattern[new]] += found
            for window in range(streams):
                if window != own:
                    part = found / count[window, value]
                    for place in range(first[window], stop[window]):
                        each = number[window, place]
                        if alive[each] and key[each] == value:
                            results[window, pattern[each]] += part
    return total


@nb.njit(cache=True)
def timed_results(  # noqa: PLR0915, PLR0917 - one loop, compiled
    stream: Any, key: Any, moment: Any, streams: int, keys: int, memory: int, span: int, policy: int
) -> int:
    """How many results a policy leaves of keys that appear once in a stream; of equal tuples the oldest goes."""
    size, total, full = len(stream), 0, (1 << streams) - 1
    tuple_of = np.full((keys, streams), -1, np.int64)
    held, alive, pattern = np.zeros(streams, np.int64), np.zeros(size, np.bool_), np.zeros(size, np.int64)
    seen, given, tail = np.zeros(keys, np.int64), np.zeros(keys, np.int64), np.zeros(streams, np.int64)
    tuples, results = np.zeros((streams, full + 1), np.int64), np.zeros((streams, full + 1), np.int64)
    # By window and pattern: a list of tuples, the oldest first. By window: all tuples, and a queue by what their values are worth.
    following, everyone = np.full(size, -1, np.int64), np.zeros((streams, size), np.int64)
    heads, ends = np.full((streams, full + 1), -1, np.int64), np.full((streams, full + 1), -1, np.int64)
    stop = np.zeros(streams, np.int64)
    queues = [[(np.int64(0), np.int64(-1)) for _ in range(1)] for _ in range(streams)]
    for queue in queues:
        queue.pop()
    for new in range(size):
        own, value, now = stream[new], key[new], moment[new]
        for window in range(streams):
            while tail[window] < stop[window]:
                oldest = everyone[window, tail[window]]
                if alive[oldest] and moment[oldest] >= now - span:
                    break
                if alive[oldest]:
                    _drop(oldest, window, key, alive, held, tuple_of, queues, policy)
                tail[window] += 1
        if held[own] >= memory:
            victim: Any = -1
            if policy == EP:
                least = np.inf
                for bits in range(full, -1, -1):
                    while heads[own, bits] >= 0 and not alive[heads[own, bits]]:
                        heads[own, bits] = following[heads[own, bits]]
                    if heads[own, bits] >= 0:
                        worth = -1.0 if bits == full else results[own, bits] / tuples[own, bits]
                        if worth < least or (worth == least and heads[own, bits] < victim):
                            victim, least = heads[own, bits], worth
            else:
                queue = queues[own]
                while victim < 0:
                    worth_then, each = heappop(queue)
                    if alive[each] and worth_then == _worth(key[each], tuple_of, given, policy):
                        victim = each
            _drop(victim, own, key, alive, held, tuple_of, queues, policy)
        seen[value] |= 1 << own
        bits = seen[value]
        pattern[new], alive[new], tuple_of[value, own] = bits, True, new
        everyone[own, stop[own]] = new
        stop[own] += 1
        held[own] += 1
        complete = True
        for window in range(streams):
            complete = complete and tuple_of[value, window] >= 0
        if complete:
            total += 1
            given[value] += 1
        if policy == EP:
            tuples[own, bits] += 1
            if heads[own, bits] < 0:
                heads[own, bits] = new
            else:
                following[ends[own, bits]] = new
            ends[own, bits] = new
            if complete:
                for window in range(streams):
                    results[window, pattern[tuple_of[value, window]]] += 1
        elif policy == FREQUENCY or complete:
            _queue_all(value, tuple_of, given, queues, policy)
        else:
            heappush(queues[own], (_worth(value, tuple_of, given, policy), np.int64(new)))
    return total


@nb.njit(cache=True)
def _worth(value: int, tuple_of: Any, given: Any, policy: int) -> Any:
    """What a value's tuples are worth: the windows that it is in, or the results that it has given."""
    if policy == OUTPUT:
        return np.int64(given[value])
    return np.int64(np.sum(tuple_of[value] >= 0))


@nb.njit(cache=True)
def _queue_all(value: int, tuple_of: Any, given: Any, queues: Any, policy: int) -> None:
    """Queue all tuples of a value by its new worth; what they were queued by before no longer counts."""
    worth = _worth(value, tuple_of, given, policy)
    for window in range(len(queues)):
        if tuple_of[value, window] >= 0:
            heappush(queues[window], (worth, np.int64(tuple_of[value, window])))


@nb.njit(cache=True)
def _drop(  # noqa: PLR0917 - compiled
    each: int, window: int, key: Any, alive: Any, held: Any, tuple_of: Any, queues: Any, policy: int
) -> None:
    """Remove a tuple from its window."""
    alive[each] = False
    held[window] -= 1
    tuple_of[key[each], window] = -1
    if policy == FREQUENCY:
        _queue_all(key[each], tuple_of, np.zeros(0, np.int64), queues, policy)
