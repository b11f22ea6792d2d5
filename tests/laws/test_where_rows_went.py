"""Every tuple that was pushed is in a window, was dropped with a reason, has expired, or is in no result."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from session_and_oracle import Pair, configs

import dovetail as dt
from dovetail.query.model import CountWindow, JoinQuery, TimeWindow
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle, RandomCase, assert_same_rows, scenarios
from dovetail.testing.values import evaluate, sort_key

BEGINNING = -(1 << 62)
SEEDS = st.integers(0, 2**32 - 1)


class Expected:
    """The content of windows by definition: one tuple at a time, from what the oracle has accepted."""

    def __init__(self, pair: Pair) -> None:
        self.oracle: Oracle = pair.oracle
        self.queries = [parse_query(name, sql, pair.catalog) for name, sql in pair.sql.items()]

    def watermark(self, stream: str) -> int:
        watermark = self.oracle._streams[stream].watermark
        return BEGINNING if watermark is None else watermark

    def windows(self) -> dict[str, list[JoinQuery]]:
        """Return the queries that read each window, by its name."""
        windows: dict[tuple[str, frozenset[str]], list[JoinQuery]] = {}
        for query in self.queries:
            counted = frozenset(ref.stream for ref in query.refs if isinstance(ref.window, CountWindow))
            for stream in dict.fromkeys(ref.stream for ref in query.refs):
                windows.setdefault((stream, counted), []).append(query)
        names = {}
        for (stream, counted), queries in windows.items():
            is_one_of_several = sum(other == stream and bool(group) for other, group in windows) > 1
            readers = f" of {', '.join(sorted(query.name for query in queries))}"
            names[stream + (" settled" + readers * is_one_of_several) * bool(counted)] = queries
        return names

    def content(self, schema: StreamSchema, queries: list[JoinQuery]) -> tuple[list[int], list[list[str]]]:
        """Return the positions of the tuples in a stream's window, and the queries that see each."""
        tuples = self.oracle._streams[schema.name].tuples
        positions, names = [], []
        for member in tuples:
            seen, has_place = [], False
            for query in queries:
                aliases = [alias for alias in query.aliases if query.ref(alias).stream == schema.name]
                inside = [alias for alias in aliases if self._is_inside(query, alias, member, tuples)]
                has_place |= any(isinstance(query.ref(alias).window, CountWindow) for alias in inside)
                if any(_sees(query, alias, member.row) for alias in inside):
                    seen.append(query.name)
            if seen or has_place:
                positions.append(member.number)
                names.append(sorted(seen))
        return positions, names

    def _is_inside(self, query: JoinQuery, alias: str, member: Any, tuples: list[Any]) -> bool:
        """Whether a result whose latest tuple is still to come, or to settle, can contain a tuple."""
        others = [self.watermark(other.stream) for other in query.refs if other.alias != alias]
        counted = [self.watermark(ref.stream) for ref in query.refs if isinstance(ref.window, CountWindow)]
        earliest, window = min([*others, *counted]), query.ref(alias).window
        if isinstance(window, TimeWindow):
            return bool(member.ts >= earliest - window.micros)
        assert isinstance(window, CountWindow)
        part = window.partition_by
        rank = (member.ts, member.content)
        followers = sorted(
            (other.ts, other.content, other.number)
            for other in tuples
            if (*rank, member.number) < (other.ts, other.content, other.number) < (min(counted),)  # settled ones only
            and (part is None or _same(other.row[part], member.row[part]))
        )
        return len(followers) < window.rows or followers[window.rows - 1][0] > earliest


def _same(left: Any, right: Any) -> bool:
    return bool(left == right or (left != left and right != right))  # noqa: PLR0124 - NaN equals NaN


def _sees(query: JoinQuery, alias: str, row: Mapping[str, Any]) -> bool:
    filters = [condition.expression for condition in query.filters if condition.aliases == (alias,)]
    for group in query.classes:
        values = [evaluate(key, {alias: row}) for key in group.of(alias)]
        if None in values or len(set(map(sort_key, values))) > 1:  # two keys that a third one makes equal
            return False
    return all(evaluate(condition, {alias: row}) is True for condition in filters)


def check_windows(pair: Pair) -> None:
    """Fail unless each window of the session holds what it should."""
    expected, contents = Expected(pair), pair.session.windows()
    for name, queries in expected.windows().items():
        schema, content = pair.catalog[name.partition(" ")[0]], contents.pop(name)
        positions, names = expected.content(schema, queries)
        table = pair.oracle._streams[schema.name].table().select(content.column_names[:-1])
        table = table.take(pa.array(positions, pa.int64()))
        table = table.append_column("_queries", pa.array(names, pa.list_(pa.string())))
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
