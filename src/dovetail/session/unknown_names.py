"""Errors for unknown or missing arguments and methods of the public classes, with what is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar

from dovetail.errors import ConfigError, listed, suggestion

_C = TypeVar("_C", bound=type)
OUTERMOST = "_outermost"
"""Attribute of a method whose decorator no other may wrap: that decorator."""
_IN_QUERY = "windows are part of the query: FROM stream alias [RANGE 1 HOUR]"
_MEANT = {
    **dict.fromkeys(("watermark", "delay", "max_delay", "allowed_lateness", "delay_threshold"), "lateness"),
    **dict.fromkeys(("timestamp", "time", "ts", "time_column", "timestamp_column", "event_time_column"), "event_time"),
    **dict.fromkeys(("checkpoint_location", "checkpointLocation", "checkpoint_dir", "path"), "checkpoint"),
    **dict.fromkeys(("partitions", "parallelism", "num_shards"), "shards"),
    **dict.fromkeys(("table", "df", "dataframe", "source"), "frame"),
    **dict.fromkeys(("output", "outputs", "sink"), "sinks"),
    **dict.fromkeys(("tables", "data", "batches"), "batch"),
    "query": "sql",
}
"""Names in other systems, and the argument that has this meaning here."""
_TRIGGERS = {
    **dict.fromkeys(("availableNow", "available_now"), '{"availableNow": True}'),
    **dict.fromkeys(("processingTime", "processing_time", "interval"), '{"processingTime": "10 seconds"}'),
    "once": '{"once": True}',
}
"""By trigger of Spark, what to write for the argument `trigger`."""
_EXAMPLES = {
    "spark": "spark=dt.spark.session()",
    "frame": "frame=spark.readStream...",
    "schema": "schema=table.schema",
    "event_time": 'event_time="ts"',
    "sql": 'sql="SELECT ..."',
    "sinks": 'sinks={"q": dt.sinks.parquet("out/q")}',
    "sink": 'sink=dt.sinks.parquet("out/q")',
    "checkpoint": 'checkpoint="out/checkpoint"',
    "path": 'path="out/results"',
}
"""What to write for an argument that is missing."""

_ON_SPARK = "LocalSession runs in this process: push() returns the results; on Spark use dt.Session(spark)"
LOCAL_ELSEWHERE = {
    **dict.fromkeys(("start", "dataframe", "compare", "await_termination", "readStream", "writeStream"), _ON_SPARK),
    **dict.fromkeys(("stop", "close"), "a LocalSession needs no end: let go of it, or keep its snapshot()"),
    **dict.fromkeys(("sql", "register", "create_query"), "query(name, sql) registers a query"),
    **dict.fromkeys(
        ("add_stream", "table", "source", "register_stream"), "stream(name, schema, event_time) declares a stream"
    ),
    **dict.fromkeys(
        ("results", "result", "collect", "fetch", "show", "to_pandas", "to_arrow"),
        'push() returns the results: session.push(batch)["query"]',
    ),
    **dict.fromkeys(("queries", "streams", "plan"), "explain() shows streams, queries and the plan"),
    **dict.fromkeys(("watermark", "watermarks", "lag", "progress", "status"), "metrics() has them, by stream"),
    **dict.fromkeys(("send", "insert", "append", "feed", "process", "run"), "push({stream: table}) joins a batch"),
}
"""Hints for attributes that a `LocalSession` lacks, by name."""


def reject_unknown_arguments(cls: _C) -> _C:
    """Make the public methods of a class reject unknown and missing arguments with a hint.

    Where a decorator must stay outermost, the check is inside it.
    """
    members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
    for name, method in members.items():
        if isfunction(method) and (not name.startswith("_") or name == "__init__"):
            outermost = vars(method).get(OUTERMOST)
            call = cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"
            checked = checked_call(call, vars(method)["__wrapped__"] if outermost else method)
            setattr(cls, name, outermost(checked) if outermost else checked)
    return cls


def checked_call(call: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that rejects unknown, missing and excess arguments; errors name it `call`."""
    names = [parameter for parameter in signature(method).parameters if parameter != "self"]
    known = frozenset(names)
    parameters = signature(method).parameters
    if any(p.kind in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL) for p in parameters.values()):
        return method
    most = sum(p.kind is not Parameter.KEYWORD_ONLY for p in parameters.values()) - ("self" in parameters)
    required = [parameter for parameter in names if parameters[parameter].default is Parameter.empty]

    @wraps(method)
    def checked(self: Any, /, *args: Any, **options: Any) -> Any:
        if options and not known.issuperset(options):
            raise _unknown_argument(call, options, names)
        if len(args) > most:
            raise _too_many_arguments(call, args[most:], names[:most], names[most:])
        if len(args) < len(required) and (missing := known.intersection(required) - {*options, *names[: len(args)]}):
            raise _missing_arguments(call, [parameter for parameter in required if parameter in missing])
        return method(self, *args, **options)

    return checked


def _unknown_argument(call: str, options: Mapping[str, Any], names: list[str]) -> ConfigError:
    unknown = next(name for name in options if name not in names)
    meant = _MEANT.get(unknown)
    if call.endswith(".push") and meant is None:
        hint = f"push takes one dict: push({{{unknown!r}: table}})"
    elif unknown in ("window", "windows"):
        hint = _IN_QUERY
    elif unknown in _TRIGGERS and "trigger" in names:
        hint = f"write trigger={_TRIGGERS[unknown]}"
    elif meant in names:
        hint = f"write {meant}=..."
    else:
        hint = suggestion(unknown, names, "help() lists them")
    return ConfigError(f"{call}({unknown}=...): there is no such argument; allowed: {listed(names)}", hint)


def _missing_arguments(call: str, missing: Sequence[str]) -> ConfigError:
    examples = ", ".join(_EXAMPLES.get(name, f"{name}=...") for name in missing)
    plural = "s" if len(missing) > 1 else ""
    return ConfigError(f"{call}() needs the argument{plural} {listed(missing)}", f"write {examples}")


def _too_many_arguments(
    call: str, excess: Sequence[object], positional: Sequence[str], by_name: Sequence[str]
) -> ConfigError:
    """Return the error for arguments after the last one that needs no name."""
    takes = (
        f"at most {len(positional)} arguments without a name, {listed(positional)}" if positional else "no arguments"
    )
    hint = f"write {by_name[0]}=..." if by_name else "leave out the rest"
    if call.endswith(".explain"):
        hint = "write explain().to_dict() for data, explain().mermaid() for a diagram"
    return ConfigError(f"{call}() takes {takes}; got {len(positional) + len(excess)}", hint)


def missing_attribute(owner: type, name: str, elsewhere: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that a class lacks; `elsewhere` has hints by name."""
    public = [attribute for attribute in dir(owner) if not attribute.startswith("_")]
    message = f"{owner.__name__} has no attribute {name!r}"
    hint = elsewhere.get(name)
    if hint is None and not name.startswith("_"):
        hint = suggestion(name, public, "")
    return AttributeError(f"{message}\nHint: {hint}" if hint else message, name=name, obj=None)
