"""Generated streams as a Spark source: `spark.readStream.format("dovetail")`.

`register_workloads(spark)` registers the format. Each micro-batch covers the same number of seconds of arrival time, so that the
streams of a workload stay in step; its offset is the end of that range. Tuples depend only on the settings and on their time, never on
batches, partitions or workers: a query that restarts from its checkpoint reads exactly the tuples it would have read. Offsets also
hold a digest of the settings, so that a restart with other settings is refused.

Tasks generate the tuples, as Arrow; the driver handles offsets only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from dovetail.errors import ConfigError, StateError, listed
from dovetail.spark.compat import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    check_generated_source,
)
from dovetail.workloads import SCENARIOS, Workload, parse_scenario

FORMAT = "dovetail"
SECOND = 1_000_000
SOURCE_OPTIONS = ("scenario", "stream", "seconds", "batch_seconds", "partitions")
"""Options of the source; all others are settings of the scenario."""
_FRAME_ROWS = 1 << 16


def register_workloads(spark: SparkSession, *workloads: Workload) -> None:
    """Register the format `dovetail` with a Spark session, for the ready-made workloads and for your own.

    Parameters
    ----------
    spark
        The session that will read generated streams.
    workloads
        Your own workloads, which the option `scenario` then also accepts by name.
    """
    check_generated_source()
    reserved = [workload.name for workload in workloads if workload.name in SCENARIOS]
    if reserved:
        raise ConfigError(f"workloads named {listed(reserved)}; these names belong to ready-made ones", "rename yours")
    custom = {workload.name: workload for workload in workloads}
    # Spark pickles a dynamic class by value, so the workloads reach the workers with it.
    spark.dataSource.register(
        type("CustomSource", (GeneratedSource,), {"custom": custom}) if custom else GeneratedSource
    )


@lru_cache(maxsize=16)
def _ready_made(scenario: str, settings: tuple[tuple[str, str], ...]) -> Workload:
    """Return one workload for all tasks of a worker, which shares its cache of generated blocks."""
    return parse_scenario(scenario, dict(settings))


@dataclass(frozen=True)
class _Options:
    """Parsed options of the source."""

    scenario: str
    settings: tuple[tuple[str, str], ...]
    stream: str
    batch: int
    """Microseconds of a micro-batch."""
    end: int | None
    """Microseconds after which the stream ends."""
    partitions: int
    custom: Mapping[str, Workload]

    @classmethod
    def parse(cls, texts: Mapping[str, str], custom: Mapping[str, Workload]) -> _Options:
        texts = dict(texts)
        if "scenario" not in texts:
            raise ConfigError(
                f"format('{FORMAT}'): option 'scenario' is missing; allowed: {listed([*SCENARIOS, *custom])}"
            )
        scenario = texts["scenario"]
        settings = {name: text for name, text in texts.items() if name not in SOURCE_OPTIONS}
        if scenario in custom and settings:
            raise ConfigError(f"format('{FORMAT}'): workload {scenario!r} has no settings; found: {listed(settings)}")
        seconds = _positive(texts, "seconds", None)
        options = cls(
            scenario,
            tuple(sorted(settings.items())),
            texts.get("stream", ""),
            round((_positive(texts, "batch_seconds", 10.0) or 0) * SECOND),
            None if seconds is None else round(seconds * SECOND),
            int(_positive(texts, "partitions", 1) or 1),
            custom,
        )
        names = [stream.name for stream in options.workload.streams]
        if options.stream not in names:
            raise ConfigError.choice(f"format('{FORMAT}'): option 'stream'", texts.get("stream"), names)
        return options

    @property
    def workload(self) -> Workload:
        return self.custom.get(self.scenario) or _ready_made(self.scenario, self.settings)

    @property
    def digest(self) -> str:
        """Digest of the settings; offsets store it, so names of classes and fields of workloads must stay."""
        text = repr((self.workload, self.stream))
        return sha256(text.encode()).hexdigest()[:16]


def _positive(texts: Mapping[str, str], name: str, default: float | None) -> float | None:
    if name not in texts:
        return default
    try:
        value = float(texts[name])
    except ValueError:
        value = 0.0
    if not (0 < value < float("inf")) or (name == "partitions" and value != int(value)):
        kind = "a whole number" if name == "partitions" else "a number"
        raise ConfigError(f"format('{FORMAT}'): option {name!r} is {texts[name]!r}; it must be {kind} above zero")
    return value


class GeneratedSource(DataSource):
    """Spark data source of one stream of a workload, in order of arrival."""

    custom: ClassVar[Mapping[str, Workload]] = {}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the stream's columns."""
        options = self._options()
        return options.workload.sql_columns(options.stream)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Read the stream as a table; it must have an end."""
        return _TableReader(self._options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Read the stream as a stream."""
        return _StreamReader(self._options())

    def _options(self) -> _Options:
        return _Options.parse(self.options, type(self).custom)


@dataclass
class _Range(InputPartition):
    """A range of arrival times, in microseconds."""

    first: int
    last: int


def _ranges(first: int, last: int, partitions: int) -> list[_Range]:
    bounds = [first + (last - first) * number // partitions for number in range(partitions + 1)]
    return [_Range(begin, end) for begin, end in pairwise(bounds) if begin < end]


def _frames(options: _Options, part: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(part, _Range):
        yield from options.workload.arrived(options.stream, part.first, part.last).to_batches(_FRAME_ROWS)


class _TableReader(DataSourceReader):
    def __init__(self, options: _Options) -> None:
        if options.end is None:
            raise ConfigError(
                f"format('{FORMAT}'): option 'seconds' is missing; a table must have an end",
                "spark.readStream needs none",
            )
        self._options, self._end = options, options.end

    def partitions(self) -> Sequence[InputPartition]:
        return _ranges(0, self._end, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _frames(self._options, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: _Options) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark limits rows, not time. This number is only a hint: `latestOffset` always adds one batch of seconds.
        rate = self._options.workload.rate(self._options.stream)
        return ReadMaxRows(max(1, round(rate * self._options.batch / SECOND)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        first, end = self._arrived(start), self._options.end
        if isinstance(limit, ReadAllAvailable) and end is not None:
            return self._offset(max(first, end))
        last = first + self._options.batch
        return self._offset(last if end is None else max(first, min(last, end)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        if self._options.end is None:
            raise ConfigError(
                f"format('{FORMAT}'): option 'seconds' is missing; trigger availableNow ends when all has been read",
                "give .option('seconds', 60), or use trigger processingTime",
            )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _ranges(self._arrived(start), self._arrived(end), self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _frames(self._options, partition)

    def _offset(self, arrived: int) -> dict[str, Any]:
        return {"arrived": arrived, "settings": self._options.digest}

    def _arrived(self, offset: dict[str, Any]) -> int:
        if offset.get("settings") != self._options.digest:
            raise StateError(
                f"format('{FORMAT}'): the checkpoint has read stream {self._options.stream!r} with settings "
                f"{offset.get('settings')!r}, and these are {self._options.digest!r}: the rest would not fit",
                "use the options that the query was started with, or a new checkpoint",
            )
        return int(offset["arrived"])
