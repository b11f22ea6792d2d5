"""Driver policies: the order in which streams are joined, refused options, and results in pieces."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.config import INTERLEAVING, POLICIES, DriverPolicy, can_materialize
from dovetail.engine.group import JoinGroup
from dovetail.engine.join.drivers import rank_arrivals, split_interleaved
from dovetail.engine.storage.append import NewRows
from dovetail.errors import ConfigError, StateError

COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
TRIPLES = "SELECT a.ts AS first, b.ts AS second, c.k FROM a [RANGE 1 h], b [RANGE 1 h], c [RANGE 1 h] WHERE a.k = b.k AND b.k = c.k"
PAIRS = "SELECT a.ts AS first, b.k FROM a [RANGE 1 h], b [RANGE 1 h] WHERE a.k = b.k"


def table(*times: int, key: int = 1) -> pa.Table:
    return pa.table([[1_000_000 * time for time in times], [key] * len(times)], schema=COLUMNS)


def session_of(policy: DriverPolicy, **queries: str) -> dt.LocalSession:
    session = dt.LocalSession(config=dt.Config(driver_policy=policy, adaptive=False))
    for name in "abc":
        session.stream(name, COLUMNS, "ts", lateness="1 hour")
    for name, sql in (queries or {"q": TRIPLES}).items():
        session.query(name, sql)
    return session


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the streams in the order in which their tuples are joined."""
    streams: list[str] = []
    dt.LocalSession()  # compiles the kernels
    join = JoinGroup._join_stream

    def noting(self: JoinGroup, stream: str, arrived: NewRows) -> None:
        streams.append(stream)
        join(self, stream, arrived)

    monkeypatch.setattr(JoinGroup, "_join_stream", noting)
    return streams


def sizes(session: dt.LocalSession, counts: Mapping[str, int], begin: int = 0) -> dict[str, pa.Table]:
    batch = {name: table(*range(begin, begin + count)) for name, count in counts.items()}
    session.push(batch)
    return batch


def test_declared_policy_joins_streams_in_declared_order(chosen: list[str]) -> None:
    session = session_of("declared")
    sizes(session, {"c": 1, "a": 5, "b": 2})
    assert chosen == ["a", "b", "c"]


def test_initial_output_size_joins_the_largest_expected_output_first(chosen: list[str]) -> None:
    """Equation 1 after a batch of 2, 4 and 8: 3·4·8 for a, 2·5·8 for b, 2·4·9 for c; then b with a's 5: 5·5·8 against 5·4·9."""
    session = session_of("initial-output-size")
    sizes(session, {"a": 2, "b": 4, "c": 8})
    chosen.clear()
    sizes(session, {"a": 3, "b": 5, "c": 9}, begin=10)
    assert chosen == ["a", "b", "c"]
    session = session_of("initial-output-size")
    sizes(session, {"a": 2, "b": 4, "c": 8})
    chosen.clear()
    sizes(session, {"a": 1, "b": 2, "c": 9}, begin=10)  # 32, 32, 72; then a: 1·4·17, b: 2·2·17
    assert chosen == ["c", "a", "b"]


def test_output_rate_joins_the_most_results_per_tuple_first(chosen: list[str]) -> None:
    """With windows of 2, 4 and 8, a tuple of a meets 4·8 pairs, one of b 2·8, one of c 2·4, whatever the batch sizes."""
    session = session_of("output-rate")
    sizes(session, {"a": 2, "b": 4, "c": 8})
    chosen.clear()
    sizes(session, {"a": 1, "b": 50, "c": 900}, begin=10)
    assert chosen == ["a", "b", "c"]
    chosen.clear()
    sizes(session, {"a": 1, "b": 1, "c": 1}, begin=2000)  # windows of 3, 54 and 908
    assert chosen == ["a", "b", "c"]


def test_consumption_rate_joins_the_fewest_results_per_tuple_first(chosen: list[str]) -> None:
    """In a single join every stream has the same results, so the largest stream has the fewest per tuple."""
    session = session_of("consumption-rate")
    sizes(session, {"a": 2, "b": 4, "c": 8})
    chosen.clear()
    sizes(session, {"a": 1, "b": 1, "c": 1}, begin=10)
    assert chosen == ["c", "b", "a"]


def test_the_consumption_rate_is_that_of_whole_streams(chosen: list[str]) -> None:
    """σ_S of the paper is |Mjoin| / |S|: ten tuples of c long ago weigh as much as ten now."""
    session = session_of("consumption-rate")
    sizes(session, {"a": 2, "b": 4, "c": 10})
    for begin in range(10, 30):
        sizes(session, {"b": 1 if begin < 15 else 0, "a": 0, "c": 0}, begin=begin)
    chosen.clear()
    sizes(session, {"a": 1, "b": 1, "c": 1}, begin=50)  # 2, 9 and 10; faded, b would be first
    assert chosen == ["c", "b", "a"]


def test_the_consumption_rate_counts_the_results_of_all_joins(chosen: list[str]) -> None:
    session = session_of("consumption-rate", triples=TRIPLES, pairs=PAIRS)
    sizes(session, {"a": 2, "b": 1, "c": 2})
    assert session.metrics()["queries"]["triples"]["results"] == 4
    for begin in range(10, 15):
        session.push({"b": table(begin, key=9)})
    chosen.clear()
    sizes(session, {"a": 1, "b": 1, "c": 1}, begin=50)  # a (2 + 4) / 2, b (2 + 4) / 6, c 4 / 2
    assert chosen == ["b", "c", "a"]


def test_policies_count_the_results_of_all_joins(chosen: list[str]) -> None:
    """The triples alone would put c first, but only pairs of a and b have matches."""
    session = session_of("initial-output-size", triples=TRIPLES, pairs=PAIRS)
    session.push({"a": table(1, 2), "b": table(1, 2), "c": table(1, key=9)})
    chosen.clear()
    session.push({"a": table(3), "b": table(3), "c": table(*range(3, 30), key=9)})
    assert chosen == ["a", "b", "c"]


def test_policies_count_results_through_materialized_joins(chosen: list[str]) -> None:
    config = dt.Config(strategy="bjtree", driver_policy="initial-output-size", adaptive=False)
    session = dt.LocalSession(config=config)
    for name in "abc":
        session.stream(name, COLUMNS, "ts", lateness="1 hour", rate=1.0)
    session.query("q", TRIPLES)
    sizes(session, {"a": 2, "b": 4, "c": 8})
    assert session._engine.joined.materialized
    chosen.clear()
    sizes(session, {"a": 1, "b": 2, "c": 9}, begin=10)
    assert chosen[0] == "c"


@pytest.mark.parametrize("policy", POLICIES)
def test_results_do_not_depend_on_the_policy(policy: DriverPolicy) -> None:
    session = session_of(policy, triples=TRIPLES, pairs=PAIRS)
    found = [sizes_of(session.push({"a": table(1, 2), "b": table(1), "c": table(2, 3)}))]
    found.append(sizes_of(session.push({"c": table(4), "a": table(4)})))
    assert found == [{"triples": 4, "pairs": 2}, {"triples": 5, "pairs": 1}]


def sizes_of(results: Mapping[str, pa.Table]) -> dict[str, int]:
    return {name: found.num_rows for name, found in results.items()}


# -- interleaving -----------------------------------------------------------------------------------------------------------------


def arrivals(*times: int) -> NewRows:
    ts = np.array(times, np.int64)
    return NewRows(ts, {"ts": pa.array(ts)}, {}, {}, [])


def sequence(policy: str, rows: int | None, **streams: NewRows) -> list[str]:
    """Return the tuples in the order of joining, as name and time, with `|` between pieces."""
    found = []
    for piece, ranks in split_interleaved(streams, rank_arrivals(streams, policy), rows):
        places: dict[int, str] = {}
        for name, own in piece.items():
            for number, time in enumerate(own.ts):
                before = sum(int(ranks[name, other][number]) for other in piece if other != name)
                places[number + before] = f"{name}{time}"
        assert sorted(places) == list(range(len(places)))
        found += [*(places[number] for number in sorted(places)), "|"]
    return found[:-1]


@pytest.mark.parametrize("rows", [None, 2, 3])
def test_timestamp_policy_breaks_ties_by_declared_order(rows: int | None) -> None:
    came = sequence("timestamp", rows, a=arrivals(1, 4, 4), b=arrivals(4, 5), c=arrivals(0, 4))
    assert [name for name in came if name != "|"] == ["c0", "a1", "a4", "a4", "b4", "c4", "b5"]
    assert came.count("|") == (0 if rows is None else -(-7 // rows) - 1)


@pytest.mark.parametrize("rows", [None, 1, 4])
def test_round_robin_policy_alternates_between_streams(rows: int | None) -> None:
    came = sequence("round-robin", rows, a=arrivals(1, 2, 3, 4), b=arrivals(9), c=arrivals(5, 6))
    assert [name for name in came if name != "|"] == ["a1", "b9", "c5", "a2", "c6", "a3", "a4"]


# -- refused options --------------------------------------------------------------------------------------------------------------


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Config\(driver_policy=...\) is 'fastest'; allowed: 'timestamp', 'round-robin'"
    ):
        dt.Config(driver_policy="fastest")  # type: ignore[arg-type]


def test_eager_evaluation_allows_only_the_timestamp_policy() -> None:
    assert dt.Config().driver_policy == "output-rate"
    assert dt.Config(evaluation="eager").driver_policy == "timestamp"
    with pytest.raises(ConfigError, match="eager evaluation joins each tuple in event-time order"):
        dt.Config(evaluation="eager", driver_policy="round-robin")


@pytest.mark.parametrize("policy", INTERLEAVING)
def test_interleaving_policies_cannot_materialize_joins(policy: DriverPolicy) -> None:
    with pytest.raises(ConfigError, match=rf"strategy='exchange'.*stream by stream.*driver_policy '{policy}'"):
        dt.Config(strategy="exchange", driver_policy=policy)
    assert not can_materialize(dt.Config(driver_policy=policy))


@pytest.mark.parametrize("rows", [0, -1, 1.5, True, None])
def test_piece_rows_must_be_a_positive_integer(rows: Any) -> None:
    with pytest.raises(ConfigError, match="piece_rows"):
        session_of("declared").push_iter({}, piece_rows=rows)


# -- results in pieces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_push_iter_yields_results_in_pieces(policy: DriverPolicy) -> None:
    batch = {name: table(*range(20)) for name in "ab"}
    expected = session_of(policy, pairs=PAIRS).push(batch)["pairs"]
    pieces = list(session_of(policy, pairs=PAIRS).push_iter(batch, piece_rows=4))
    assert len(pieces) > 3
    assert {name for name, _ in pieces} == {"pairs"}
    found = pa.concat_tables([piece for _, piece in pieces])
    assert found.sort_by("first").equals(expected.sort_by("first"))


def test_an_abandoned_push_iter_is_rolled_back() -> None:
    session, other = session_of("declared", pairs=PAIRS), session_of("declared", pairs=PAIRS)
    first, batch = {"a": table(1), "b": table(2)}, {"a": table(3, 4, 5), "b": table(6, 7)}
    for each in (session, other):
        each.push(first)
    for _, _ in session.push_iter(batch, piece_rows=1):
        break
    before = session.metrics()
    assert before["queries"]["pairs"]["results"] == 1
    assert before["streams"]["a"]["arrivals"] == 1
    assert session.push(batch)["pairs"].equals(other.push(batch)["pairs"])


def test_push_iter_refuses_a_bad_batch_before_any_change() -> None:
    session = session_of("declared", pairs=PAIRS)
    pieces = session.push_iter({"a": table(1), "z": table(1)})
    with pytest.raises(ConfigError, match="push got tuples for 'z'"):
        next(pieces)
    assert session.push({"a": table(1), "b": table(1)})["pairs"].num_rows == 1


def test_other_threads_wait_for_the_last_piece() -> None:
    session = session_of("declared", pairs=PAIRS)
    pieces = session.push_iter({"a": table(1, 2), "b": table(1, 2)}, piece_rows=1)
    next(pieces)
    with pytest.raises(StateError, match=r"metrics\(\) was called while the same thread was inside another call"):
        session.metrics()
    done: list[object] = []
    waiting = threading.Thread(target=lambda: done.append(session.metrics()["queries"]["pairs"]["results"]))
    waiting.start()
    waiting.join(0.05)
    assert not done
    list(pieces)
    waiting.join()
    assert done == [4]
