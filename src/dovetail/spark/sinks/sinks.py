"""The sinks of `dt.sinks`; here those in memory, callables, and any Spark data source."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dovetail._display import count_of
from dovetail.errors import ConfigError, DovetailWarning, suggestion, warn
from dovetail.session.unknown_names import checked_call
from dovetail.spark.sinks.delta import DeltaSink
from dovetail.spark.sinks.iceberg import IcebergSink
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.parquet import ParquetSink
from dovetail.spark.sinks.sink import Sink, check_columns
from dovetail.spark.sinks.stage import BATCH_COLUMN
from dovetail.spark.sinks.table import TableSink

WriteMode: TypeAlias = Literal["append", "overwrite"]
"""Modes of Spark's writers; its other ones skip, or fail at, every batch but the first."""


_FUNCTION = "write def write(results, batch_id): ..., then dt.sinks.call(write)"


class MemorySink(Sink):
    """Keep results in the driver, for tests and notebooks; a replayed batch replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, pa.Table] = {}
        self._owner: tuple[str, str] | None = None

    def __repr__(self) -> str:
        rows = sum(batch.num_rows for batch in list(self.batches.values()))
        return f"memory(): {count_of(rows, 'row', 'rows')}"

    def check(self, use: SinkUse) -> None:
        if self._owner is not None and self._owner != (use.owner.checkpoint, use.owner.query):
            raise ConfigError(
                f"query {use.query!r}: its dt.sinks.memory() has been used with another checkpoint or query, whose batches have "
                "the same numbers",
                "give it a dt.sinks.memory() of its own",
            )

    def claim(self, use: SinkUse) -> None:
        self.check(use)
        completed = use.checkpoint.next_batch - 1
        if self._owner is None and completed >= 0 and not use.is_added_later:
            warn(
                f"query {use.query!r}: the checkpoint {use.checkpoint.directory.uri} has completed the batches up to {completed}, "
                "whose results this dt.sinks.memory() does not have\nHint: start with a new checkpoint to read all input again, or "
                "use dt.sinks.parquet(path), which keeps results"
            )
        self._owner = (use.owner.checkpoint, use.owner.query)

    def write(self, results: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = results.toArrow()

    def discard(self, batch_id: int) -> None:
        self.batches.pop(batch_id, None)

    def find(self, condition: pc.Expression) -> pa.Table:
        tables = [
            table.append_column(BATCH_COLUMN, pa.repeat(batch, table.num_rows)) for batch, table in self.batches.items()
        ]
        return (
            pa.concat_tables(tables).filter(condition) if tables else pa.table({BATCH_COLUMN: pa.array([], pa.int64())})
        )

    def table(self) -> pa.Table | None:
        """Return all results so far, or None if no batch had any."""
        return pa.concat_tables(self.batches.values()) if self.batches else None


class CallableSink(Sink):
    """Call `function(results, batch_id)`, with a DataFrame, for every batch that has results."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        if not callable(function):
            raise ConfigError(
                f"dt.sinks.call got {function!r}; expected a function of a DataFrame and a batch id", _FUNCTION
            )
        if (reason := _call_error(function)) is not None:
            raise ConfigError(
                f"dt.sinks.call got {function!r}, which cannot be called with a DataFrame and a batch id: {reason}",
                _FUNCTION,
            )
        self._function = function

    def __repr__(self) -> str:
        return f"call({getattr(self._function, '__name__', self._function)})"

    def write(self, results: DataFrame, batch_id: int) -> None:
        self._function(results, batch_id)


def _call_error(function: Callable[..., Any]) -> str | None:
    """Return why a function cannot be called with two arguments, if that is known."""
    try:
        signature(function).bind(None, 0)
    except TypeError as error:
        return str(error)
    except ValueError:  # some functions of C have no signature
        pass
    return None


class FormatSink(Sink):
    """Write with any Spark data source, with a column `batch_id`; a failure may duplicate a batch."""

    def __init__(self, name: str, mode: WriteMode = "append", **options: str) -> None:
        if mode not in get_args(WriteMode):
            raise ConfigError.choice("dt.sinks.format(mode=...)", mode, get_args(WriteMode))
        if mode == "overwrite" and name != "noop":
            warnings.warn(
                "dt.sinks.format(mode='overwrite'): each batch replaces all that were written before it; use 'append' to keep them",
                DovetailWarning,
                stacklevel=2,
            )
        self._format, self._mode, self._options = name, mode, options

    def __repr__(self) -> str:
        return f"format({self._format!r})"

    def check(self, use: SinkUse) -> None:
        check_columns(use)

    def write(self, results: DataFrame, batch_id: int) -> None:
        tagged = results.withColumn(BATCH_COLUMN, F.lit(batch_id))
        tagged.write.format(self._format).mode(self._mode).options(**self._options).save()


parquet, table, memory, call, format = ParquetSink, TableSink, MemorySink, CallableSink, FormatSink  # noqa: A001
delta, iceberg = DeltaSink, IcebergSink
_NAMES = ("call", "delta", "format", "iceberg", "memory", "parquet", "table")
for _name in _NAMES:
    _sink = globals()[_name]
    _sink.__init__ = checked_call(f"dt.sinks.{_name}", _sink.__init__)


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        hint = suggestion(name, _NAMES, f"the sinks are {', '.join(_NAMES)}")
        if name in ("avro", "console", "csv", "jdbc", "json", "kafka", "orc", "text"):
            hint = f"write dt.sinks.format({name!r}, ...), with the options of Spark's data source"
        raise AttributeError(f"dt.sinks has no attribute {name!r}\nHint: {hint}", name=name, obj=None)


__all__ = [
    "CallableSink",
    "DeltaSink",
    "FormatSink",
    "IcebergSink",
    "MemorySink",
    "ParquetSink",
    "Sink",
    "TableSink",
    "call",
    "delta",
    "format",
    "iceberg",
    "memory",
    "parquet",
    "table",
]
