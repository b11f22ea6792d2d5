"""The streams of a job file: files, generated streams, Kafka, and any other source of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import dovetail as dt
from dovetail import workloads
from dovetail.cli.files.data_file import DataFile
from dovetail.cli.job.toml_table import DURATION, NUMBER, TABLE, TEXT, Kind, TomlTable
from dovetail.errors import listed, suggestion

_KEYS: dict[str, Kind] = {
    "path": TEXT,
    "generator": TEXT,
    "format": TEXT,
    "columns": TEXT,
    "options": TABLE,
    "event_time": TEXT,
    "lateness": DURATION,
    "rate": NUMBER,
    "progress_by": TEXT,
    "idle_after": DURATION,
    "max_ahead": DURATION,
}
_DECLARED = ("lateness", "rate", "progress_by", "idle_after", "max_ahead")
_FILE_FORMATS = ("parquet", "csv", "json", "orc")
_TYPED_FORMATS = ("parquet", "orc")
"""Formats whose files have types."""
_GENERATED_SECONDS = 60.0
"""Seconds of a generated stream that are its first rows."""
_SOURCE_OPTIONS = ("stream", "seconds", "batch_seconds", "partitions")
"""Options of Spark's source of generated streams; all others are settings of the scenario."""


@dataclass(frozen=True)
class StreamSource:
    """A stream of a job file."""

    name: str
    table: TomlTable

    @classmethod
    def of(cls, name: str, table: TomlTable) -> StreamSource:
        """Check the keys of a stream."""
        table.check(_KEYS, () if "generator" in table.content else ("event_time",))
        given = [key for key in ("path", "generator") if key in table.content]
        source = cls(name, table)
        if len(given) > 1:
            raise table.error("generator", f"{table.name}there are both 'path' and 'generator'; give one of the two")
        if not given and "format" not in table.content:
            hint = "add path = 'data/clicks', generator = 'ad_funnel', or format = 'kafka' with options"
            raise table.error(None, f"{table.name}nothing says where the stream is read from", hint)
        if "generator" in given:
            source._check_generator()
        elif "path" in given:
            table.check_choice("format", _FILE_FORMATS)
        if "columns" in table.content:
            with table.located("columns"):
                dt.parse_columns(table.content["columns"])
        elif "path" in given and source.format not in _TYPED_FORMATS:
            raise source._missing_columns()
        elif table.content.get("format") == "kafka":
            hint = "add columns = 'ts timestamp, user_id bigint': those of the JSON objects that the messages hold"
            raise table.error("format", f"{table.name}the key 'columns' is missing, which Kafka does not know", hint)
        return source

    @property
    def format(self) -> str:
        """The name of its format for Spark; that of files follows from their suffix."""
        chosen = self.table.content.get("format")
        if chosen is not None or "path" not in self.table.content:
            return chosen or "dovetail"
        with self.table.located("path"):
            return self._file().format

    @property
    def options(self) -> dict[str, str]:
        """Options for Spark's source, as texts."""
        given = self.table.content.get("options", {})
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        if "generator" in self.table.content:
            return {"scenario": self.table.content["generator"], "stream": self.name, **texts}
        return {"header": "true", **texts} if self.format == "csv" else texts

    @property
    def is_known_locally(self) -> bool:
        """Whether its columns are known without Spark."""
        content = self.table.content
        return "columns" in content or "generator" in content or self._has_files

    def first_rows(self) -> pa.Table | None:
        """Return the first rows; None if only Spark can read them."""
        if "generator" in self.table.content:
            with self.table.located("options"):
                return self._workload().table(self.options["stream"], 0, _GENERATED_SECONDS)
        if not self._has_files:
            return None
        file = DataFile.of(self.name, Path(self.table.location("path")), self.table.content.get("columns"))
        return file.first_rows()

    @property
    def _has_files(self) -> bool:
        """Whether there are local files."""
        return "path" in self.table.content and Path(self.table.location("path")).exists()

    def declare_local(self, session: dt.LocalSession) -> None:
        """Declare the stream in a session in this process, with its columns alone."""
        with self.table.located():
            session.stream(self.name, self._schema(), self._event_time, **self._declared())

    def declare(self, session: Any, spark: Any) -> None:
        """Declare the stream in a session on Spark."""
        with self.table.located():
            session.stream(self.name, self._frame(spark), self._event_time, **self._declared())

    def _declared(self) -> dict[str, Any]:
        content = self.table.content
        declared = {key: content[key] for key in _DECLARED if key in content}
        if "generator" in content:
            stream = self._generated()
            return {"lateness": stream.lateness / 1e6, "rate": stream.rate, **declared}
        return declared

    @property
    def _event_time(self) -> str:
        return str(self.table.content.get("event_time", "ts"))

    def _frame(self, spark: Any) -> Any:
        """Return the streaming DataFrame."""
        columns, reader = (
            self.table.content.get("columns"),
            spark.readStream.format(self.format).options(**self.options),
        )
        if self.format == "kafka":
            quoted = str(columns).replace("'", "\\'")
            frame = reader.load().selectExpr(
                f"from_json(CAST(value AS STRING), '{quoted}') AS v",
                "partition AS kafka_partition",
                "timestamp AS kafka_timestamp",
            )
            return frame.select("v.*", "kafka_partition", "kafka_timestamp")
        if "path" not in self.table.content:
            return (reader if columns is None else reader.schema(columns)).load()
        schema = (
            columns or spark.read.format(self.format).options(**self.options).load(self.table.location("path")).schema
        )
        return reader.schema(schema).load(self.table.location("path"))

    def _schema(self) -> pa.Schema | str:
        """Return the columns without Spark."""
        content = self.table.content
        if "columns" in content:
            kafka = ", kafka_partition int, kafka_timestamp timestamp" if self.format == "kafka" else ""
            return str(content["columns"]) + kafka
        if "generator" in content:
            return self._generated().columns
        if "path" not in content:
            hint = "add columns = 'ts timestamp, ...'"
            raise dt.ConfigError(f"the columns of format {self.format!r} are known to Spark alone", hint)
        return self._file().schema

    def _file(self) -> DataFile:
        return DataFile.of(self.name, Path(self.table.location("path")))

    def _generated(self) -> Any:
        """Return the declared schema of a generated stream."""
        workload = self._workload()
        streams = {stream.name: stream for stream in workload.streams}
        stream = self.options["stream"]
        if stream not in streams:
            hint = suggestion(stream, streams, "say which one: options = { stream = 'NAME' }")
            raise dt.ConfigError(f"{workload.name!r} has no stream {stream!r}; allowed: {listed(streams)}", hint)
        return streams[stream]

    def _workload(self) -> workloads.Workload:
        settings = {key: text for key, text in self.options.items() if key not in {"scenario", *_SOURCE_OPTIONS}}
        return workloads.parse_scenario(self.table.content["generator"], settings)

    def _check_generator(self) -> None:
        self.table.check_choice("generator", list(workloads.SCENARIOS))
        with self.table.located("options" if "options" in self.table.content else "generator"):
            self._generated()

    def _missing_columns(self) -> dt.ConfigError:
        """Return the error of files without types; the hint has the types of the first one."""
        inferred = "ts timestamp, ..."
        with self.table.located("path"):
            inferred = dt.columns_text(self._file().schema)
        message = f"{self.table.name}the key 'columns' is missing; {self.format} files do not have types"
        return self.table.error(
            "path", message, f'add columns = "{inferred}", the types as inferred from the first rows'
        )
