"""A restored session continues like the one that was saved; anything else is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from two_streams import GOOD, SCHEMA, assert_same_results, empty_session, push_more, running_session, without_times

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError, StateError


def test_a_restored_session_continues_exactly() -> None:
    session = running_session()
    session.selectivity("a.k = b.k", 0.5)
    restored = dt.LocalSession.restore(session.snapshot())
    assert without_times(restored.explain().to_dict()) == without_times(session.explain().to_dict())
    assert restored.snapshot() == session.snapshot()
    assert_same_results(push_more(restored), push_more(session))


def test_snapshots_keep_orders_hints_and_config() -> None:
    config = dt.Config(join="nested-loop", nested_loop="naive", stage_rows=3)
    session = empty_session(config)
    session.stream("c", SCHEMA, "ts", rate=7)
    sql = "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.k = b.k AND b.k = c.k"
    session.query("forced", sql, {"a": ("c", "a", "b"), "b": ("c", "a")})
    restored = dt.LocalSession.restore(session.snapshot())
    assert restored.explain().to_dict() == session.explain().to_dict()
    session.selectivity("a.k = b.k", 0.25)
    restored = dt.LocalSession.restore(session.snapshot())
    assert restored._job.hints == session._job.hints != {}
    assert restored._job.config == config
    with pytest.raises(ConfigError, match="query 'forced' is already registered"):
        restored.query("forced", sql)


def test_a_restored_query_keeps_its_plan() -> None:
    session = empty_session()
    session.stream("c", SCHEMA, "ts")
    session.query("q", "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.k = b.k AND b.k = c.k")
    session.selectivity("a.k = c.k", 0.0001)
    assert dt.LocalSession.restore(session.snapshot()).explain() == session.explain()


@pytest.mark.parametrize("garbage", [b"", b"x", b"DOVETAIL", b"PAR1" * 100, "text", b"DOVETAIL" + b"\0" * 12], ids=repr)
def test_garbage_is_not_a_snapshot(garbage: Any) -> None:
    with pytest.raises(StateError, match=r"not a Dovetail snapshot|version 0"):
        dt.LocalSession.restore(garbage)


def test_arguments_of_the_wrong_type_are_refused() -> None:
    wrong: dict[str, Callable[[], object]] = {
        "None for a snapshot": lambda: dt.LocalSession.restore(None),  # type: ignore[arg-type]
        "a view for a snapshot": lambda: dt.LocalSession.restore(memoryview(clocked.snapshot())),  # type: ignore[arg-type]
        "a dict for a config": lambda: dt.LocalSession(config={"join": "hash"}),  # type: ignore[arg-type]
        "text for the clock": lambda: clocked.push({"a": GOOD}, now="noon"),  # type: ignore[arg-type]
    }
    clocked = dt.LocalSession()
    clocked.stream("a", SCHEMA, "ts", max_ahead=1)
    for name, call in wrong.items():
        with pytest.raises(DovetailError):
            pytest.fail(f"{name} was accepted: {call()}")


def test_other_versions_are_named() -> None:
    blob = running_session().snapshot()
    (version,) = struct.unpack_from("<I", blob, 8)
    other = blob[:8] + struct.pack("<I", version + 1) + blob[12:]
    with pytest.raises(StateError, match=f"format version {version + 1}; this release reads version {version}"):
        dt.LocalSession.restore(other)


def test_every_truncated_snapshot_is_refused() -> None:
    blob = running_session().snapshot()
    for size in [*range(0, len(blob), 7), len(blob) - 1]:
        with pytest.raises(StateError, match=r"not a Dovetail snapshot|damaged|cut short"):
            dt.LocalSession.restore(blob[:size])
    with pytest.raises(StateError, match=r"damaged|cut short"):
        dt.LocalSession.restore(blob + b"more")


def test_a_snapshot_with_a_flipped_bit_is_refused() -> None:
    blob = running_session().snapshot()
    rng = np.random.default_rng(0)
    for place in rng.integers(20, len(blob), 200):
        damaged = bytearray(blob)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(StateError):
            dt.LocalSession.restore(bytes(damaged))
