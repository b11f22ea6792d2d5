"""The session time zone, in which constants such as `TIMESTAMP '2024-01-31 12:30:00'` are read.

It is Spark's session time zone, or UTC in a LocalSession. Constants become instants exactly as in Spark: a local time in
a gap moves forward by the length of the gap, an ambiguous one is the earlier. Operations that need the zone for every
tuple are rejected unless the zone is UTC or, where only changes of the offset matter, has had a fixed offset since 1970:
Arrow knows no changes after 2037. A query records the zone only if its meaning depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import cache
from zoneinfo import ZoneInfo

import pyarrow as pa

from dovetail.errors import QueryError
from dovetail.query.expressions import Literal
from dovetail.schema import type_name

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_WITH_ZONE = re.compile(r"(\d{4}-\d{2}-\d{2}(?:[ T][\d:.]+)?)\s*([A-Za-z].*|[+-].*)")
_IN_UTC = "or set spark.sql.session.timeZone to UTC before the query is registered"


class SessionZone:
    """A time zone by Spark's name, and whether the query depends on it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.zone = find_zone(name)
        self.is_utc = self.zone is UTC
        self.used = False

    def instant(self, moment: datetime) -> int:
        """Return the microseconds since 1970 of a local time in this zone."""
        self.used = self.used or not self.is_utc
        if self.zone is None:
            hint = "name it as Area/City or as an offset such as +05:30, " + _IN_UTC
            raise QueryError(f"the session's time zone {self.name!r} is unknown", hint)
        return micros_since_epoch(moment.replace(tzinfo=self.zone))

    def start_of(self, day: date) -> int:
        """Return the first instant of a day; where clocks skip midnight, that is the moment of the change."""
        midnight = datetime.combine(day, time())
        late = self.instant(midnight)
        early = self.instant(midnight.replace(fold=1))
        while late - early > 1 and early < late:  # midnight is in a gap: search for the change between the two offsets
            middle = (early + late) // 2
            local = (_EPOCH + timedelta(microseconds=middle)).astimezone(self.zone).replace(tzinfo=None)
            early, late = (middle, late) if local < midnight else (early, middle)
        return late

    def reject_for_columns(self, operation: str) -> None:
        """Reject an operation that needs the zone for every tuple."""
        if not self.is_utc:
            hint = f"compute it in a column before the stream enters the join, e.g. with F.to_date, {_IN_UTC}"
            raise QueryError(f"{operation} depends on the session's time zone {self.name!r}", hint)

    def reject_if_not_fixed(self, problem: str, hint: str) -> None:
        """Reject an operation that Spark computes in local time, if the zone's offset ever changes."""
        if self.zone is None or not has_fixed_offset(self.zone):
            raise QueryError(f"{problem} in the session's time zone {self.name!r}", f"{hint}, {_IN_UTC}")


_CURRENT: ContextVar[SessionZone | None] = ContextVar("session zone", default=None)


@contextmanager
def session_time_zone(name: str) -> Iterator[SessionZone]:
    """Set the time zone in which constants are read."""
    zone = SessionZone(name)
    token = _CURRENT.set(zone)
    try:
        yield zone
    finally:
        _CURRENT.reset(token)


def session_zone() -> SessionZone:
    """Return the zone of the query that is being parsed."""
    return _CURRENT.get() or SessionZone("UTC")


@cache
def find_zone(name: str) -> tzinfo | None:
    """Return the zone that Spark means by a name; None if that is uncertain.

    Names without an area, such as EST, differ between Java and the time zone database.
    """
    if name in ("UTC", "GMT", "UT", "Z", "Etc/UTC"):
        return UTC
    match = _OFFSET.fullmatch(name)
    if match is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        size = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if size > timedelta(hours=18) or minutes > 59 or seconds > 59:
            return None
        return timezone(-size if match[1] == "-" else size)
    try:
        return ZoneInfo(name) if "/" in name else None
    except (ValueError, OSError, KeyError):
        return None


@cache
def has_fixed_offset(zone: tzinfo) -> bool:
    """Whether a zone's offset does not change between 1970 and 2100."""
    days = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(47_482))
    return isinstance(zone, timezone) or len({day.astimezone(zone).utcoffset() for day in days}) == 1


def micros_since_epoch(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _read(text: str) -> tuple[datetime, bool]:
    """Return a date and time, and whether the text names a zone.

    Raise `ValueError` if it is no date and time.
    """
    text = text.strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        match = _WITH_ZONE.fullmatch(text)
        zone = find_zone(match[2]) if match is not None else None
        if match is None or zone is None:
            raise
        moment = datetime.fromisoformat(match[1]).replace(tzinfo=zone)
    return moment, moment.tzinfo is not None


def moment_literal(text: str, dtype: pa.DataType) -> Literal:
    """Parse text as a DATE, TIMESTAMP or TIMESTAMP_NTZ; a timestamp without a zone is in the session's."""
    try:
        if pa.types.is_date(dtype):
            return Literal(date.fromisoformat(text.strip()), dtype)
        moment, has_zone = _read(text)
    except ValueError:
        raise QueryError(
            f"{text!r} is not a {type_name(dtype)}", "write '2024-01-31' or '2024-01-31 12:30:00.5'"
        ) from None
    if has_zone and dtype.tz is None:
        raise QueryError(f"{text!r} names a time zone, a timestamp_ntz has none", "write TIMESTAMP, or drop the zone")
    if dtype.tz is not None and not has_zone:
        return Literal(session_zone().instant(moment), dtype)
    return Literal(micros_since_epoch(moment if has_zone else moment.replace(tzinfo=UTC)), dtype)
