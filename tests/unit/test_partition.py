"""Hypercube splits and cells."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pyarrow as pa
import pytest

from dovetail.errors import PlanError
from dovetail.partition import HypercubeGrid, dimensions_of, divide
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.int64()), ("z", pa.int64())])
STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in "abcd"}


def query(where: str, windows: dict[str, str] | None = None, aliases: str = "abc") -> JoinQuery:
    entries = ", ".join(f"{alias} [{(windows or {}).get(alias, 'RANGE 1 SECOND')}]" for alias in aliases)
    return parse_query("q", f"SELECT * FROM {entries} WHERE {where}", STREAMS)


def even(aliases: str = "abc") -> dict[str, float]:
    return dict.fromkeys(aliases, 1.0)


COMMON = "a.x = b.x AND b.x = c.x"
CHAIN = "a.x = b.x AND b.y = c.y"
TRIANGLE = "a.x = b.x AND b.y = c.y AND c.z = a.z"


@pytest.mark.parametrize(
    ("where", "rates", "shards", "shares"),
    [
        (COMMON, {"a": 1, "b": 1, "c": 1}, 8, (8,)),
        # a chain copies a along y and c along x: the fast stream must not be copied
        (CHAIN, {"a": 1, "b": 1, "c": 100}, 6, (1, 6)),
        (CHAIN, {"a": 100, "b": 1, "c": 1}, 6, (6, 1)),
        (CHAIN, {"a": 1, "b": 1, "c": 1}, 4, (2, 2)),
        # each stream of a triangle lacks one dimension: even splits copy each tuple once per part of it
        (TRIANGLE, {"a": 1, "b": 1, "c": 1}, 8, (2, 2, 2)),
        (TRIANGLE, {"a": 1, "b": 1, "c": 1}, 5, (1, 1, 5)),
        (COMMON, {"a": 1, "b": 1, "c": 1}, 1, (1,)),
    ],
)
def test_splits_send_the_fewest_copies(
    where: str, rates: dict[str, float], shards: int, shares: tuple[int, ...]
) -> None:
    grid = divide(query(where), rates, shards)
    assert grid.splits == shares
    assert grid.shards == shards


def test_splits_are_optimal() -> None:
    rng = random.Random(7)
    for _ in range(200):
        asked = query(rng.choice((COMMON, CHAIN, TRIANGLE)))
        rates = {alias: rng.choice((1.0, 3.0, 50.0)) for alias in "abc"}
        shards = rng.randint(1, 24)
        grid = divide(asked, rates, shards)

        def sent(shares: tuple[int, ...], rates: dict[str, float] = rates, grid: HypercubeGrid = grid) -> float:
            other = HypercubeGrid(grid.dimensions, shares)
            return sum(rate * other.copies(alias) for alias, rate in rates.items())

        every = product(range(1, shards + 1), repeat=len(grid.dimensions))
        assert sent(grid.splits) == min(
            sent(shares) for shares in every if HypercubeGrid(grid.dimensions, shares).shards == shards
        )


def cells(grid: HypercubeGrid, alias: str, result: Sequence[int]) -> set[tuple[int, ...]]:
    """The cells of a tuple of `alias` in a result with one coordinate per dimension."""
    axes = [
        (result[axis],) if alias in dimension.aliases else range(split)
        for axis, (dimension, split) in enumerate(zip(grid.dimensions, grid.splits, strict=True))
    ]
    return set(product(*axes))


def test_the_tuples_of_a_result_meet_in_exactly_one_cell() -> None:
    rng = random.Random(1)
    for where in (COMMON, CHAIN, TRIANGLE):
        for shards in (1, 2, 5, 12):
            grid = divide(query(where), even(), shards)
            for _ in range(50):
                # a result has one value, so one coordinate, per dimension; each tuple fixes those it has a key of
                result = [rng.randrange(share) for share in grid.splits]
                meeting = [cells(grid, alias, result) for alias in "abc"]
                assert set.intersection(*meeting) == {tuple(result)}
                assert [len(cells) for cells in meeting] == [grid.copies(alias) for alias in "abc"]


def test_a_join_without_equalities_spreads_one_alias() -> None:
    grid = divide(query("a.x < b.x", aliases="ab"), even("ab"), 4)
    assert [dimension.aliases for dimension in grid.dimensions] == [("a",)]
    assert (grid.copies("a"), grid.copies("b")) == (1, 4)


@pytest.mark.parametrize(
    ("where", "windows", "shares"),
    [
        (COMMON, {"b": "ROWS 5"}, (1,)),  # b is partitioned along x, but its last five rows are counted over all of it
        (COMMON, {"b": "PARTITION BY x ROWS 5"}, (6,)),
        (COMMON, {"b": "PARTITION BY y ROWS 5"}, (1,)),
        (CHAIN, {"a": "ROWS 5"}, (1, 6)),  # a is everywhere along y
        (CHAIN, {"b": "ROWS 5"}, (1, 1)),
        (CHAIN, {"b": "PARTITION BY y ROWS 5"}, (1, 6)),
    ],
)
def test_a_count_window_is_not_partitioned(where: str, windows: dict[str, str], shares: tuple[int, ...]) -> None:
    assert divide(query(where, windows), even(), 6).splits == shares


def test_count_windows_everywhere_leave_one_shard() -> None:
    asked = query("a.x < b.x", {"a": "ROWS 2", "b": "ROWS 2"}, "ab")
    assert not any(dimension.divisible for dimension in dimensions_of(asked))
    assert divide(asked, even("ab"), 8).shards == 1


def test_no_shards_is_an_error() -> None:
    with pytest.raises(PlanError, match="the number of shards is 0"):
        divide(query(COMMON), even(), 0)
