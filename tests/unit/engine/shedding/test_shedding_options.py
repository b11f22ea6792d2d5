"""Options of shedding, queries that a policy refuses, and caps in bytes with texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from shed_sessions import CHAIN, PAIRS, SCHEMA, SECOND, THETA, TS, metrics, session, tuples

import dovetail as dt
from dovetail._typing import Int64Array
from dovetail.codec import from_json, to_json
from dovetail.config import SHEDDING, SheddingPolicy
from dovetail.engine.shedding import POLICIES
from dovetail.errors import ConfigError
from dovetail.plan.sheddable import KEY_REQUIREMENTS

# -- options ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_tuples": 5, "policy": "best"}, r"Shedding\(policy=...\) is 'best'; allowed: 'auto', 'arrival-order', 'frequency'"),
        ({"max_tuples": 5, "per": "query"}, r"Shedding\(per=...\) is 'query'; allowed: 'session', 'window'"),
        ({"max_tuples": 0}, r"Shedding\(max_tuples=0\): allowed are whole numbers from 1"),
        ({"max_tuples": 2.5}, r"Shedding\(max_tuples=2.5\): allowed are whole numbers from 1"),
        ({"max_tuples": True}, r"Shedding\(max_tuples=True\): allowed are whole numbers from 1"),
        ({"max_bytes": -1}, r"Shedding\(max_bytes=-1\): allowed are whole numbers from 1"),
        ({"max_tuples": 5, "seed": -1}, r"Shedding\(seed=-1\): allowed are whole numbers from 0"),
        ({"max_tuples": 5, "seed": None}, r"Shedding\(seed=None\)"),
        ({}, r"Shedding\(\.\.\.\) got neither of max_tuples and max_bytes"),
        ({"max_tuples": 5, "max_bytes": 5}, r"Shedding\(\.\.\.\) got both of max_tuples and max_bytes"),
        ({"max_tupels": 5}, r"Shedding\(max_tupels=...\): there is no such option.*\nHint: did you mean 'max_tuples'"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dt.Shedding(**options)


def test_config_accepts_only_a_shedding() -> None:
    with pytest.raises(ConfigError, match=r"Config\(shedding=...\) is a int; expected a dovetail.Shedding"):
        dt.Config(shedding=5)  # type: ignore[arg-type]


def test_configs_survive_json() -> None:
    for config in (dt.Config(), dt.Config(shedding=dt.Shedding("fifo", max_bytes=1 << 20, per="window", seed=7))):
        assert from_json(dt.Config, to_json(config)) == config
    assert "shedding" not in to_json(dt.Config())


def test_config_and_engine_list_the_same_policies() -> None:
    assert set(SHEDDING) == set(KEY_REQUIREMENTS) == {*POLICIES, "auto"}


# -- refused queries ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SHEDDING)
def test_count_windows_are_refused(policy: SheddingPolicy) -> None:
    with pytest.raises(
        ConfigError, match=r"query 'q0' with Shedding\(policy='.*'\): it has a count window.*\nHint: use time windows"
    ):
        session(dt.Shedding(policy, 100), "SELECT a.v AS x FROM a [ROWS 5], b [RANGE 5 s] WHERE a.k = b.k")


@pytest.mark.parametrize("policy", ["arrival-order", "output"])
def test_policies_that_count_results_need_a_common_key(policy: SheddingPolicy) -> None:
    with pytest.raises(
        ConfigError,
        match=r"no column is equal in all its aliases, 'a', 'b', 'c'\nHint: use policy 'auto', 'random', 'fifo'",
    ):
        session(dt.Shedding(policy, 100), CHAIN)


@pytest.mark.parametrize("policy", ["frequency", "frequency-own"])
def test_policies_that_count_keys_need_keys(policy: SheddingPolicy) -> None:
    session(dt.Shedding(policy, 100), CHAIN)
    with pytest.raises(ConfigError, match=r"no column of 'a', 'b' is equal to another's"):
        session(dt.Shedding(policy, 100), THETA)


def test_arrival_order_refuses_more_than_12_aliases() -> None:
    names = [f"a{number}" for number in range(13)]
    sql = f"SELECT a0.v AS x FROM {', '.join(f'a {name} [RANGE 5 s]' for name in names)} WHERE "
    sql += " AND ".join(f"a0.k = {name}.k" for name in names[1:])
    with pytest.raises(ConfigError, match="it has 13 aliases; this policy allows at most 12"):
        session(dt.Shedding("arrival-order", 100), sql)
    session(dt.Shedding("frequency", 100), sql)


def test_a_cap_below_one_tuple_per_window_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"max_tuples=1\) is less than one tuple for each of 2 windows: 'a', 'b'\nHint: .*max_tuples=2",
    ):
        session(dt.Shedding("fifo", 1), PAIRS)
    session(dt.Shedding("fifo", 1, per="window"), PAIRS)


def test_max_bytes_below_the_smallest_arrays_is_refused_with_the_minimum() -> None:
    with pytest.raises(
        ConfigError, match=r"is less than (\d+) bytes, the size of the smallest arrays of windows"
    ) as raised:
        session(dt.Shedding("fifo", max_bytes=1000), PAIRS)
    least = int(str(raised.value).rsplit("max_bytes=", 1)[1].split(",")[0])
    session(dt.Shedding("fifo", max_bytes=least), PAIRS)
    with pytest.raises(ConfigError, match="smallest arrays"):
        session(dt.Shedding("fifo", max_bytes=least - 1), PAIRS)


def test_max_bytes_with_nested_columns_is_refused() -> None:
    capped = dt.LocalSession(config=dt.Config(shedding=dt.Shedding("fifo", max_bytes=1 << 20)))
    for name in "ab":
        capped.stream(name, SCHEMA.append(pa.field("tags", pa.list_(pa.string()))), event_time="ts")
    with pytest.raises(
        ConfigError,
        match=r"window 'a' keeps 'tags', but nested values have no size limit.*\nHint: use Shedding\(max_tuples",
    ):
        capped.query("q", PAIRS.replace("a.v", "a.tags"))


def texts(lengths: Int64Array, first: int) -> pa.Table:
    """Return tuples with keys of their own and texts of these lengths, a hundred a second."""
    count = len(lengths)
    times = pa.array((first + np.arange(count)) * SECOND // 100, TS)
    values = [f"{number % 7}" * int(length) for number, length in enumerate(lengths)]
    return pa.table([times, np.arange(first, first + count), values, np.arange(count)], schema=SCHEMA)


@pytest.mark.parametrize("computed", [False, True])
def test_max_bytes_counts_texts(*, computed: bool) -> None:
    """The cap holds while texts become longer; a tuple whose text is too long for it is shed and gives no result."""
    capped = session(
        dt.Shedding("fifo", max_bytes=600_000),
        PAIRS.replace("a.v AS i", "concat(a.s, '') AS i" if computed else "a.s AS i"),
    )
    rng, tuples = np.random.default_rng(2), []
    for number, most in enumerate((10, 100, 1000, 1000, 1000, 10, 10, 10)):
        batch = texts(rng.integers(0, most, 1000), 1000 * number)
        results = capped.push({"a": batch})
        results = capped.push({"b": batch})
        found = metrics(capped)["streams"]
        assert sum(stream["state_bytes"] for stream in found.values()) <= 600_000
        tuples.append(found["a"]["state_tuples"])
        by_key = dict(zip(batch["v"].to_pylist(), batch["s"].to_pylist(), strict=True))
        assert [row["i"] for row in results["q0"].to_pylist()] == [
            by_key[row["j"]] for row in results["q0"].to_pylist()
        ]
        assert results["q0"].num_rows > 20
    assert tuples[4] < tuples[0] / 4
    capped.push({"a": texts(np.array([5, 10**6, 5]), 9000)})
    assert capped.push({"b": texts(np.array([5, 5, 5]), 9000)})["q0"]["j"].to_pylist() == [0, 2]
    assert sum(stream["state_bytes"] for stream in metrics(capped)["streams"].values()) <= 600_000


def test_a_refused_query_changes_nothing() -> None:
    capped = session(dt.Shedding("output", 100), PAIRS)
    with pytest.raises(ConfigError):
        capped.query("chain", CHAIN)
    assert list(capped.push({"a": tuples(10, 5), "b": tuples(10, 5, 1)})) == ["q0"]
