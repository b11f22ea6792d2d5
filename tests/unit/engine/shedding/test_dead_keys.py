"""Dead keys are shed first: a model of the rule with dictionaries, and what it gains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from tracker_readers import SECOND, readers

import dovetail as dt
from dovetail.config import SHEDDING, SheddingPolicy
from dovetail.engine.kernels.compile import INTERPRETED
from dovetail.engine.kernels.dead_keys import is_dead
from dovetail.engine.kernels.key_history import EPOCHS, IS_ON
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    FIFO,
    FREQUENCY,
    FREQUENCY_OWN,
    IN_DEAD_LIST,
    OUTPUT,
    RANDOM,
    UNSEEN,
    USED_TUPLES,
    TupleBatch,
)
from dovetail.engine.shedding import table_arrays
from dovetail.engine.shedding.table_arrays import has_memory
from dovetail.engine.shedding.tracker import Tracker

SPAN = 100 * SECOND
EPOCH = SPAN // EPOCHS
CAP = 12


def arrivals(rng: random.Random, count: int, windows: int) -> Iterator[tuple[int, int]]:
    """Draw windows and keys: phases of keys that occur once in each window, in any order, between phases of few keys."""
    left = list[tuple[int, int]]()
    for number in range(count):
        if number % 400 == 0:
            repeating = number >= 800 and rng.random() < 0.3
        if repeating:
            yield rng.randrange(windows), rng.randrange(8)
        elif rng.random() < 0.003:
            yield rng.randrange(windows), number - rng.randrange(30)
        else:
            if len(left) < 20:
                left += [(window, 1000 + number) for window in range(windows) if rng.random() < 0.95]
            yield left.pop(rng.randrange(len(left)))


@dataclass
class Remembered:
    """What is remembered of a key."""

    inputs: set[int]
    epoch: int
    repeats: bool = False
    dead: bool = False


@dataclass
class Held:
    """A tuple."""

    window: int
    key: int
    ts: int
    linked: bool = False
    """Whether it dies with its key."""
    is_inside: bool = True


@dataclass
class Model:
    """Windows that shed dead tuples first, then the oldest: with dictionaries and lists, one tuple at a time."""

    windows: int
    held: list[Held] = field(default_factory=list)
    dead: list[Held] = field(default_factory=list)
    keys: dict[int, Remembered] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    epoch: int = -(10**9)
    partners: float = 0.0
    repeated: float = 0.0
    since: int | None = None
    is_on: bool = False

    def arrive(self, window: int, key: int, ts: int) -> Iterator[tuple[int, int]]:
        """Yield the window and key of each tuple that is shed."""
        self.heads[window] = ts
        self.expire(ts)
        if ts // EPOCH > self.epoch:
            self.enter_epoch(ts // EPOCH)
        own = [tuple_ for tuple_ in self.held if tuple_.window == window]
        if len(own) >= CAP:
            known = self.remembered(key)
            if self.is_on and known is not None and known.dead and window not in known.inputs:
                self.note(window, key)
                yield window, key
                return
            stale = [tuple_ for tuple_ in own[:1] if tuple_.ts + SPAN < ts]
            dead = [tuple_ for tuple_ in self.dead if tuple_.window == window]
            victim = (stale or dead or own)[0]
            self.held.remove(victim)
            self.leave(victim)
            yield victim.window, victim.key
        self.insert(Held(window, key, ts))

    def expire(self, ts: int) -> None:
        for window in range(self.windows):
            others = min(self.heads.get(other, -(1 << 60)) for other in range(self.windows) if other != window)
            for tuple_ in [one for one in self.held if one.window == window and one.ts < others - SPAN]:
                self.held.remove(tuple_)
                self.leave(tuple_)
        for window in range(self.windows):
            for tuple_ in [one for one in self.held if one.window == window and one.is_inside and one.ts + SPAN < ts]:
                self.leave(tuple_)

    def remembered(self, key: int) -> Remembered | None:
        known = self.keys.get(key)
        return known if known is not None and self.epoch - known.epoch <= EPOCHS + 1 else None

    def note(self, window: int, key: int) -> Remembered:
        known = self.remembered(key)
        if known is None:
            self.unlink(key)
            known = self.keys[key] = Remembered({window}, self.epoch)
            return known
        if window not in known.inputs:
            self.partners += 1
        else:
            self.repeated += 1
            if not known.repeats:
                known.repeats, known.dead = True, False
                self.unlink(key)
        known.inputs.add(window)
        known.epoch = self.epoch
        return known

    def insert(self, tuple_: Held) -> None:
        known = self.note(tuple_.window, tuple_.key)
        self.held.append(tuple_)
        tuple_.linked = self.since is not None and not known.repeats
        if tuple_.linked and len(known.inputs) == self.windows and not known.dead:
            self.die(tuple_.key)
        elif tuple_.linked and known.dead and self.is_on:
            self.dead.append(tuple_)

    def leave(self, tuple_: Held) -> None:
        """Leave the window; the key dies."""
        if tuple_ in self.dead:
            self.dead.remove(tuple_)
        was_linked, tuple_.linked, tuple_.is_inside = tuple_.linked, False, False
        if was_linked and not self.keys[tuple_.key].dead:
            self.die(tuple_.key)

    def die(self, key: int) -> None:
        self.keys[key].dead = True
        if self.is_on:
            linked = [one for one in self.held if one.linked and one.key == key and one not in self.dead]
            self.dead += reversed(linked)

    def unlink(self, key: int) -> None:
        for tuple_ in self.held:
            if tuple_.linked and tuple_.key == key:
                tuple_.linked = False
                if tuple_ in self.dead:
                    self.dead.remove(tuple_)

    def enter_epoch(self, epoch: int) -> None:
        fading = (63 / 64) ** min(epoch - self.epoch, 1 << 20)
        self.epoch = epoch
        self.partners *= fading
        self.repeated *= fading
        if self.partners >= max(64, 64 * self.repeated):
            self.since = self.since if self.since is not None else epoch
            self.is_on = self.is_on or epoch - self.since >= EPOCHS
        else:
            self.since, self.is_on = None, False
            self.dead.clear()


def tracker(policy: int, windows: int, cap: int = CAP) -> Tracker:
    """Return a tracker of a join on one key that remembers keys."""
    remembering = readers(windows, cap, SPAN)._replace(
        join=np.zeros(windows, np.int64), inputs=np.array([windows]), epoch=np.array([EPOCH])
    )
    return Tracker(remembering, policy, seed=1)


def add_tuples(
    into: Tracker, rows: range, values: list[tuple[int, int]], count: int, step: int = SECOND
) -> list[tuple[int, int]]:
    """Let tuples arrive, a `step` apart; return the window and key of each that was shed."""
    windows, keys = (np.array(column, np.int64) for column in zip(*(values[row] for row in rows), strict=True))
    numbers = np.arange(rows.start, rows.stop)
    codes, seen = keys.astype(np.uint64)[:, None], np.ones(len(rows), np.int64)
    shed = into.add_tuples(
        TupleBatch(windows, numbers, numbers * step, codes, seen, np.ones(len(rows), np.int32)),
        np.ones(count, np.int64),
    )
    return [values[row] for row in shed.row]


@pytest.mark.parametrize("seed", range(1 if INTERPRETED else 30))
def test_tuples_are_shed_as_the_model_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model remembers every key, so the table gets room for all of them."""
    make = table_arrays.empty_history
    monkeypatch.setattr(
        table_arrays,
        "empty_history",
        lambda readers, **options: make(readers._replace(cap=64 * readers.cap), **options),
    )
    rng = random.Random(seed)
    count = rng.randrange(2, 5)
    values = list(arrivals(rng, 3000, count))
    model, own, at = Model(count), tracker(FIFO, count), 0
    was_on = 0
    while at < len(values):
        rows = range(at, min(len(values), at + rng.choice((1, 10, 200))))
        expected = [shed for row in rows for shed in model.arrive(*values[row], row * SECOND)]
        assert add_tuples(own, rows, values, count) == expected, rows
        assert bool(own.table.history.state[0, IS_ON]) == model.is_on
        was_on += model.is_on
        if rng.random() < 0.1:
            again = tracker(FIFO, count)
            again.restore(own.to_arrays())
            own = again
        at = rows.stop
    assert was_on


@pytest.mark.parametrize("policy", [ARRIVAL_ORDER, FREQUENCY, FREQUENCY_OWN, OUTPUT, RANDOM, FIFO])
def test_only_dead_tuples_are_in_the_list_of_dead_tuples(policy: int) -> None:
    rng = random.Random(policy)
    values = list(arrivals(rng, 4000, 3))
    own, found, at = tracker(policy, 3, cap=40), 0, 0
    while at < len(values):
        rows = range(at, min(len(values), at + 100))
        add_tuples(own, rows, values, 3)
        table = own.table
        indexes = np.flatnonzero(table.tuples.row[: table.counters[USED_TUPLES]] >= 0)
        dead = {index for index in indexes.tolist() if is_dead(table, index)}
        listed = set[int]()
        for pool in range(3):
            index = int(table.history.first_dead[pool])
            while index >= 0:
                assert table.tuples[index].window == pool
                listed.add(index)
                index = int(table.links[index].after)
        assert listed == {int(index) for index in indexes if table.links[index].queue == IN_DEAD_LIST}
        assert all(table.chains[index, 0].entry == UNSEEN for index in listed - dead), "they have left their windows"
        if policy == RANDOM:
            assert table.ranking.size.sum() == len(indexes) - len(listed)
        found += len(listed)
        at = rows.stop
    assert found


@pytest.mark.skipif(INTERPRETED, reason="it takes many tuples")
@pytest.mark.parametrize("policy", [ARRIVAL_ORDER, FREQUENCY, OUTPUT, RANDOM, FIFO])
def test_a_large_history_follows_a_sample_of_the_keys_while_they_repeat(
    policy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys are followed from an epoch on, wherever batches begin."""
    monkeypatch.setattr(table_arrays, "SAMPLED_FROM", 1)
    rng, unique = random.Random(policy), list[tuple[int, int]]()
    for key in range(4000):
        unique += [(window, 1000 + key) for window in rng.sample(range(3), 3) if rng.random() < 0.95]
    repeating = [(rng.randrange(3), rng.randrange(300)) for _ in range(4000)]
    values = [*unique, *repeating]
    one, other = tracker(policy, 3, cap=400), tracker(policy, 3, cap=400)
    follows_all, at = list[bool](), 0
    assert one.table.history.sample_bits > 0
    for end in (len(unique), len(values)):
        whole, shed = add_tuples(one, range(at, end), values, 3, SECOND // 20), list[tuple[int, int]]()
        while at < end:
            rows = range(at, min(end, at + rng.choice((1, 30, 700))))
            shed += add_tuples(other, rows, values, 3, SECOND // 20)
            if rng.random() < 0.1:
                again = tracker(policy, 3, cap=400)
                again.restore(other.to_arrays())
                other = again
            at = rows.stop
        assert shed == whole
        follows_all.append(one.table.history.sample_bits == 0)
        assert has_memory(one.table.chains) == follows_all[-1]
        assert one.table.history.state[0, IS_ON] == follows_all[-1]
    assert follows_all == [True, False]


def results(policy: SheddingPolicy, *, dead_keys_first: bool, repeating: bool) -> int:
    """Count the results of three streams under a cap; each key occurs once in each stream, or keys are drawn from few."""
    rng = np.random.default_rng(4)
    count, second = 4000, 1_000_000
    shedding = dt.Shedding(policy, max_tuples=180, per="window", seed=2, dead_keys_first=dead_keys_first)
    session = dt.LocalSession(config=dt.Config(shedding=shedding))
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
    data = {}
    first = np.sort(rng.integers(0, 400 * second, count))
    for stream in "abc":
        times = np.sort(first + rng.integers(0, 60 * second, count))
        keys = rng.integers(0, 200, count) if repeating else np.argsort(first + rng.integers(0, 60 * second, count))
        data[stream] = pa.table([pa.array(times, schema.field("ts").type), keys], schema=schema)
        session.stream(stream, schema, event_time="ts")
    session.query(
        "q",
        "SELECT a.k AS k FROM a [RANGE 60 SECONDS], b [RANGE 60 SECONDS], c [RANGE 60 SECONDS] "
        "WHERE a.k = b.k AND b.k = c.k",
    )
    found = 0
    for batch in range(20):
        low, high = (pa.scalar(number * 20 * second, schema.field("ts").type) for number in (batch, batch + 1))
        found += session.push({
            name: table.filter(pa.compute.and_(pa.compute.greater_equal(table["ts"], low), pa.compute.less(table["ts"], high)))
            for name, table in data.items()
        })["q"].num_rows  # fmt: skip
    return found


@pytest.mark.skipif(INTERPRETED, reason="it takes many tuples")
@pytest.mark.parametrize("policy", SHEDDING)
def test_more_results_are_kept_where_keys_occur_once(policy: SheddingPolicy) -> None:
    kept = {first: results(policy, dead_keys_first=first, repeating=False) for first in (False, True)}
    assert kept[True] > 1.1 * kept[False], kept


@pytest.mark.skipif(INTERPRETED, reason="it takes many tuples")
@pytest.mark.parametrize("policy", ["fifo", "frequency", "arrival-order"])
def test_nothing_changes_where_keys_repeat(policy: SheddingPolicy) -> None:
    with_it, without = (results(policy, dead_keys_first=first, repeating=True) for first in (True, False))
    assert with_it == without
