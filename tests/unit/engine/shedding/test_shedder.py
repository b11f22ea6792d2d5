"""Load shedding in sessions: options, refused queries, metrics, snapshots."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail._typing import Int64Array
from dovetail.codec import from_json, to_json
from dovetail.config import SHEDDING, SheddingPolicy
from dovetail.engine.kernels.compile import INTERPRETED
from dovetail.engine.shedding import POLICIES
from dovetail.engine.shedding.stored import written
from dovetail.errors import ConfigError, StateError
from dovetail.plan.sheddable import KEY_REQUIREMENTS
from dovetail.stats.recall import LossEstimate, Recall

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("s", pa.string()), ("v", pa.int64())])
SECOND = 1_000_000
PAIRS = "SELECT a.v AS i, b.v AS j FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k"
CHAIN = "SELECT a.v AS i FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.k = b.k AND b.v = c.v"
THETA = "SELECT a.v AS i FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.v < b.v"


def session(
    shedding: dt.Shedding | None, *queries: str, budget: dt.Budget | None = None, **options: Any
) -> dt.LocalSession:
    made = dt.LocalSession(budget, dt.Config(shedding=shedding, **options))
    for name in "abc":
        made.stream(name, SCHEMA, event_time="ts", rate=100.0)
    for number, sql in enumerate(queries):
        made.query(f"q{number}", sql)
    return made


def tuples(count: int, keys: int, seed: int = 0, first: int = 0, seconds: int = 20) -> pa.Table:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(first * SECOND, (first + seconds) * SECOND, count))
    values = rng.integers(0, keys, count)
    texts = pa.array([f"text {value}" for value in values])
    return pa.table([pa.array(times, TS), values, texts, np.arange(count)], schema=SCHEMA)


def metrics(of: dt.LocalSession) -> Any:
    return of.metrics()


def test_compaction_does_not_change_what_is_shed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a tuple from the future others stay after they have expired, and take room, however long windows are."""

    def run(smallest_rewrite: int) -> list[Any]:
        monkeypatch.setattr("dovetail.engine.storage.window._SMALLEST_REWRITE", smallest_rewrite)
        made, found = dt.LocalSession(config=dt.Config(shedding=dt.Shedding("random", 40))), list[Any]()
        made.stream("a", SCHEMA, event_time="ts", lateness=30.0)
        made.stream("b", SCHEMA, event_time="ts")
        made.query("q", PAIRS.replace("10 s", "4 s"))
        ahead = tuples(1, 1, first=29, seconds=1)
        made.push({"a": ahead})
        for second in range(24):
            batch = {name: tuples(3, 2, seed, second, 1) for seed, name in enumerate("ab", 2 * second)}
            result = made.push(batch)["q"].to_pylist()
            shed = {name: it["shed"] for name, it in metrics(made)["streams"].items()}
            found.append((sorted(map(str, result)), shed))
        return found

    compacted, *others = run(4), run(4096)
    assert others == [compacted]
    assert compacted[-1][1]["a"] > 0


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
    with pytest.raises(ConfigError, match=r"is less than the smallest arrays of windows take, (\d+) bytes") as raised:
        session(dt.Shedding("fifo", max_bytes=1000), PAIRS)
    least = int(str(raised.value).rsplit("max_bytes=", 1)[1].split(",")[0])
    session(dt.Shedding("fifo", max_bytes=least), PAIRS)
    with pytest.raises(ConfigError, match="smallest arrays"):
        session(dt.Shedding("fifo", max_bytes=least - 1), PAIRS)


def test_max_bytes_with_nested_columns_is_refused() -> None:
    made = dt.LocalSession(config=dt.Config(shedding=dt.Shedding("fifo", max_bytes=1 << 20)))
    for name in "ab":
        made.stream(name, SCHEMA.append(pa.field("tags", pa.list_(pa.string()))), event_time="ts")
    with pytest.raises(
        ConfigError,
        match=r"window 'a' keeps 'tags', whose nested values have any size.*\nHint: use Shedding\(max_tuples",
    ):
        made.query("q", PAIRS.replace("a.v", "a.tags"))


def texts(lengths: Int64Array, first: int) -> pa.Table:
    """Return tuples with keys of their own and texts of these lengths, a hundred a second."""
    count = len(lengths)
    times = pa.array((first + np.arange(count)) * SECOND // 100, TS)
    values = [f"{number % 7}" * int(length) for number, length in enumerate(lengths)]
    return pa.table([times, np.arange(first, first + count), values, np.arange(count)], schema=SCHEMA)


@pytest.mark.parametrize("computed", [False, True])
def test_max_bytes_counts_texts(*, computed: bool) -> None:
    """The cap holds while texts become longer; a tuple whose text is too long for it is shed and gives no result."""
    made = session(
        dt.Shedding("fifo", max_bytes=600_000),
        PAIRS.replace("a.v AS i", "concat(a.s, '') AS i" if computed else "a.s AS i"),
    )
    rng, held = np.random.default_rng(2), []
    for number, most in enumerate((10, 100, 1000, 1000, 1000, 10, 10, 10)):
        batch = texts(rng.integers(0, most, 1000), 1000 * number)
        results = made.push({"a": batch})
        results = made.push({"b": batch})
        found = metrics(made)["streams"]
        assert sum(stream["state_bytes"] for stream in found.values()) <= 600_000
        held.append(found["a"]["state_tuples"])
        by_key = dict(zip(batch["v"].to_pylist(), batch["s"].to_pylist(), strict=True))
        assert [row["i"] for row in results["q0"].to_pylist()] == [
            by_key[row["j"]] for row in results["q0"].to_pylist()
        ]
        assert results["q0"].num_rows > 20
    assert held[4] < held[0] / 4
    made.push({"a": texts(np.array([5, 10**6, 5]), 9000)})
    assert made.push({"b": texts(np.array([5, 5, 5]), 9000)})["q0"]["j"].to_pylist() == [0, 2]
    assert sum(stream["state_bytes"] for stream in metrics(made)["streams"].values()) <= 600_000


def test_a_refused_query_changes_nothing() -> None:
    made = session(dt.Shedding("output", 100), PAIRS)
    with pytest.raises(ConfigError):
        made.query("chain", CHAIN)
    assert list(made.push({"a": tuples(10, 5), "b": tuples(10, 5, 1)})) == ["q0"]


# -- running ------------------------------------------------------------------------------------------------------------------------


def test_nothing_is_shed_or_tracked_below_the_cap() -> None:
    made, plain = session(dt.Shedding("arrival-order", 10_000), PAIRS), session(None, PAIRS)
    batch = {"a": tuples(500, 50), "b": tuples(500, 50, 1)}
    assert made.push(batch)["q0"].num_rows == plain.push(batch)["q0"].num_rows
    found = metrics(made)
    assert found["streams"]["a"]["shed"] == 0
    assert found["streams"]["a"]["last_shed"] is None
    assert found["queries"]["q0"]["recall"]["estimate"] == 1.0
    assert "recall 1.000 (1.000 to 1.000)" in str(made.explain())
    assert metrics(plain)["queries"]["q0"]["recall"] is None
    assert "shed" not in str(plain.explain())


def test_the_cap_counts_held_tuples_not_arrivals() -> None:
    """One batch spans ten windows, so most tuples have expired when later ones arrive."""
    made, plain = session(dt.Shedding("fifo", 400), PAIRS), session(None, PAIRS)
    batch = {"a": tuples(1500, 40, seconds=100), "b": tuples(1500, 40, 1, seconds=100)}
    assert made.push(batch)["q0"].num_rows == plain.push(batch)["q0"].num_rows
    assert metrics(made)["streams"]["a"]["shed"] == 0
    assert metrics(made)["streams"]["a"]["state_tuples"] <= 200


def test_metrics_and_explain_report_shed_tuples() -> None:
    made = session(dt.Shedding("frequency", 100), PAIRS)
    made.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    streams, recall = metrics(made)["streams"], metrics(made)["queries"]["q0"]["recall"]
    assert streams["a"]["state_tuples"] + streams["b"]["state_tuples"] == 100
    assert streams["a"]["shed"] > 100
    assert 0 < streams["a"]["last_shed"] <= 20 * SECOND
    assert 0 < recall["low"] <= recall["estimate"] <= recall["high"] < 1
    text = str(made.explain())
    assert f"{streams['a']['shed']:,} tuples shed, the last at 1970-01-01T00:00:1" in text
    assert f"recall {recall['estimate']:.3f} (" in text
    described: Any = made.explain().to_dict()
    assert described["queries"]["q0"]["recall"]["low"] == recall["low"]
    assert described["streams"]["a"]["shed"]["tuples"] == streams["a"]["shed"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (CHAIN, "no column is equal in all its aliases"),
        (THETA, "no column is equal in all its aliases"),
        (PAIRS + " AND a.v <= b.v", "it has a condition beside its common key, a.v <= b.v"),
    ],
)
def test_unknown_recall_is_none_with_the_reason(sql: str, why: str) -> None:
    made = session(dt.Shedding("fifo", 60), sql)
    made.push({name: tuples(200, 20, place) for place, name in enumerate("abc")})
    recall = metrics(made)["queries"]["q0"]["recall"]
    assert recall["estimate"] is recall["low"] is recall["high"] is None
    assert recall["why"] == why
    assert f"recall not known: {why}" in str(made.explain())


def test_results_are_exact_again_after_a_burst() -> None:
    made, plain = session(dt.Shedding("auto", 300), PAIRS), session(None, PAIRS)
    burst = {"a": tuples(2000, 100), "b": tuples(2000, 100, 1)}
    assert made.push(burst)["q0"].num_rows < plain.push(burst)["q0"].num_rows
    quiet = [{"a": tuples(60, 20, s, s, 10), "b": tuples(60, 20, s + 1, s, 10)} for s in (40, 50, 60)]
    shed = metrics(made)["streams"]["a"]["shed"]
    for batch in quiet:
        assert made.push(batch)["q0"].num_rows == plain.push(batch)["q0"].num_rows
    assert metrics(made)["streams"]["a"]["shed"] == shed


def test_materialized_joins_are_dropped_before_tuples_are_shed() -> None:
    queries = [
        f"SELECT a.v AS i FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.k = b.k AND b.k = c.k AND c.v > {n}"
        for n in range(3)
    ]
    options = {"strategy": "bjtree", "driver_policy": "declared"}
    budget = dt.Budget(cpu_ms_per_second=1e6, memory_bytes=1e9)
    made = session(dt.Shedding("fifo", 600), *queries, budget=budget, **options)
    plain = session(None, *queries, budget=budget, **options)
    small = {name: tuples(50, 20, place) for place, name in enumerate("abc")}
    assert {n: t.num_rows for n, t in made.push(small).items()} == {n: t.num_rows for n, t in plain.push(small).items()}
    assert metrics(made)["nodes"]["states"], "there is room for them"
    large = {name: tuples(400, 50, place, 20) for place, name in enumerate("abc")}
    exact = plain.push(large)
    for name, table in made.push(large).items():
        assert 0 < table.num_rows < exact[name].num_rows
        assert set(table.column("i").to_pylist()) <= set(exact[name].column("i").to_pylist())
    assert not metrics(made)["nodes"]["states"]
    assert metrics(plain)["nodes"]["states"]
    assert sum(stream["state_tuples"] for stream in metrics(made)["streams"].values()) <= 600


def test_a_tuple_of_two_aliases_has_the_sum_of_their_priorities() -> None:
    """A key that only one alias accepts has half the priority of one that both accept."""
    made = session(
        dt.Shedding("frequency", 4),
        "SELECT x.v AS i FROM a x [RANGE 10 s], a y [RANGE 10 s] WHERE x.k = y.k AND y.v > 1",
    )
    rows = [(1, 5, 1), (2, 6, 2), (3, 7, 3), (4, 8, 4), (5, 9, 5)]
    times, keys, values = zip(*rows, strict=True)
    made.push({"a": pa.table([pa.array([t * SECOND for t in times], TS), keys, ["x"] * 5, values], schema=SCHEMA)})
    left = made.push({"a": pa.table([pa.array([6 * SECOND], TS), [5], ["x"], [6]], schema=SCHEMA)})
    assert left["q0"].column("i").to_pylist() == [6], "the tuple with v = 1, which one alias sees, is gone"


def test_snapshots_keep_shedding_state() -> None:
    made = session(dt.Shedding("auto", 150), PAIRS)
    made.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    again = dt.LocalSession.restore(made.snapshot())
    assert metrics(again)["streams"] == metrics(made)["streams"]
    assert metrics(again)["queries"]["q0"]["recall"] == metrics(made)["queries"]["q0"]["recall"]
    assert again.snapshot() == made.snapshot()
    batch = {"a": tuples(500, 50, 2, 20), "b": tuples(500, 50, 3, 20)}
    assert again.push(batch)["q0"].equals(made.push(batch)["q0"])


def test_an_older_format_is_refused_or_starts_afresh() -> None:
    from dovetail.engine.shedding import stored  # noqa: PLC0415

    made = session(dt.Shedding("frequency", 150), PAIRS)
    made.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    shedder = made._engine.joined.shedder
    assert shedder is not None
    before, whole = dict(shedder.counts), stored.written(shedder)
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    del header["format"]
    text = json.dumps(header).encode()
    older = pa.py_buffer(len(text).to_bytes(8, "little") + text + whole[8 + length :])
    with pytest.raises(StateError, match=f"stored in format 1; this release reads format {stored.FORMAT}"):
        stored.restore(shedder, older)
    shedder.following, shedder.counts = None, {}
    stored.restore(shedder, older, strict=False)
    assert shedder.following is None, "tuples are followed again when the cap is reached again"
    assert shedder.counts == before


@pytest.mark.parametrize("policy", SHEDDING)
def test_an_abandoned_batch_leaves_no_shedding_state(policy: SheddingPolicy) -> None:
    """Holds after many batches, too: arrivals since the last copy are applied again."""
    broken, whole = session(dt.Shedding(policy, 150), PAIRS), session(dt.Shedding(policy, 150), PAIRS)
    for number in range(12):
        batch = {"a": tuples(60, 30, number, 3 * number, 3), "b": tuples(60, 30, number + 50, 3 * number, 3)}
        if number % 4 != 1:
            next(iter(broken.push_iter(batch, piece_rows=5)))
        assert broken.push(batch)["q0"].equals(whole.push(batch)["q0"])
    assert metrics(broken)["streams"]["a"]["shed"] > 0
    known = [written(shedder) for made in (broken, whole) if (shedder := made._engine.joined.shedder) is not None]
    assert known[0] == known[1]


def test_a_damaged_snapshot_is_refused() -> None:
    from dovetail.engine.shedding import stored  # noqa: PLC0415

    made = session(dt.Shedding("frequency", 150), PAIRS)
    made.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    shedder = made._engine.joined.shedder
    assert shedder is not None
    assert shedder.following is not None
    whole = stored.written(shedder)
    held, marks = shedder.following.main.roster.held, shedder.following.main.roster.marks
    for array, wrong in ((held.newer, 1 << 20), (held.row, 1 << 40), (marks.key, -7)):
        kept = array.copy()
        array[np.flatnonzero(held.row >= 0)[0]] = wrong
        with pytest.raises(StateError):
            stored.restore(shedder, pa.py_buffer(stored.written(shedder)))
        array[...] = kept
    stored.restore(shedder, pa.py_buffer(whole))


def test_max_bytes_holds_while_a_batch_is_joined() -> None:
    least = 200_000
    made = session(dt.Shedding("frequency", max_bytes=least), PAIRS)
    batch = {"a": tuples(20_000, 500), "b": tuples(20_000, 500, 1)}
    stores = {}
    for _ in made.push_iter(batch, piece_rows=200):
        stores = {store.name: store.allocated for store in made._engine.stores()}
        assert sum(stores.values()) <= least
    assert stores
    assert sum(stream["state_bytes"] for stream in metrics(made)["streams"].values()) <= least


# -- recall -------------------------------------------------------------------------------------------------------------------------


def test_recalls_of_shards_add_up() -> None:
    both = Recall.of(60, LossEstimate(20, 6, 8)) + Recall.of(40, LossEstimate(0, 0, 0))
    assert both.given == 100
    assert both.estimate == pytest.approx(100 / 120)
    assert both.low == pytest.approx(100 / 128)
    assert both.high == pytest.approx(100 / 114)
    assert (both + Recall.of(1, "of a reason")).why == "of a reason"
    assert Recall.of(0, LossEstimate()).estimate == 1.0


_UNCOMPILED = """
from dovetail.engine.kernels import join_sample, queues, roster, shedding
from dovetail.engine.warm_up import warm_up_shedding

warm_up_shedding()
for module in (join_sample, queues, roster, shedding):
    for name, found in vars(module).items():
        if getattr(found, "__module__", "") == module.__name__ and found.__class__.__name__ == "CPUDispatcher":
            if found.targetoptions.get("forceinline"):
                continue  # compiled into its callers
            print(*([] if found.signatures else [name]), end="")
"""


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_every_kernel_is_compiled_when_a_session_starts() -> None:
    """Run in a subprocess, because other tests have compiled kernels here."""
    done = subprocess.run([sys.executable, "-c", _UNCOMPILED], capture_output=True, check=True, text=True)
    assert done.stdout == ""
