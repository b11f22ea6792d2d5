"""Checks of the arguments of a `Session`: an error names the argument and shows what to write instead."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DataType, IntegralType, StringType, TimestampNTZType, TimestampType

from dovetail.config import is_number
from dovetail.errors import ConfigError, SchemaError, listed, suggestion, warn, with_imports
from dovetail.query.durations import parse_duration
from dovetail.spark.driver.builder import check_session
from dovetail.spark.sinks.sinks import MemorySink, Sink
from dovetail.spark.wire import DROPPED

_DELAY = "spark.watermarkDelayMs"
"""Metadata that `withWatermark` gives its column."""
_MAX_SHARDS = 10_000
_MANY_SHARDS, _MANY_PER_CORE = 64, 8
"""A default number of shards above both limits is worth a warning."""
_TRIGGERS = ("processingTime", "availableNow", "once")
_TRIGGER_HINT = (
    'write {"availableNow": True} to read what is there and end, or {"processingTime": "10 seconds"}; '
    "omit it to start each batch when the previous one ends"
)


ELSEWHERE = {
    **dict.fromkeys(
        ("push", "push_iter", "advance"),
        "on Spark tuples come from the frames of streams: start(...); push() is of dt.LocalSession",
    ),
    **dict.fromkeys(
        ("add_query", "drop_query", "metrics", "stop", "await_termination", "awaitTermination", "watch"),
        "that is a method of what start(...) returns: running = session.start(...)",
    ),
    **dict.fromkeys(
        ("snapshot", "restore"), "on Spark the checkpoint holds the state: start(sinks, checkpoint) continues from it"
    ),
    **dict.fromkeys(("sql", "register", "create_query"), "query(name, sql) registers a query"),
    **dict.fromkeys(
        ("writeStream", "run", "execute"), "start(sinks, checkpoint) runs all queries; dataframe(name) gives a frame"
    ),
}
"""Hints for methods of `LocalSession`, of running sessions and of Spark, by name."""
RUNNING_ELSEWHERE = {
    **dict.fromkeys(("push", "push_iter", "advance"), "on Spark tuples come from the frames of streams"),
    **dict.fromkeys(
        ("stream", "selectivity", "start", "dataframe", "compare"),
        "that is a method of dt.Session; streams and selectivities cannot be added to a job that runs",
    ),
    **dict.fromkeys(("snapshot", "restore"), ELSEWHERE["snapshot"]),
    **dict.fromkeys(("sql", "register", "create_query"), "add_query(name, sql, sink) adds a query"),
    **dict.fromkeys(("remove_query", "delete_query", "cancel_query"), "drop_query(name) stops a query"),
    **dict.fromkeys(("close", "cancel", "terminate", "shutdown"), "stop() ends the job"),
    **dict.fromkeys(("join", "wait", "result", "processAllAvailable"), "await_termination() waits until the job ends"),
    **dict.fromkeys(
        ("results", "collect", "show", "toPandas", "to_pandas", "to_arrow"),
        "results are in the sinks that start(...) was given",
    ),
    **{
        name: f"that is a property of Spark's query: write running.query.{name}"
        for name in ("isActive", "status", "lastProgress", "recentProgress", "id", "runId", "name", "exception")
    },
}
"""Hints for methods of sessions that do not run, and of Spark's streaming query, by name."""


def check_spark(spark: Any, caller: str = "Session") -> None:
    """Refuse anything but a SparkSession that runs."""
    if not (hasattr(spark, "conf") and hasattr(spark, "readStream")):
        cores = re.fullmatch(r"local\[(\d+|\*)\S*", spark) if isinstance(spark, str) else None
        made = f"cores={cores[1] if cores[1].isdigit() else repr(cores[1])}" if cores else ""
        raise ConfigError(
            f"{caller}(spark=...) is {_described(spark)}; expected a SparkSession",
            f"write dt.{caller}(dt.spark.session({made}){', ...' if caller != 'Session' else ''})",
        )
    check_not_stopped(spark)


def check_not_stopped(spark: Any) -> None:
    """Refuse a Spark session that has been stopped."""
    if _is_stopped(spark):
        raise ConfigError(
            "the Spark session has been stopped",
            "make a new one, spark = dt.spark.session(), and declare streams and queries again on dt.Session(spark)",
        )


def _is_stopped(spark: Any) -> bool:
    context = getattr(spark, "sparkContext", None)  # a Connect session has none
    return context is not None and context._jsc is None  # noqa: SLF001 - Spark has no public name for it


def warn_of_many_shards(spark: Any, shards: int) -> None:
    """Warn of a default number of shards far above the number of cores."""
    context = getattr(spark, "sparkContext", None)
    cores = context.defaultParallelism if context is not None else None
    if cores is not None and shards > max(_MANY_SHARDS, _MANY_PER_CORE * cores):
        warn(
            f"the session has {shards} shards, twice spark.sql.shuffle.partitions, for {cores} cores; each shard and each partition "
            f"costs time in every batch\nHint: spark.conf.set('spark.sql.shuffle.partitions', {cores}), then "
            f"dt.Session(spark, shards={2 * cores}); a checkpoint keeps its number of shards"
        )


def watermark_delay(name: str, frame: DataFrame, event_time: str) -> timedelta:
    """Return the delay of the watermark that a frame has on its event time; zero if it has none."""
    delays = {f.name: f.metadata[_DELAY] for f in frame.schema if f.metadata and _DELAY in f.metadata}
    if delays and event_time not in delays:
        warn(
            f"stream {name!r}: the frame has a watermark on {listed(delays)}, which is not its event time {event_time!r}: its "
            f"lateness is 0 s\nHint: write stream(..., lateness='{_seconds(min(delays.values()))}')"
        )
    return timedelta(milliseconds=delays.get(event_time, 0))


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} seconds"


def check_dropped(dropped: Any, sinks: Mapping[str, Sink]) -> dict[str, Sink]:
    """Return the sinks and that of dropped tuples; refuse anything but a sink of its own."""
    if dropped is None:
        return dict(sinks)
    if not isinstance(dropped, Sink):
        raise ConfigError(f"start(dropped=...) is {_described(dropped)}; expected a sink", _sink_hint(dropped))
    if DROPPED in sinks or any(sink is dropped for sink in sinks.values()):
        name = next(name for name, sink in sinks.items() if name == DROPPED or sink is dropped)
        raise ConfigError(
            f"start(dropped=...) needs a sink of its own; query {name!r} has this one or its name",
            "write dropped=dt.sinks.parquet('out/dropped'), for example",
        )
    return {**sinks, DROPPED: dropped}


def check_sinks(sinks: Any, queries: Iterable[str]) -> dict[str, Sink]:
    """Return the sinks; refuse anything but one sink for each query."""
    queries = list(queries)
    example = f"{{{(queries or ['query'])[0]!r}: dt.sinks.parquet('out')}}"
    if not isinstance(sinks, Mapping):
        raise ConfigError(
            f"start(sinks=...) is {_described(sinks)}; expected a dict from the name of each query to its sink",
            f"write {example}",
        )
    unknown = [name for name in sinks if name not in queries]
    missing = [name for name in queries if name not in sinks]
    if unknown or missing or not sinks:
        hint = "give each query one sink"
        if unknown:
            hint = suggestion(str(unknown[0]), queries, hint)
        raise ConfigError(f"start got sinks for {listed(sinks)}; registered queries: {listed(queries)}", hint)
    for name, sink in sinks.items():
        if not isinstance(sink, Sink):
            raise ConfigError(f"sinks[{name!r}] is {_described(sink)}; expected a sink", _sink_hint(sink))
    memory_sinks = [sink for sink in sinks.values() if isinstance(sink, MemorySink)]
    if len({id(sink) for sink in memory_sinks}) < len(memory_sinks):
        raise ConfigError("start got one dt.sinks.memory() for several queries", "give each query its own")
    return dict(sinks)


def check_shards(caller: str, shards: Any) -> int:
    """Return the number of shards; refuse one that is out of range."""
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= _MAX_SHARDS:
        raise ConfigError(f"{caller}(shards={shards!r}): it must be a whole number from 1 to {_MAX_SHARDS:,}")
    return shards


def check_checkpoint(checkpoint: Any, argument: str = "start(checkpoint=...)") -> str:
    """Return the path of a checkpoint as text; error messages call it `argument`."""
    if isinstance(checkpoint, str | os.PathLike) and os.fspath(checkpoint):
        return str(os.fspath(checkpoint))
    raise ConfigError(
        f"{argument} is {_described(checkpoint)}; expected the path of a checkpoint directory",
        'write "out/checkpoint", for example',
    )


def check_trigger(trigger: Any) -> dict[str, Any]:
    """Return the options of `writeStream.trigger`; without any, batches follow each other at once."""
    if trigger is None:
        return {}
    if not isinstance(trigger, Mapping):
        raise ConfigError(f"start(trigger=...) is {_described(trigger)}; expected a dict with one entry", _TRIGGER_HINT)
    for name in trigger:
        if name not in _TRIGGERS:
            raise ConfigError(
                f"start(trigger=...) has the entry {name!r}; allowed: {listed(_TRIGGERS)}, as joins run in micro-batches",
                suggestion(str(name), _TRIGGERS, _TRIGGER_HINT),
            )
    for name, value in trigger.items():
        if not (isinstance(value, str) and value) if name == "processingTime" else value is not True:
            expected = "text such as '10 seconds'" if name == "processingTime" else "True"
            raise ConfigError(
                f"start(trigger={{{name!r}: ...}}) is {_described(value)}; expected {expected}", _TRIGGER_HINT
            )
    if len(trigger) > 1:
        raise ConfigError(f"start(trigger=...) has the entries {listed(trigger)}; give exactly one", _TRIGGER_HINT)
    return dict(trigger)


def check_timeout(timeout: Any) -> float | None:
    """Return the timeout in seconds; refuse anything but a number or None."""
    if timeout is None:
        return None
    if is_number(timeout) and timeout >= 0:
        return float(timeout)
    hint = "write await_termination(60), for example"
    if isinstance(timeout, str | timedelta):
        with suppress(ConfigError):
            hint = f"write await_termination({parse_duration(timeout) / 1_000_000:g})"
    raise ConfigError(f"await_termination(timeout=...) is {_described(timeout)}; expected a number of seconds", hint)


def with_trigger(writer: DataStreamWriter, trigger: Mapping[str, Any]) -> DataStreamWriter:
    """Return `writer` with a trigger from `check_trigger`; only Spark can check the text of its interval."""
    try:
        return writer.trigger(**trigger) if trigger else writer
    except PySparkException as error:
        raise ConfigError(f"start(trigger={dict(trigger)!r}): {str(error).splitlines()[0]}", _TRIGGER_HINT) from error


def check_frame(name: str, frame: Any, event_time: str, spark: SparkSession) -> None:
    """Refuse anything but a streaming DataFrame, of a usable session, whose event time is a timestamp."""
    if not isinstance(frame, DataFrame):
        raise ConfigError(
            f"stream {name!r}: got {_described(frame)}; expected a streaming DataFrame", "read it with spark.readStream"
        )
    if _is_stopped(frame.sparkSession):
        raise ConfigError(
            f"stream {name!r}: its DataFrame was read with a SparkSession that has been stopped",
            "make the frame again with the session that runs: frame = spark.readStream...",
        )
    if not frame.isStreaming:
        raise ConfigError(
            f"stream {name!r}: the DataFrame is not streaming",
            "read it with spark.readStream; a table that does not change is no stream: join it to a stream's frame first, "
            "session.stream(name, stream_frame.join(static_frame, 'key'), ...)",
        )
    _check_session_of(name, frame, spark)
    kinds = {field.name: field.dataType for field in frame.schema}
    if event_time not in kinds:
        times = [column for column, dtype in kinds.items() if isinstance(dtype, TimestampType | TimestampNTZType)]
        raise SchemaError(
            f"stream {name!r}: event_time={event_time!r} is not a column; columns: {listed(kinds)}",
            suggestion(event_time, kinds, f"timestamp columns: {listed(times)}"),
        )
    kind = kinds[event_time]
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise SchemaError(
            f"stream {name!r}: event time {event_time!r} is {kind.simpleString()}; it must be a timestamp",
            _conversion_hint(kind, event_time),
        )


def _check_session_of(name: str, frame: DataFrame, spark: SparkSession) -> None:
    """Refuse a frame of another session that the check of sessions would refuse.

    Spark runs a query with the options of its frames' session.
    """
    if frame.sparkSession is spark:
        return
    try:
        check_session(frame.sparkSession)
    except ConfigError as error:
        raise ConfigError(
            f"stream {name!r}: its DataFrame was read with another SparkSession than the one given to dt.Session, and Spark would "
            f"run the join with that one's options: {error.message}",
            "read the frame with the session that was given to dt.Session: spark = dt.spark.session(); session = dt.Session(spark); "
            "spark.readStream...",
        ) from error


def _conversion_hint(kind: DataType, column: str) -> str:
    note = ""
    if isinstance(kind, StringType):
        timestamp = f"F.to_timestamp({column!r})"
    elif isinstance(kind, IntegralType):
        timestamp = f"F.timestamp_millis({column!r})"
        note = " for milliseconds since 1970; F.timestamp_seconds for seconds, F.timestamp_micros for microseconds"
    else:
        timestamp = f"F.col({column!r}).cast('timestamp')"
    return with_imports(f"convert it first: frame.withColumn({column!r}, {timestamp}){note}")


def _sink_hint(value: object) -> str:
    if isinstance(value, str | os.PathLike):
        return f"for a directory write dt.sinks.parquet({os.fspath(value)!r}), for a table dt.sinks.table({os.fspath(value)!r})"
    if callable(value):
        return "write dt.sinks.call(function)"
    return "write dt.sinks.parquet(path), table(name), memory(), call(function) or format(name)"


def _described(value: object) -> str:
    """Return the type of a value, and the value itself if it is short."""
    text, kind = repr(value), type(value).__name__
    return kind if value is None or len(text) > 60 else f"{text} ({kind})"
