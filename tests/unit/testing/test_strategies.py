"""Random cases cover all features, stay small, and are reproducible from a seed."""

import re
import subprocess
import sys
from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from dovetail.errors import ConfigError
from dovetail.query.sql import parse_query
from dovetail.schema import common_type, sql_type
from dovetail.testing import Oracle, RandomCase, assert_same_rows, random_scenario, scenarios
from dovetail.testing.sampling import HOUR, KINDS, SHAPES, recut
from dovetail.testing.strategies import batch_cuts


def sample(count: int, **options: Any) -> list[RandomCase]:
    return [random_scenario(Random(seed), **options) for seed in range(count)]


def aliases_of(sql: str) -> dict[str, str]:
    """Map aliases to streams, read from the text."""
    found = re.findall(r"\b(s\d)(?: \[[^]]*\])?(?: AS)? ([a-f])\b", sql)
    return {alias: stream for stream, alias in found}


def edges_of(sql: str) -> set[frozenset[str]]:
    """Return the pairs of aliases connected by an equality of key columns."""
    return {frozenset(pair) for pair in re.findall(r"([a-f])\.k\d = ([a-f])\.k\d", sql)}


def test_a_seed_gives_the_same_case() -> None:
    assert [repr(one) for one in sample(5)] == [repr(one) for one in sample(5)]
    assert len({repr(one) for one in sample(50)}) == 50


@given(scenarios())
@settings(max_examples=150, deadline=None)
def test_every_scenario_is_well_formed(scenario: RandomCase) -> None:
    assert 1 <= len(scenario.pushes) <= 6
    for sql in scenario.sql.values():
        aliases = aliases_of(sql)
        assert 2 <= len(aliases) <= 6
        assert set(aliases.values()) <= set(scenario.catalog)
        for alias, column in re.findall(r"\b([a-f])\.(\w+)", sql):
            assert column in scenario.catalog[aliases[alias]].columns.names
        windows = re.findall(r"\[(?:RANGE \d+ \w+|(?:PARTITION BY \w+ )?ROWS \d)\]", sql)
        assert 1 <= len(windows) <= len(aliases)
        assert sql.count("[") == len(windows)
        assert " ON  " not in sql
        assert not sql.endswith(("ON", "WHERE", "AND", " "))
    for push in scenario.pushes:
        for name, table in push.items():
            assert table.schema == scenario.catalog[name].columns
            assert table.column("ts").null_count == 0
            assert table.num_rows <= 40
            table.validate(full=True)


@pytest.mark.parametrize("aliases", [2, 4, 6])
def test_the_shape_is_as_asked(aliases: int) -> None:
    degrees = {}
    for shape in SHAPES:
        scenario = random_scenario(
            Random(1),
            aliases=aliases,
            shape=shape,
            queries=1,
            theta=False,
            expression_keys=False,
            self_joins=False,
        )
        edges = edges_of(scenario.sql["q1"])
        degrees[shape] = sorted(Counter(alias for edge in edges for alias in edge).values())
    n = aliases
    assert degrees["chain"] == [1, 1] + [2] * (n - 2)
    assert degrees["star"] == sorted([1] * (n - 1) + [n - 1])
    assert degrees["complete"] == [n - 1] * n
    assert degrees["cycle"] == ([2] * n if n > 2 else [1, 1])
    assert sum(degrees["common"]) == 2 * (n - 1)
    assert sum(degrees["tree"]) >= 2 * (n - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_a_kind_can_be_equated(kind: str) -> None:
    types = set()
    for scenario in sample(30, kinds=[kind]):
        types |= {field.type for stream in scenario.streams for field in stream.columns if field.name == "k0"}
    assert all(common_type(sql_type(one), sql_type(other)) is not None for one in types for other in types)
    assert len(types) == {"boolean": 1, "text": 2, "binary": 2, "date": 2, "decimal": 3, "timestamp": 3}.get(
        kind, len(types)
    )
    assert len(types) > 1 or kind == "boolean"


def test_features_can_be_switched_on_and_off() -> None:
    def seen(pattern: str, **options: Any) -> int:
        return sum(bool(re.search(pattern, sql)) for one in sample(60, **options) for sql in one.sql.values())

    for pattern, option in [
        (r"ROWS \d", "count_windows"),
        (r"BETWEEN|\.x (<|>=|<>) [a-f]", "theta"),
        (r"\+ 1 =|= [a-f]\.x - 1|% 3|lower", "expression_keys"),
    ]:
        assert seen(pattern, **{option: True}) > 20, option
        assert seen(pattern, **{option: False}) == 0, option
    assert seen("IS NOT NULL|LIKE|% 2", filters=True) > 20
    assert seen("IS NOT NULL|LIKE|% 2", filters=False) == 0
    assert seen(r"PARTITION BY", count_windows=True) > 5
    assert seen(r"\bJOIN\b") > 5
    assert seen(r"RANGE 0 s") > 5
    repeated = [
        len(set(aliases_of(one.sql["q1"]).values())) < len(aliases_of(one.sql["q1"]))
        for one in sample(20, self_joins=True)
    ]
    assert all(repeated)


def test_nulls_and_nested_payload() -> None:
    def nulls(one: RandomCase) -> int:
        return sum(
            table.column(name).null_count for push in one.pushes for table in push.values() for name in ("x", "k0")
        )

    assert sum(map(nulls, sample(20, nulls=False))) == 0
    assert sum(map(nulls, sample(20, nulls=True))) > 50
    assert any("d" in stream.columns.names for one in sample(5, nested_payload=True) for stream in one.streams)
    assert not any("d" in stream.columns.names for one in sample(20, nested_payload=False) for stream in one.streams)


def accepted(scenario: RandomCase, pushes: tuple[dict[str, pa.Table], ...]) -> tuple[int, int]:
    oracle = Oracle(scenario.streams)
    for push in pushes:
        oracle.push(push)
    return sum(oracle.late.values()), sum(table.num_rows for push in pushes for table in push.values())


def answers(scenario: RandomCase, pushes: tuple[dict[str, pa.Table], ...]) -> dict[str, pa.Table]:
    oracle = Oracle(scenario.streams)
    for name, sql in scenario.sql.items():
        oracle.add_query(parse_query(name, sql, scenario.catalog))
    for push in pushes:
        oracle.push(push)
    return {name: oracle.results_table(name) for name in scenario.sql}


def test_queries_are_accepted_and_most_have_results() -> None:
    counts = [sum(table.num_rows for table in answers(one, one.pushes).values()) for one in sample(150)]
    assert sum(count > 0 for count in counts) > 90
    assert sum(count > 5_000 for count in counts) <= 3


def test_results_do_not_depend_on_batch_cuts() -> None:
    for seed, scenario in enumerate(sample(40, late=False)):
        first = answers(scenario, scenario.pushes)
        again = answers(scenario, recut(Random(seed), scenario.pushes, 1 + seed % 6))
        for name in scenario.sql:
            assert_same_rows(again[name], first[name], repr(scenario))


def test_some_tuples_are_late_only_if_asked() -> None:
    assert sum(accepted(one, one.pushes)[0] for one in sample(30, late=True)) > 20
    assert sum(accepted(one, one.pushes)[0] for one in sample(30, late=False, count_windows=False)) == 0
    assert sum(accepted(one, one.pushes)[0] for one in sample(30, late=False, count_windows=True)) == 0
    # A count window answers only where the watermark moves.
    assert all(stream.lateness < HOUR for one in sample(30, count_windows=True) for stream in one.streams)


def test_some_batches_are_empty_and_some_omit_streams() -> None:
    everything = sample(40)
    assert any(table.num_rows == 0 for one in everything for push in one.pushes for table in push.values())
    assert any(len(push) < len(one.streams) for one in everything for push in one.pushes)


@pytest.mark.parametrize("shuffle", [False, True])
def test_recut_keeps_every_tuple(shuffle: bool) -> None:  # noqa: FBT001 - a parameter of the test
    for seed, scenario in enumerate(sample(20, late=False, count_windows=False)):
        again = recut(Random(seed), scenario.pushes, 1 + seed % 6, shuffle=shuffle)
        assert len(again) == 1 + seed % 6
        for stream in scenario.streams:
            before, after = (
                pa.concat_tables(
                    [stream.columns.empty_table(), *(push[stream.name] for push in pushes if stream.name in push)]
                )
                for pushes in (scenario.pushes, again)
            )
            assert_same_rows(after, before)
            if not shuffle:
                assert [str(row) for row in after.to_pylist()] == [str(row) for row in before.to_pylist()]
        assert accepted(scenario, again) == accepted(scenario, scenario.pushes)


def test_recut_moves_the_cuts() -> None:
    scenario = sample(1, pushes=3, tuples=40)[0]
    sizes = {
        tuple(push[name].num_rows if name in push else 0 for push in recut(Random(seed), scenario.pushes, 3))
        for seed in range(10)
        for name in scenario.catalog
    }
    assert len(sizes) > 5


def test_batch_cuts_respects_its_limit() -> None:
    scenario = sample(1)[0]

    @given(batch_cuts(scenario.pushes, max_pushes=2))
    @settings(max_examples=20)
    def check(pushes: tuple[dict[str, pa.Table], ...]) -> None:
        assert len(pushes) in {1, 2}

    check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"aliases": 7}, "aliases is 7; allowed: 2 to 6"),
        ({"shape": "ring"}, "'common'"),
        ({"kinds": ["map"]}, "'integer'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        random_scenario(Random(0), **options)


def test_repr_shows_streams_queries_and_rows() -> None:
    scenario = random_scenario(Random(3), aliases=2, queries=1, pushes=1, nulls=False)
    text = repr(scenario)
    assert scenario.sql["q1"] in text
    assert all(f"stream {name}" in text for name in scenario.catalog)
    assert text.count("\n    (") == sum(table.num_rows for table in scenario.pushes[0].values())


def test_without_hypothesis_the_oracle_still_imports() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import dovetail.testing as t; t.Oracle\n"
        "try: t.scenarios\n"
        "except ImportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs hypothesis" in done.stdout
