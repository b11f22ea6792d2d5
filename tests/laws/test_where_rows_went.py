"""Every tuple that was pushed is in a window, was dropped with a reason, has expired, or is in no result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from expected_windows import ExpectedWindows
from hypothesis import given, settings
from hypothesis import strategies as st
from session_and_oracle import configs

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle, RandomCase, assert_same_rows, scenarios
from dovetail.testing.values import sort_key

SEEDS = st.integers(0, 2**32 - 1)
NOW = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
METRICS = {"late": "late", "ahead": "ahead", "no event time": "refused"}


def check_windows(run: Recorded) -> None:
    """Fail unless each window of the session holds what it should."""
    expected, contents = ExpectedWindows(run.oracle, run.queries), run.session.windows()
    for name, readers in expected.readers().items():
        content = contents.pop(name)
        table = expected.table(name.partition(" ")[0], readers).select(content.column_names)
        assert_same_rows(content.cast(table.schema), table, f"window {name}: {run.scenario.sql}")
    assert not contents


def with_faults(scenario: RandomCase, rng: random.Random) -> RandomCase:
    """Return a scenario in which some event times are NULL, and some too far ahead of the clock, which is `NOW`."""
    streams = tuple(replace(s, max_ahead=rng.choice((None, 5_000_000))) for s in scenario.streams)
    event_times = {stream.name: stream.event_time for stream in streams}

    def faulty(name: str, table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(event_times[name])
        mask = pa.array([rng.random() < 0.1 for _ in range(table.num_rows)], pa.bool_())
        times = pc.if_else(mask, pa.scalar(None, table.schema.field(index).type), table.column(index))
        return table.set_column(index, table.schema.field(index), times)

    pushes = tuple({name: faulty(name, table) for name, table in push.items()} for push in scenario.pushes)
    return RandomCase(streams, scenario.sql, pushes)


class Recorded:
    """A session and the oracle, given the same input, and what the session has dropped."""

    def __init__(self, scenario: RandomCase, config: dt.Config) -> None:
        self.scenario, self.session, self.oracle = scenario, dt.LocalSession(config=config), Oracle(scenario.streams)
        for s in scenario.streams:
            ahead = None if s.max_ahead is None else s.max_ahead / 1e6
            self.session.stream(s.name, s.columns, s.event_time, s.lateness / 1e6, max_ahead=ahead)
        self.queries = []
        for name, sql in scenario.sql.items():
            with suppress(dt.PlanError):  # without equalities, where joins are to be by hash
                self.session.query(name, sql)
                self.queries.append(parse_query(name, sql, scenario.catalog))
        self.dropped: dict[str, pa.Table] = {}

    def push(self, batch: Mapping[str, pa.Table]) -> None:
        self.session.push(batch, NOW, dropped=self.dropped)
        timed = {n: t.filter(t.column(self.scenario.catalog[n].event_time).is_valid()) for n, t in batch.items()}
        self.oracle.push(timed, round(NOW.timestamp() * 1e6))

    def accepted(self, stream: str) -> pa.Table:
        return self.oracle._streams[stream].table()


def check_case(scenario: RandomCase, config: dt.Config, seed: int) -> None:
    """Push a random case; check windows after each batch, and that no tuple is lost in the end."""
    scenario = with_faults(scenario, random.Random(seed))
    run = Recorded(scenario, config)
    for batch in scenario.pushes:
        run.push(batch)
        check_windows(run)
    metrics: Mapping[str, Any] = run.session.metrics()["streams"]
    for name, schema in scenario.catalog.items():
        pushed = pa.concat_tables([schema.columns.empty_table(), *(b[name] for b in scenario.pushes if name in b)])
        dropped = run.dropped.get(name, schema.columns.append(pa.field("_reason", pa.string())).empty_table())
        assert_same_rows(pa.concat_tables([run.accepted(name), dropped.drop_columns(["_reason"])]), pushed)
        counts = Counter(dropped.column("_reason").to_pylist())
        expected = {
            "late": run.oracle.late[name],
            "ahead": run.oracle.ahead[name],
            "no event time": metrics[name]["refused"],
        }
        assert counts == Counter(expected) == Counter({r: metrics[name][m] for r, m in METRICS.items()})


@settings(max_examples=4 * settings().max_examples)
@given(scenarios(), configs(), SEEDS)
def test_tuples_are_dropped_in_a_window_expired_or_in_no_result(
    scenario: RandomCase, config: dt.Config, seed: int
) -> None:
    check_case(scenario, config, seed)


def check_shedding(scenario: RandomCase, cap: int, policy: Any, seed: int) -> None:
    """Push a random case under a cap; the tuples that windows lack were shed."""
    shedding = dt.Shedding(policy=policy, max_tuples=cap, seed=seed)
    run = Recorded(scenario, dt.Config(shedding=shedding))
    for batch in scenario.pushes:
        run.push(batch)
        expected = ExpectedWindows(run.oracle, run.queries)
        for name, content in run.session.windows().items():
            kept = content.column_names[:-1]
            needed = rows_of(expected.table(name, run.queries).select(kept))
            shed = run.dropped.get(
                name, run.scenario.catalog[name].columns.append(pa.field("_reason", pa.string())).empty_table()
            )
            shed = shed.filter(pc.equal(shed.column("_reason"), "shed"))
            assert shed.num_rows == run.session.metrics()["streams"][name]["shed"]
            held = rows_of(content.select(kept))
            assert held <= needed
            assert needed - held <= rows_of(shed.select(kept))


@given(
    scenarios(count_windows=False, nested_payload=False, theta=False, shape="common", expression_keys=False),
    st.integers(1, 30),
    st.sampled_from(("arrival-order", "frequency", "random", "fifo")),
    SEEDS,
)
def test_tuples_that_windows_lack_were_shed(scenario: RandomCase, cap: int, policy: Any, seed: int) -> None:
    with suppress(dt.ConfigError):  # the cap is below what the policy needs
        check_shedding(scenario, cap, policy, seed)


def rows_of(table: pa.Table) -> Counter[Any]:
    return Counter(sort_key([list(row.values())]) for row in table.to_pylist())
