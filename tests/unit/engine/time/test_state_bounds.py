"""State stays bounded on long streams, and expiry loses no result."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.config import Mode
from dovetail.testing import assert_same_rows, expected

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("n", pa.int64())])
SECOND = 1_000_000
REWRITE = 4096
"""A window that cannot let go of its oldest row is rewritten from this size on."""
RATE = 20
WINDOW = 10
PAIRS = "SELECT a.n AS i, b.n AS j FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k"
Data = Mapping[str, Any]
Batches = list[dict[str, pa.Table]]


def tuples(rng: np.random.Generator, count: int, rate: float = RATE, keys: int = 50, disorder: float = 0.0) -> pa.Table:
    """Draw `count` numbered tuples at about `rate` per second, out of order by at most `disorder` seconds."""
    times = np.sort(rng.uniform(0, count / rate, count))
    arrival = np.argsort(times + rng.uniform(0, disorder, count) if disorder else times, kind="stable")
    micros = (times * SECOND).astype(np.int64)
    content = {"ts": pa.array(micros, TS), "k": pa.array(rng.integers(0, keys, count)), "n": pa.array(np.arange(count))}
    return pa.table(content).take(pa.array(arrival))


def in_step(streams: Mapping[str, pa.Table], size: int) -> Iterator[dict[str, pa.Table]]:
    for first in range(0, max(map(len, streams.values())), size):
        yield {name: whole.slice(first, size) for name, whole in streams.items()}


def numbers(results: Sequence[pa.Table]) -> list[tuple[int, ...]]:
    whole = pa.concat_tables(results)
    return sorted(zip(*(column.to_pylist() for column in whole.columns), strict=True))


def batch_join(left: pa.Table, right: pa.Table, window: float) -> list[tuple[int, int]]:
    """Compute the pairs of equal key at most `window` seconds apart in one pass."""
    keys, times, names = (
        [whole.column(name).cast(pa.int64()).to_numpy() for whole in (left, right)] for name in ("k", "ts", "n")
    )
    found: list[tuple[int, int]] = []
    for key in np.unique(keys[0]):
        one, other = np.flatnonzero(keys[0] == key), np.flatnonzero(keys[1] == key)
        near = np.abs(times[0][one][:, None] - times[1][other][None, :]) <= window * SECOND
        rows, columns = near.nonzero()
        found += zip(names[0][one[rows]].tolist(), names[1][other[columns]].tolist(), strict=True)
    return sorted(found)


def started(sql: str, config: dt.Config | None = None, **lateness: float) -> dt.LocalSession:
    session = dt.LocalSession(config=config)
    for name in ("a", "b"):
        session.stream(name, SCHEMA, "ts", lateness=lateness.get(name, 0))
    session.query("q", sql)
    return session


def held(session: dt.LocalSession) -> dict[str, int]:
    return {name: int(str(stream["state_tuples"])) for name, stream in session.metrics()["streams"].items()}


@pytest.mark.parametrize("size", [1, 7, 100, 1500])
@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_time_windows_over_fifty_windows(size: int, mode: Mode) -> None:
    if size == 1 and mode == "eager":
        pytest.skip("one by one, eager is lazy")
    count = 50 * WINDOW * RATE if size > 1 else 10 * WINDOW * RATE
    rng = np.random.default_rng(size)
    streams = {"a": tuples(rng, count), "b": tuples(rng, count)}
    session = started(PAIRS, dt.Config(evaluation=mode, expiration=mode))
    found, most = [], 0
    for batch in in_step(streams, size):
        found.append(session.push(batch)["q"])
        most = max(most, *held(session).values())
    assert numbers(found) == batch_join(streams["a"], streams["b"], WINDOW)
    # After a batch, a window holds what a later tuple of the other stream may match. Of 10,000 random times, the n-th of two
    # streams lie up to sqrt(10,000) / RATE = 5 s apart; twice that is never reached.
    assert most <= RATE * (WINDOW + 10)


@pytest.mark.parametrize("size", [13, 400])
def test_disorder_within_the_lateness_loses_nothing(size: int) -> None:
    rng = np.random.default_rng(size)
    count, disorder = 50 * WINDOW * RATE, 3.0
    streams = {"a": tuples(rng, count, disorder=disorder), "b": tuples(rng, count, disorder=disorder)}
    session = started(PAIRS, a=disorder, b=disorder)
    found, most = [], 0
    for batch in in_step(streams, size):
        found.append(session.push(batch)["q"])
        most = max(most, *held(session).values())
    assert all(stream["late"] == 0 for stream in session.metrics()["streams"].values())
    assert numbers(found) == batch_join(streams["a"], streams["b"], WINDOW)
    assert most <= RATE * (WINDOW + 10 + 2 * disorder)


def test_state_is_bounded_by_the_longest_window_of_a_running_query() -> None:
    rng = np.random.default_rng(0)
    streams = {"a": tuples(rng, 4000), "b": tuples(rng, 4000)}
    session = started(PAIRS)
    session.query("long", PAIRS.replace("10 s", "60 s"))
    for number, batch in enumerate(in_step(streams, 100)):
        if number == 30:
            assert 0.9 * RATE * 60 < held(session)["a"] < 1.2 * RATE * 60
            session.drop_query("long")
        session.push(batch)
    assert held(session)["a"] < 1.3 * RATE * WINDOW


def test_a_silent_stream_delays_expiry_until_it_is_advanced() -> None:
    rng = np.random.default_rng(1)
    left = tuples(rng, 4000)
    session = started(PAIRS)
    for batch in in_step({"a": left}, 500):
        session.push(batch)
    assert held(session) == {"a": 4000, "b": 0}
    session.advance({"b": 100 * SECOND})
    assert held(session)["a"] == sum(ts.value >= 90 * SECOND for ts in left.column("ts"))
    session.advance({"b": 1000 * SECOND})
    assert held(session) == {"a": 0, "b": 0}


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_one_tuple_from_the_future_does_not_block_expiry(mode: Mode) -> None:
    # a's lateness lets its clock be wrong; b's watermark decides what a must keep. The wrong tuple stays at the window's old end
    # for 250 s, and 25,000 tuples pass it.
    #
    #   a   ......X->(+250 s)...............................
    #   b   ................................................
    rng = np.random.default_rng(2)
    rate, count = 100, 30_000
    streams = {name: tuples(rng, count, rate, keys=400) for name in ("a", "b")}
    micros = streams["a"].column("ts").cast(pa.int64()).to_numpy().copy()
    micros[500] += 250 * SECOND
    streams["a"] = streams["a"].set_column(0, "ts", pa.array(micros, TS))
    session = started(PAIRS.replace("10 s", "1 s"), dt.Config(evaluation=mode, expiration=mode), a=300)
    found, most = [], 0
    for batch in in_step(streams, 300):
        found.append(session.push(batch)["q"])
        most = max(most, held(session)["a"])
    assert session.metrics()["streams"]["a"]["late"] == 0
    assert numbers(found) == batch_join(streams["a"], streams["b"], 1)
    assert most <= REWRITE + 2 * 300


def test_max_ahead_keeps_a_wrong_clock_from_emptying_windows() -> None:
    rng = np.random.default_rng(3)
    streams = {name: tuples(rng, 2000) for name in ("a", "b")}
    session = dt.LocalSession()
    session.stream("a", SCHEMA, "ts", max_ahead="1 minute")
    session.stream("b", SCHEMA, "ts")
    session.query("q", PAIRS)
    far = pa.table({"ts": pa.array([10**15], TS), "k": [1], "n": [-1]})
    found = []
    for number, batch in enumerate(in_step(streams, 100)):
        now = batch["a"].column("ts")[-1].as_py()
        if number % 5 == 2:
            batch["a"] = pa.concat_tables([far, batch["a"]])
        found.append(session.push(batch, now=now)["q"])
    assert session.metrics()["streams"]["a"]["ahead"] == 4
    assert numbers(found) == batch_join(streams["a"], streams["b"], WINDOW)
    assert max(held(session).values()) < 1.5 * RATE * WINDOW


# -- count windows ----------------------------------------------------------------------------------------------------------------


def last_rows(left: pa.Table, right: pa.Table, rows: int, partition: str | None, until: int) -> list[tuple[int, int]]:
    """Join each tuple of `right` up to `until` with the last `rows` tuples of `left` per partition; there are no ties."""
    events = [(ts.value, 0, k, n, p) for ts, k, n, p in zip(*_columns(left, partition), strict=True)]
    events += [(ts.value, 1, k, n, p) for ts, k, n, p in zip(*_columns(right, partition), strict=True)]
    recent: dict[int, list[tuple[int, int]]] = {}
    found = []
    for ts, side, key, number, part in sorted(events):
        if ts >= until:
            break
        if side == 0:
            window = recent.setdefault(part if partition else 0, [])
            window.append((key, number))
            del window[:-rows]
        else:
            found += [(n, number) for window in recent.values() for k, n in window if k == key]
    return sorted(found)


def _columns(whole: pa.Table, partition: str | None) -> list[Any]:
    return [list(whole.column("ts")), *(whole.column(name).to_pylist() for name in ("k", "n", partition or "k"))]


def counted(window: str) -> str:
    # A tuple of b meets what a's window holds at its instant: b's own window is one microsecond long.
    return PAIRS.replace("a [RANGE 10 s]", f"a [{window}]").replace("b [RANGE 10 s]", "b [RANGE 0 s]")


@pytest.mark.parametrize("size", [50, 3000])
def test_count_windows(size: int) -> None:
    rng = np.random.default_rng(size)
    streams = {"a": tuples(rng, 30_000, keys=20), "b": tuples(rng, 30_000, keys=20)}
    session = started(counted("ROWS 30"))
    found, most = [], 0
    for batch in in_step(streams, size):
        found.append(session.push(batch)["q"])
        most = max(most, held(session)["a"])
    until = streams["a"].column("ts")[-1].value
    assert numbers(found) == last_rows(streams["a"], streams["b"], 30, None, until)
    assert most <= REWRITE + 2 * size


@pytest.mark.parametrize("partitions", [3, 300])
def test_partitioned_count_windows_with_rare_values(partitions: int) -> None:
    # Partition -1 is seen at the start and never again; its two last tuples stay in the window for good, in front of all others.
    rng = np.random.default_rng(partitions)
    size, count = 500, 15_000
    streams = {"a": tuples(rng, count, keys=20), "b": tuples(rng, count, keys=20)}
    part = rng.integers(0, partitions, count)
    part[:5] = -1
    streams = {name: whole.append_column("p", pa.array(part)) for name, whole in streams.items()}
    session = dt.LocalSession()
    for name in ("a", "b"):
        session.stream(name, streams["a"].schema, "ts")
    session.query("q", counted("PARTITION BY p ROWS 2").replace("a.k = b.k", "a.k = b.k AND a.n < 1000000"))
    found, most = [], 0
    for batch in in_step(streams, size):
        found.append(session.push(batch)["q"])
        most = max(most, held(session)["a"])
    until = streams["a"].column("ts")[-1].value
    wanted = last_rows(streams["a"], streams["b"], 2, "p", until)
    assert numbers(found) == wanted
    rare = {3, 4}  # the last two of partition -1
    assert sum(i in rare and j > count // 2 for i, j in wanted) > 10
    assert most <= max(REWRITE, 2 * 2 * (partitions + 1)) + 2 * size


def test_frequent_rewrites_match_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    # With rewrites from four rows on, every kind of window is rewritten many times within reach of the oracle.
    monkeypatch.setattr("dovetail.engine.storage.window._SMALLEST_REWRITE", 4)
    windows = ("RANGE 2 s", "ROWS 3", "PARTITION BY n ROWS 1")
    text = "SELECT a.ts AS i, b.ts AS j, c.ts AS l FROM a [A], b [B], a c [RANGE 1 s] WHERE a.k = b.k AND b.k = c.k"
    queries = {
        f"{one}, {two}": text.replace("[A]", f"[{one}]").replace("[B]", f"[{two}]")
        for one in windows
        for two in windows
    }
    rng = random.Random(4)
    pushes: Batches = []
    for second in range(30):
        batch = {}
        for name in ("a", "b"):
            rows = [
                (second * SECOND + rng.randint(-2, 1) * SECOND // 2, rng.randint(0, 2), rng.randint(0, 4))
                for _ in range(3)
            ]
            if second in (8, 20):
                rows.append(((second + 2) * SECOND, rng.randint(0, 2), 99))  # ahead of the clock
            times, keys, parts = zip(*rows, strict=True)
            batch[name] = pa.table({"ts": pa.array(times, TS), "k": pa.array(keys), "n": pa.array(parts)})
        pushes.append(batch)
    session = dt.LocalSession()
    for name in ("a", "b"):
        session.stream(name, SCHEMA, "ts", lateness=2)
    for name, sql in queries.items():
        session.query(name, sql)
    found: dict[str, list[pa.Table]] = {name: [] for name in queries}
    for batch in pushes:
        for name, results in session.push(batch).items():
            found[name].append(results)
    for name, wanted in expected(session, pushes).items():
        assert_same_rows(pa.concat_tables(found[name]), wanted, name)
        assert wanted.num_rows > 5


def test_memory_of_one_large_batch_is_released() -> None:
    session = started(PAIRS, dt.Config(stage_rows=2000))
    same_key = tuples(np.random.default_rng(1), 150, keys=1)
    assert len(session.push({"a": same_key, "b": same_key})["q"]) > 2000
    room = session._engine.run_of("q").matches.rows
    one = same_key.slice(149)
    assert len(session.push({"a": one})["q"])
    assert session._engine.run_of("q").matches.rows.nbytes < room.nbytes / 2
    assert numbers([session.push({"a": one, "b": one})["q"]])
    assert session._engine.run_of("q").matches.rows.shape[1] <= 2000


@pytest.mark.parametrize("rows", [20, 5000], ids=["few long texts", "many"])
@pytest.mark.parametrize("nulls", [False, True])
def test_memory_of_long_texts_is_released(rows: int, nulls: bool) -> None:  # noqa: FBT001
    schema = pa.schema({"ts": TS, "k": pa.int64(), "p": pa.string()})
    session = dt.LocalSession()
    session.stream("a", schema, "ts")
    session.query("q", "SELECT x.p, y.p AS q FROM a x [RANGE 1 s], a y [RANGE 1 s] WHERE x.k = y.k")

    def pushed(second: int, texts: list[str | None]) -> pa.Table:
        times, keys = pa.array([second * 1_000_000] * len(texts), TS), list(range(len(texts)))
        return session.push({"a": pa.table([times, keys, texts], schema=schema)})["q"]

    pushed(0, ["x" * (20_000_000 // rows)] * rows)

    def held() -> int:
        taken: Any = session.metrics()["streams"]["a"]["state_bytes"]
        return int(taken)

    assert held() > 20_000_000
    for second in range(3, 60, 3):
        texts = [None if nulls and number == 3 else f"{second}-{number}" for number in range(10)]
        assert sorted(map(str, pushed(second, texts)["q"].to_pylist())) == sorted(map(str, texts))
    assert held() < 2_000_000
