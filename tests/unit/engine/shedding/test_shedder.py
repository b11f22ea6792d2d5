"""Load shedding in sessions: caps, metrics, recall, snapshots."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from shed_sessions import CHAIN, PAIRS, SCHEMA, SECOND, THETA, TS, metrics, session, tuples

import dovetail as dt
from dovetail.config import SHEDDING, SheddingPolicy
from dovetail.engine.kernels.compile import INTERPRETED
from dovetail.engine.shedding.serialize import serialize_shedder
from dovetail.errors import StateError
from dovetail.stats.recall import LossEstimate, Recall


def test_compaction_does_not_change_what_is_shed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of order, tuples stay after they have expired and use up the cap, whenever windows are compacted."""

    def run(smallest_rewrite: int) -> list[Any]:
        monkeypatch.setattr("dovetail.engine.storage.window._SMALLEST_REWRITE", smallest_rewrite)
        capped, found = dt.LocalSession(config=dt.Config(shedding=dt.Shedding("random", 40))), list[Any]()
        capped.stream("a", SCHEMA, event_time="ts", lateness=30.0)
        capped.stream("b", SCHEMA, event_time="ts")
        capped.query("q", PAIRS.replace("10 s", "4 s"))
        ahead = tuples(1, 1, first=29, seconds=1)
        capped.push({"a": ahead})
        for second in range(24):
            batch = {name: tuples(3, 2, seed, second, 1) for seed, name in enumerate("ab", 2 * second)}
            result = capped.push(batch)["q"].to_pylist()
            shed = {name: stream["shed"] for name, stream in metrics(capped)["streams"].items()}
            found.append((sorted(map(str, result)), shed))
        return found

    compacted, *others = run(4), run(4096)
    assert others == [compacted]
    assert compacted[-1][1]["a"] > 0


# -- running ------------------------------------------------------------------------------------------------------------------------


def test_nothing_is_shed_or_tracked_below_the_cap() -> None:
    capped, plain = session(dt.Shedding("arrival-order", 10_000), PAIRS), session(None, PAIRS)
    batch = {"a": tuples(500, 50), "b": tuples(500, 50, 1)}
    assert capped.push(batch)["q0"].num_rows == plain.push(batch)["q0"].num_rows
    reported = metrics(capped)
    assert reported["streams"]["a"]["shed"] == 0
    assert reported["streams"]["a"]["last_shed"] is None
    assert reported["queries"]["q0"]["recall"]["estimate"] == 1.0
    assert "recall 1.000 (1.000 to 1.000)" in str(capped.explain())
    assert metrics(plain)["queries"]["q0"]["recall"] is None
    assert "shed" not in str(plain.explain())


def test_the_cap_counts_held_tuples_not_arrivals() -> None:
    """One batch spans ten windows, so most tuples have expired when later ones arrive."""
    capped, plain = session(dt.Shedding("fifo", 400), PAIRS), session(None, PAIRS)
    batch = {"a": tuples(1500, 40, seconds=100), "b": tuples(1500, 40, 1, seconds=100)}
    assert capped.push(batch)["q0"].num_rows == plain.push(batch)["q0"].num_rows
    assert metrics(capped)["streams"]["a"]["shed"] == 0
    assert metrics(capped)["streams"]["a"]["state_tuples"] <= 200


def test_metrics_and_explain_report_shed_tuples() -> None:
    capped = session(dt.Shedding("frequency", 100), PAIRS)
    capped.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    streams, recall = metrics(capped)["streams"], metrics(capped)["queries"]["q0"]["recall"]
    assert streams["a"]["state_tuples"] + streams["b"]["state_tuples"] == 100
    assert streams["a"]["shed"] > 100
    assert streams["a"]["last_shed"].startswith("1970-01-01T00:00:")
    assert 0 < recall["low"] <= recall["estimate"] <= recall["high"] < 1
    text = str(capped.explain())
    assert f"{streams['a']['shed']:,} tuples shed, the last at 1970-01-01T00:00:1" in text
    assert f"recall {recall['estimate']:.3f} (" in text
    described: Any = capped.explain().to_dict()
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
    capped = session(dt.Shedding("fifo", 60), sql)
    capped.push({name: tuples(200, 20, place) for place, name in enumerate("abc")})
    recall = metrics(capped)["queries"]["q0"]["recall"]
    assert recall["estimate"] is recall["low"] is recall["high"] is None
    assert recall["why"] == why
    assert f"recall not known: {why}" in str(capped.explain())


@pytest.mark.parametrize("policy", SHEDDING)
def test_metrics_count_the_arrays_of_shedding(policy: SheddingPolicy) -> None:
    capped = session(dt.Shedding(policy, 150), PAIRS)
    batch = {"a": tuples(500, 50), "b": tuples(500, 50, 1)}
    capped.push(batch)
    capped.push({name: tuples(500, 50, place, 20) for place, name in enumerate(batch, 2)})
    shedder = capped._engine.joined.shedder
    assert shedder is not None
    tracked = shedder.tracked
    assert tracked is not None
    arrays = [part.to_arrays() for part in tracked.trackers]
    arrays += [sample.to_arrays() for sample in shedder.losses.samples.values()]
    assert tracked._checkpoint is not None
    copies = sum(table.nbytes for table in tracked._checkpoint.tables)
    logged = sum(getattr(change, "nbytes", 0) for change in tracked._log)
    assert copies > 0
    assert logged > 0
    counted = sum(array.nbytes for named in arrays for array in named.values()) + copies + logged
    reported = sum(stream["shedding_bytes"] for stream in metrics(capped)["streams"].values())
    assert reported == pytest.approx(counted, abs=1000), "sizes of a few numbers and rounding"


def test_results_are_exact_again_after_a_burst() -> None:
    capped, plain = session(dt.Shedding("auto", 300), PAIRS), session(None, PAIRS)
    burst = {"a": tuples(2000, 100), "b": tuples(2000, 100, 1)}
    assert capped.push(burst)["q0"].num_rows < plain.push(burst)["q0"].num_rows
    quiet = [{"a": tuples(60, 20, s, s, 10), "b": tuples(60, 20, s + 1, s, 10)} for s in (40, 50, 60)]
    shed = metrics(capped)["streams"]["a"]["shed"]
    for batch in quiet:
        assert capped.push(batch)["q0"].num_rows == plain.push(batch)["q0"].num_rows
    assert metrics(capped)["streams"]["a"]["shed"] == shed


def test_materialized_joins_are_dropped_before_tuples_are_shed() -> None:
    queries = [
        f"SELECT a.v AS i FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.k = b.k AND b.k = c.k AND c.v > {n}"
        for n in range(3)
    ]
    options = {"strategy": "bjtree", "driver_policy": "declared"}
    budget = dt.Budget(cpu_ms_per_second=1e6, memory_bytes=1e9)
    capped = session(dt.Shedding("fifo", 600), *queries, budget=budget, **options)
    plain = session(None, *queries, budget=budget, **options)
    small = {name: tuples(50, 20, place) for place, name in enumerate("abc")}
    assert {n: t.num_rows for n, t in capped.push(small).items()} == {
        n: t.num_rows for n, t in plain.push(small).items()
    }
    assert metrics(capped)["nodes"]["states"], "there is room for them"
    large = {name: tuples(400, 50, place, 20) for place, name in enumerate("abc")}
    exact = plain.push(large)
    for name, table in capped.push(large).items():
        assert 0 < table.num_rows < exact[name].num_rows
        assert set(table.column("i").to_pylist()) <= set(exact[name].column("i").to_pylist())
    assert not metrics(capped)["nodes"]["states"]
    assert metrics(plain)["nodes"]["states"]
    assert sum(stream["state_tuples"] for stream in metrics(capped)["streams"].values()) <= 600


def test_a_tuple_of_two_aliases_has_the_sum_of_their_priorities() -> None:
    """A key that only one alias accepts has half the priority of one that both accept."""
    capped = session(
        dt.Shedding("frequency", 4),
        "SELECT x.v AS i FROM a x [RANGE 10 s], a y [RANGE 10 s] WHERE x.k = y.k AND y.v > 1",
    )
    rows = [(1, 5, 1), (2, 6, 2), (3, 7, 3), (4, 8, 4), (5, 9, 5)]
    times, keys, values = zip(*rows, strict=True)
    capped.push({"a": pa.table([pa.array([t * SECOND for t in times], TS), keys, ["x"] * 5, values], schema=SCHEMA)})
    left = capped.push({"a": pa.table([pa.array([6 * SECOND], TS), [5], ["x"], [6]], schema=SCHEMA)})
    assert left["q0"].column("i").to_pylist() == [6], "the tuple with v = 1, which one alias sees, is gone"


def test_snapshots_keep_shedding_state() -> None:
    capped = session(dt.Shedding("auto", 150), PAIRS)
    capped.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    again = dt.LocalSession.restore(capped.snapshot())
    streams = metrics(again)["streams"]
    assert streams["a"]["shedding_bytes"] > 0, "without the copy for rollback"
    assert streams == {
        name: stream | {changed: streams[name][changed] for changed in ("shedding_bytes", "lag_seconds")}
        for name, stream in metrics(capped)["streams"].items()
    }
    assert metrics(again)["queries"]["q0"]["recall"] == metrics(capped)["queries"]["q0"]["recall"]
    assert again.snapshot() == capped.snapshot()
    batch = {"a": tuples(500, 50, 2, 20), "b": tuples(500, 50, 3, 20)}
    assert again.push(batch)["q0"].equals(capped.push(batch)["q0"])


def test_an_older_format_is_refused_or_starts_afresh() -> None:
    from dovetail.engine.shedding import serialize  # noqa: PLC0415

    capped = session(dt.Shedding("frequency", 150), PAIRS)
    capped.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    shedder = capped._engine.joined.shedder
    assert shedder is not None
    before, whole = dict(shedder.counts), serialize.serialize_shedder(shedder)
    held = serialize.numbers_kept(pa.py_buffer(whole))
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    del header["format"]
    for tracker in header["trackers"]:
        tracker["arrays"] = [[name.replace("tuples.", "held."), *rest] for name, *rest in tracker["arrays"]]
    text = json.dumps(header).encode()
    older = pa.py_buffer(len(text).to_bytes(8, "little") + text + whole[8 + length :])
    with pytest.raises(StateError, match=f"has format 1; this release reads format {serialize.FORMAT}"):
        serialize.restore(shedder, older)
    older_held = serialize.numbers_kept(older)
    assert held is not None
    assert older_held is not None
    assert {stream: numbers.tolist() for stream, numbers in older_held.items()} == {
        stream: numbers.tolist() for stream, numbers in held.items()
    }
    shedder.tracked, shedder.counts = None, {}
    serialize.restore(shedder, older, strict=False)
    assert shedder.tracked is None, "tracking starts again when the cap is reached again"
    assert shedder.counts == before


@pytest.mark.parametrize("policy", SHEDDING)
def test_an_abandoned_batch_leaves_no_shedding_state(policy: SheddingPolicy) -> None:
    """Holds after many batches, too: changes since the last checkpoint are replayed."""
    broken, whole = session(dt.Shedding(policy, 150), PAIRS), session(dt.Shedding(policy, 150), PAIRS)
    for number in range(12):
        batch = {"a": tuples(60, 30, number, 3 * number, 3), "b": tuples(60, 30, number + 50, 3 * number, 3)}
        if number % 4 != 1:
            next(iter(broken.push_iter(batch, piece_rows=5)))
        assert broken.push(batch)["q0"].equals(whole.push(batch)["q0"])
    assert metrics(broken)["streams"]["a"]["shed"] > 0
    known = [
        serialize_shedder(shedder)
        for capped in (broken, whole)
        if (shedder := capped._engine.joined.shedder) is not None
    ]
    assert known[0] == known[1]


def test_a_damaged_snapshot_is_refused() -> None:
    from dovetail.engine.shedding import serialize  # noqa: PLC0415

    capped = session(dt.Shedding("frequency", 150), PAIRS)
    capped.push({"a": tuples(500, 50), "b": tuples(500, 50, 1)})
    shedder = capped._engine.joined.shedder
    assert shedder is not None
    assert shedder.tracked is not None
    whole = serialize.serialize_shedder(shedder)
    records, memberships = shedder.tracked.main.table.tuples, shedder.tracked.main.table.memberships
    for array, wrong in ((records.newer, 1 << 20), (records.row, 1 << 40), (memberships.key, -7)):
        kept = array.copy()
        array[np.flatnonzero(records.row >= 0)[0]] = wrong
        with pytest.raises(StateError):
            serialize.restore(shedder, pa.py_buffer(serialize.serialize_shedder(shedder)))
        array[...] = kept
    serialize.restore(shedder, pa.py_buffer(whole))


def test_max_bytes_holds_while_a_batch_is_joined() -> None:
    least = 200_000
    capped = session(dt.Shedding("frequency", max_bytes=least), PAIRS)
    batch = {"a": tuples(20_000, 500), "b": tuples(20_000, 500, 1)}
    stores = {}
    for _ in capped.push_iter(batch, piece_rows=200):
        stores = {store.name: store.allocated for store in capped._engine.stores()}
        assert sum(stores.values()) <= least
    assert stores
    assert sum(stream["state_bytes"] for stream in metrics(capped)["streams"].values()) <= least


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
from dovetail.engine.kernels import batches, join_sample, queues, shed_expiry, shedding, tuple_table
from dovetail.engine.warm_up import warm_up_shedding

warm_up_shedding()
for module in (batches, join_sample, queues, shed_expiry, shedding, tuple_table):
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
