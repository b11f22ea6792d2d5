"""Warnings about calls that pass and have no effect, or another one than meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from dovetail.engine.shard import ShardEngine
from dovetail.engine.time.progress import LATEST
from dovetail.errors import ConfigError, listed, suggestion, warn
from dovetail.plan.needs import Needs, column_name
from dovetail.plan.steps import JoinStep
from dovetail.query.expressions import columns
from dovetail.query.zones import micros_since_epoch
from dovetail.schema import StreamSchema

IMPORT_DATETIME = "; first: from datetime import UTC, datetime"


class TimeArguments:
    """Reads the times that are given to `push` and `advance`; warns once of each kind that is ambiguous."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def clock(self, now: datetime) -> int:
        """Return the clock of a push in microseconds since 1970."""
        if now.tzinfo is None:
            self._warn(
                "push(now=...)",
                f"push(now=...) is {now}, without a time zone: it is read as UTC",
                f"datetime.now(UTC){IMPORT_DATETIME}",
            )
        return micros_of(now)

    def event_times(self, times: Mapping[str, datetime | int], streams: Mapping[str, StreamSchema]) -> dict[str, int]:
        """Return event times of streams in microseconds since 1970."""
        if not isinstance(times, Mapping):
            raise ConfigError(
                f"advance got a {type(times).__name__}; expected {{stream name: time}}",
                f"write advance({{{next(iter(streams), 'stream')!r}: time}})",
            )
        unknown = [stream for stream in times if stream not in streams]
        if unknown:
            raise ConfigError(
                f"advance names {listed(unknown)}; declared streams: {listed(streams)}",
                suggestion(unknown[0], streams, "name declared streams only"),
            )
        micros = {}
        for stream, time in times.items():
            if not isinstance(time, int | datetime) or isinstance(time, bool):
                raise ConfigError(
                    f"advance: the time of {stream!r} is {time!r}; expected a datetime or microseconds since 1970",
                    f"write datetime(2026, 1, 31, 12, 30, tzinfo=UTC){IMPORT_DATETIME}",
                )
            micros[stream] = time if isinstance(time, int) else self._event_time(time, streams[stream])
            if abs(micros[stream]) > LATEST:
                raise ConfigError(f"advance: the time of {stream!r} is out of range: {time!r}")
        return micros

    def _event_time(self, time: datetime, stream: StreamSchema) -> int:
        if time.tzinfo is None and stream.time_zone_aware:
            example = f"{_without_zone(time)!r}".removesuffix(")") + ", tzinfo=datetime.UTC); first: import datetime"
            text = f"advance: the time of {stream.name!r} is {time}, without a time zone: it is read as UTC"
            self._warn("advance", text, example)
        elif time.tzinfo is not None and not stream.time_zone_aware and time.utcoffset():
            text = (
                f"advance: the time of {stream.name!r} is {time}, with a time zone, and its event times have none: "
                f"it is read as {time.astimezone(UTC).replace(tzinfo=None)}"
            )
            self._warn("advance with a zone", text, f"{_without_zone(time)!r}; first: import datetime")
        return micros_of(time)

    def _warn(self, kind: str, text: str, example: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn(f"{text}\nHint: write {example}")


def _without_zone(time: datetime) -> datetime:
    """Return the wall-clock reading of a time as a plain datetime, also if it is one of pandas."""
    return datetime.combine(time.date(), time.time())


def micros_of(moment: datetime) -> int:
    """Return a time in microseconds since 1970; one without a zone is read as UTC."""
    return micros_since_epoch(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def invisible_to_backfill(step: JoinStep, engine: ShardEngine) -> Iterator[str]:
    """Yield a warning if windows lack columns that a query with backfill needs of tuples from before it."""
    kept: dict[str, Needs] = {}
    for run in engine.runs:
        for source in run.step.sources:
            kept.setdefault(source.stream, Needs()).update(run.step.needs.sources[source.name])
    reasons = []
    for source in step.sources:
        if not engine.progress[source.stream].arrived:
            continue
        if source.stream not in kept:
            reasons.append(f"no query read stream {source.stream!r} before")
            continue
        needs, known = step.needs.sources[source.name], kept[source.stream]
        computed = {name: e for name, e in needs.columns.items() if name not in known.columns}
        computed |= {name: e for name, e in needs.parts.items() if name not in known.parts}
        inputs = {column.name: column_name(column) for e in computed.values() for column in columns(e)}
        time = engine.streams[source.stream].event_time
        missing = sorted(name for name, held in inputs.items() if held not in known.columns and name != time)
        if missing:
            reasons.append(f"windows of {source.stream!r} did not keep {listed(missing)}")
    if reasons:
        yield (
            f"query {step.name!r}: backfill=True shows less than you may expect, because {'; '.join(dict.fromkeys(reasons))}\n"
            "Hint: register it, or a query that selects these columns, before the first batch; the call returns how far backfill "
            "reaches"
        )
