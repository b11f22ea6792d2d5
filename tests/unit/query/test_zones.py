"""Constants are read in the session's time zone; conversions that need the zone per tuple are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.config import Config
from dovetail.errors import QueryError, StateError
from dovetail.optimizer.planner import plan_query
from dovetail.query.expressions import Literal, canonical, rename_alias
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.query.zones import find_zone, has_fixed_offset
from dovetail.schema import StreamSchema
from dovetail.session.job import Job
from dovetail.session.registered_query import RegisteredQuery
from dovetail.spark.checkpoint.compatibility import pinned_json
from dovetail.spark.driver.job_diff import reconcile_layouts
from dovetail.spark.driver.layout import Layout, read_worker_plan
from dovetail.spark.driver.placement import Placement

TS, NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
COLUMNS = pa.schema({"ts": TS, "k": pa.int64(), "day": pa.date32(), "wall": NTZ, "length": pa.duration("us")})
STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in "ab"}
FROM = "FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.k = b.k"
PACIFIC, INDIA = "America/Los_Angeles", "Asia/Kolkata"


def read(condition: str, zone: str) -> JoinQuery:
    return parse_query("q", f"SELECT a.k {FROM} AND {condition}", STREAMS, zone)


def constant(text: str, zone: str) -> datetime:
    expression = parse_query("q", f"SELECT {text} AS x {FROM}", STREAMS, zone).outputs[0].expression
    assert isinstance(expression, Literal)
    assert isinstance(expression.value, int)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=expression.value)


@pytest.mark.parametrize(
    ("text", "zone", "instant"),
    [
        ("TIMESTAMP '2024-01-31 12:30:00'", "UTC", "2024-01-31T12:30:00"),
        ("TIMESTAMP '2024-01-31 12:30:00'", PACIFIC, "2024-01-31T20:30:00"),
        ("TIMESTAMP '2024-07-31 12:30:00'", PACIFIC, "2024-07-31T19:30:00"),
        ("TIMESTAMP '2040-07-31 12:30:00'", PACIFIC, "2040-07-31T19:30:00"),
        ("TIMESTAMP '2024-01-31 12:30:00'", INDIA, "2024-01-31T07:00:00"),
        ("TIMESTAMP '2024-03-10 02:30:00'", PACIFIC, "2024-03-10T10:30:00"),  # skipped: 03:30 in summer time
        ("TIMESTAMP '2024-11-03 01:30:00'", PACIFIC, "2024-11-03T08:30:00"),  # comes twice: the first
        ("CAST('2024-01-31' AS TIMESTAMP)", INDIA, "2024-01-30T18:30:00"),
        ("CAST(DATE '2024-01-31' AS TIMESTAMP)", PACIFIC, "2024-01-31T08:00:00"),
        ("CAST(DATE '2018-11-04' AS TIMESTAMP)", "America/Sao_Paulo", "2018-11-04T03:00:00"),  # begins at 01:00
        ("CAST(DATE '1919-03-31' AS TIMESTAMP)", "America/Toronto", "1919-03-31T04:30:00"),  # begins at 00:30
        ("TIMESTAMP '2024-01-31 12:30:00'", "+05:30", "2024-01-31T07:00:00"),
        ("TIMESTAMP '2024-01-31 12:30:00'", "GMT-8", "2024-01-31T20:30:00"),
        ("TIMESTAMP '2024-01-31 12:30:00Z'", PACIFIC, "2024-01-31T12:30:00"),
        ("TIMESTAMP '2024-01-31 12:30:00+01:00'", PACIFIC, "2024-01-31T11:30:00"),
        ("TIMESTAMP '2024-01-31 12:30:00 Asia/Kolkata'", PACIFIC, "2024-01-31T07:00:00"),
        ("TIMESTAMP '2024-01-31 12:30:00 UTC'", "PST", "2024-01-31T12:30:00"),
        ("TIMESTAMP_NTZ '2024-01-31 12:30:00'", PACIFIC, "2024-01-31T12:30:00"),
    ],
)
def test_constants_are_instants_of_the_zone(text: str, zone: str, instant: str) -> None:
    assert constant(text, zone) == datetime.fromisoformat(instant).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("condition", "depends"),
    [
        ("a.ts > TIMESTAMP '2024-01-31 12:30:00'", True),
        ("a.ts > DATE '2024-01-31'", True),
        ("a.ts IN (DATE '2024-01-31', DATE '2024-02-01')", True),
        ("a.ts > TIMESTAMP '2024-01-31 12:30:00Z'", False),
        ("a.wall > TIMESTAMP_NTZ '2024-01-31 12:30:00'", False),
        ("a.wall > DATE '2024-01-31'", False),
        ("a.day = DATE '2024-01-31'", False),
        ("b.ts <= a.ts + INTERVAL 23 HOURS", False),
        ("b.ts <= a.ts + INTERVAL 12 HOURS + INTERVAL 12 HOURS", False),
        ("b.wall - a.wall < INTERVAL 2 DAYS", False),
        ("b.day - a.day < INTERVAL 2 DAYS", False),
    ],
)
def test_a_query_remembers_the_zone_if_it_depends_on_it(condition: str, depends: bool) -> None:  # noqa: FBT001
    assert read(condition, PACIFIC).time_zone == (PACIFIC if depends else "UTC")
    assert read(condition, "UTC").time_zone == "UTC"


@pytest.mark.parametrize(
    ("condition", "only_if_changing"),
    [
        ("a.ts > a.day", False),
        ("CAST(a.ts AS DATE) = CAST(b.ts AS DATE)", False),
        ("CAST(a.day AS TIMESTAMP) = b.ts", False),
        ("a.day + INTERVAL 1 HOUR < b.ts", False),
        ("COALESCE(a.ts, a.day) < b.ts", False),
        ("b.ts - a.ts < INTERVAL 1 HOUR", True),
        ("b.ts <= a.ts + INTERVAL 1 DAY", True),
        ("b.ts <= a.ts + INTERVAL 24 HOURS", True),
        ("b.ts <= a.ts + (INTERVAL 12 HOURS + INTERVAL 12 HOURS)", True),
        ("b.ts - INTERVAL '1 01' DAY TO HOUR <= a.ts", True),
        ("b.ts <= a.ts + a.length", True),
    ],
)
def test_conversions_that_need_the_zone_per_tuple_are_refused(condition: str, only_if_changing: bool) -> None:  # noqa: FBT001
    assert read(condition, "UTC").time_zone == "UTC"
    with pytest.raises(QueryError, match="the session's time zone 'America/Los_Angeles'") as refused:
        read(condition, PACIFIC)
    assert "set spark.sql.session.timeZone to UTC" in (refused.value.hint or "")
    if only_if_changing:
        assert read(condition, INDIA).time_zone == "UTC"
        assert read(condition, "+05:30").time_zone == "UTC"


def test_unknown_zones_are_refused_where_they_matter() -> None:
    for name in ("PST", "EST", "Nowhere/City", "+25:00", "../etc/passwd"):
        assert find_zone(name) is None
        with pytest.raises(QueryError, match="is unknown"):
            read("a.ts > TIMESTAMP '2024-01-31 12:30:00'", name)
        assert read("a.ts > TIMESTAMP '2024-01-31 12:30:00Z'", name).time_zone == "UTC"


def test_zones_with_a_fixed_offset() -> None:
    fixed = {
        name: has_fixed_offset(zone)
        for name in (INDIA, PACIFIC, "Asia/Tokyo", "Africa/Casablanca")
        if (zone := find_zone(name))
    }
    assert fixed == {INDIA: True, PACIFIC: False, "Asia/Tokyo": True, "Africa/Casablanca": False}


def test_a_local_session_is_in_utc() -> None:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, event_time="ts")
    session.query("q", f"SELECT a.k {FROM} AND a.ts = TIMESTAMP '1970-01-01 00:00:01' AND CAST(b.ts AS DATE) = b.day")
    rows = {
        "ts": [1_000_000],
        "k": [1],
        "day": [datetime(1970, 1, 1, tzinfo=UTC).date()],
        "wall": [None],
        "length": [None],
    }
    table = pa.table(rows, schema=COLUMNS)
    assert session.push({"a": table, "b": table})["q"].num_rows == 1


# -- the layout ---------------------------------------------------------------------------------------------------------------------

SQL = f"SELECT a.k {FROM} AND a.ts > TIMESTAMP '2024-01-31 12:30:00'"


def layout(zone: str) -> Layout:
    plan = plan_query(parse_query("q", SQL, STREAMS, zone), STREAMS, Config())
    job = Job(Config(), streams=STREAMS, registered={"q": RegisteredQuery(plan)})
    return Layout.of(job, Placement(2))


def test_workers_read_in_the_sessions_zone() -> None:
    sent = read_worker_plan(layout(PACIFIC).for_workers("").to_json())
    wanted = parse_query("q", SQL, STREAMS, PACIFIC)
    (step,) = sent.plan_of(0).steps
    assert step.plan.query.filters == wanted.filters
    filters = [each for source in step.sources for each in source.filters]
    assert [str(each) for each in filters] == [
        str(canonical(rename_alias(f.expression, lambda _: ""))) for f in wanted.filters
    ]


def test_a_checkpoint_keeps_its_zone() -> None:
    stored = pinned_json(layout(PACIFIC))
    reconcile_layouts(layout(PACIFIC), stored, stored)
    assert "time_zone" not in pinned_json(layout("UTC"))  # checkpoints of earlier releases stay valid
    for was, is_ in ((PACIFIC, "UTC"), ("UTC", PACIFIC), (PACIFIC, INDIA)):
        with pytest.raises(StateError, match=f"query 'q' were read in time zone {was}, now in {is_}"):
            reconcile_layouts(layout(is_), pinned_json(layout(was)), "")
