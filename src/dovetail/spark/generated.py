"""Generated streams as a Spark source: `spark.readStream.format("dovetail")`, once `register_workloads` has made it known.

A micro-batch is a range of arrival times, the same number of seconds each, so that streams of one workload stay in step. Its offset
is where that range ends. Tuples depend on the settings and on their place in time only, never on batches, partitions or workers: a
query that starts again from its checkpoint reads exactly what it would have read. So that this cannot go wrong unseen, offsets also
hold a digest of the settings, and other settings are refused.

Batches of tuples are drawn by the tasks, as Arrow; the driver handles offsets only.
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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dovetail.errors import ConfigError, StateError, listed
from dovetail.workloads import SCENARIOS, Workload, parsed_scenario

FORMAT = "dovetail"
SECOND = 1_000_000
OWN = ("scenario", "stream", "seconds", "batch_seconds", "partitions")
"""Options of the source; all others are settings of the scenario."""
_FRAME_ROWS = 1 << 16


def register_workloads(spark: SparkSession, *own: Workload) -> None:
    """Make `spark.readStream.format("dovetail")` known to a session; also for workloads of your own, by their names.

    Parameters
    ----------
    spark
        The session that is to read generated streams.
    own
        Workloads that the option `scenario` may name beside the ready-made ones.
    """
    taken = [workload.name for workload in own if workload.name in SCENARIOS]
    if taken:
        raise ConfigError(f"workloads named {listed(taken)}; these names belong to ready-made ones", "rename yours")
    named = {workload.name: workload for workload in own}
    # A class of its own goes to the workers whole, with the workloads in it.
    spark.dataSource.register(type("OwnWorkloads", (GeneratedSource,), {"own": named}) if named else GeneratedSource)


@lru_cache(maxsize=16)
def _ready_made(scenario: str, settings: tuple[tuple[str, str], ...]) -> Workload:
    """One workload for all tasks of a worker: it remembers what it has drawn lately."""
    return parsed_scenario(scenario, dict(settings))


@dataclass(frozen=True)
class _Options:
    """What a user asked of the source."""

    scenario: str
    settings: tuple[tuple[str, str], ...]
    stream: str
    batch: int
    """Microseconds of a micro-batch."""
    end: int | None
    """Microseconds after which nothing more comes."""
    partitions: int
    own: Mapping[str, Workload]

    @classmethod
    def parsed(cls, given: Mapping[str, str], own: Mapping[str, Workload]) -> _Options:
        options = dict(given)
        if "scenario" not in options:
            raise ConfigError(
                f"format('{FORMAT}'): option 'scenario' is missing; allowed: {listed([*SCENARIOS, *own])}"
            )
        scenario = options["scenario"]
        settings = {name: text for name, text in options.items() if name not in OWN}
        if scenario in own and settings:
            raise ConfigError(f"format('{FORMAT}'): workload {scenario!r} has no settings; found: {listed(settings)}")
        seconds = _number(options, "seconds", None)
        found = cls(
            scenario,
            tuple(sorted(settings.items())),
            options.get("stream", ""),
            round((_number(options, "batch_seconds", 10.0) or 0) * SECOND),
            None if seconds is None else round(seconds * SECOND),
            int(_number(options, "partitions", 1) or 1),
            own,
        )
        names = [stream.name for stream in found.workload.streams]
        if found.stream not in names:
            raise ConfigError.choice(f"format('{FORMAT}'): option 'stream'", options.get("stream"), names)
        return found

    @property
    def workload(self) -> Workload:
        return self.own[self.scenario] if self.scenario in self.own else _ready_made(self.scenario, self.settings)

    @property
    def digest(self) -> str:
        """Stands for all that tuples depend on."""
        text = repr((self.workload, self.stream))
        return sha256(text.encode()).hexdigest()[:16]


def _number(options: Mapping[str, str], name: str, default: float | None) -> float | None:
    if name not in options:
        return default
    try:
        found = float(options[name])
    except ValueError:
        found = 0.0
    if not (0 < found < float("inf")) or (name == "partitions" and found != int(found)):
        kind = "a whole number" if name == "partitions" else "a number"
        raise ConfigError(f"format('{FORMAT}'): option {name!r} is {options[name]!r}; it must be {kind} above zero")
    return found


class GeneratedSource(DataSource):
    """One stream of a workload, as tuples arrive."""

    own: ClassVar[Mapping[str, Workload]] = {}

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """The stream's columns."""
        options = self._parsed()
        return options.workload.sql_columns(options.stream)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Read the stream as a table; it must have an end."""
        return _TableReader(self._parsed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Read the stream as a stream."""
        return _StreamReader(self._parsed())

    def _parsed(self) -> _Options:
        return _Options.parsed(self.options, type(self).own)


@dataclass
class _Range(InputPartition):
    """A range of arrival times, in microseconds."""

    first: int
    last: int


def _ranges(first: int, last: int, partitions: int) -> list[_Range]:
    cuts = [first + (last - first) * number // partitions for number in range(partitions + 1)]
    return [_Range(begin, end) for begin, end in pairwise(cuts) if begin < end]


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
        # Spark knows limits of rows, not of time; ours is what `latestOffset` adds, whatever the number.
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
