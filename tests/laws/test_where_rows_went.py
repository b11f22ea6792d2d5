"""Every tuple that was pushed is in a window, was dropped with a reason, has expired, or is in no result."""

from __future__ import annotations

import random

from expected_windows import ExpectedWindows
from hypothesis import given, settings
from hypothesis import strategies as st
from session_and_oracle import Pair, configs

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.testing import RandomCase, assert_same_rows, scenarios

SEEDS = st.integers(0, 2**32 - 1)


def check_windows(pair: Pair) -> None:
    """Fail unless each window of the session holds what it should."""
    queries = [parse_query(name, sql, pair.catalog) for name, sql in pair.sql.items()]
    expected, contents = ExpectedWindows(pair.oracle, queries), pair.session.windows()
    for name, readers in expected.readers().items():
        content = contents.pop(name)
        table = expected.table(name.partition(" ")[0], readers).select(content.column_names)
        assert_same_rows(content.cast(table.schema), table, f"window {name}: {pair.sql}")
    assert not contents


def check_case(scenario: RandomCase, config: dt.Config, seed: int) -> None:
    """Push a random case, and check windows after each batch."""
    pair = Pair(scenario.streams, config)
    for name, sql in scenario.sql.items():
        pair.add(name, sql, random.Random(seed), config, forced=False)
    for batch in scenario.pushes:
        pair.push(batch)
        check_windows(pair)


@settings(max_examples=4 * settings().max_examples)
@given(scenarios(), configs(), SEEDS)
def test_windows_hold_what_later_results_can_contain(scenario: RandomCase, config: dt.Config, seed: int) -> None:
    check_case(scenario, config, seed)
