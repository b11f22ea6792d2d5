"""Differences between versions of PySpark, 4.0 to 4.3; later ones are treated like 4.3.

No other module compares versions or uses a name that some of them lack. The table of features by version is in `docs/spark.md`.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from dovetail.errors import ConfigError

Version = tuple[int, int]
"""Major and minor version."""

INSTALLED = pyspark.__version__
OLDEST: Version = (4, 0)
GENERATED_SOURCE: Version = (4, 2)
"""First version whose Python data sources learn where a batch begins; generated streams need that."""


def parse_version(text: str) -> Version | None:
    """Return major and minor version; None if the text does not begin with them.

    >>> parse_version("4.2.1"), parse_version("5.0.0-SNAPSHOT"), parse_version("unknown")
    ((4, 2), (5, 0), None)
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def is_at_least(text: str, oldest: Version) -> bool:
    """Whether a version, as text, is `oldest` or a later one."""
    version = parse_version(text)
    return version is not None and version >= oldest


def version_text(version: Version) -> str:
    """Return a version as text: `4.0`."""
    return ".".join(map(str, version))


def check_installed() -> None:
    """Raise `ConfigError` if the installed PySpark is too old for Dovetail."""
    if not is_at_least(INSTALLED, OLDEST):
        needed = version_text(OLDEST)
        raise ConfigError(
            f"PySpark is version {INSTALLED}; needed: {needed} or later", f"pip install 'pyspark>={needed}'"
        )


def is_connect(spark: object) -> bool:
    """Whether a session reaches Spark through Spark Connect: there is no JVM in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def hide_pandas_warning() -> None:
    """Hide PySpark's warning about pandas 3, which Dovetail is tested with; the user's filters prevail."""
    warnings.filterwarnings("ignore", r"PySpark does not yet fully support pandas >= 3", FutureWarning, append=True)


def check_generated_source() -> None:
    """Raise `ConfigError` if the installed PySpark cannot read generated streams."""
    if not is_at_least(INSTALLED, GENERATED_SOURCE):
        needed = version_text(GENERATED_SOURCE)
        raise ConfigError(
            f"register_workloads(): PySpark is version {INSTALLED}; generated streams need {needed} or later",
            f"pip install 'pyspark>={needed}', or write files with `dovetail generate` and read those",
        )


if TYPE_CHECKING or is_at_least(INSTALLED, GENERATED_SOURCE):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:  # never used: `register_workloads` refuses
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = object


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's schema as Arrow's; timestamps are in UTC."""
    if is_at_least(INSTALLED, (4, 2)):
        return types.to_arrow_schema(schema, timezone="UTC")
    return types.to_arrow_schema(schema)  # always UTC there


def from_arrow_schema(schema: pa.Schema) -> StructType:
    """Return Arrow's schema as Spark's; timestamps without a time zone become `TIMESTAMP_NTZ`."""
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


_STREAMING = "org.apache.spark.sql.execution.streaming"
_IS_MOVED = is_at_least(INSTALLED, (4, 1))
"""Whether classes of streaming are in packages below `_STREAMING`."""
CHECKPOINT_FILE_MANAGER = f"{_STREAMING}.{'checkpointing.' * _IS_MOVED}FileSystemBasedCheckpointFileManager"
BATCH_LOGGER = f"{_STREAMING}.{'runtime.' * _IS_MOVED}MicroBatchExecution"
"""Name of the logger that reports a failed streaming query."""


def state_format(version: str = INSTALLED) -> str:
    """Return the newest format of state that a version of Spark can read back.

    Spark 4.0 writes format 2, but its reader of states does not know it.
    """
    return "2" if is_at_least(version, (4, 1)) else "1"


__all__ = [
    "BATCH_LOGGER",
    "CHECKPOINT_FILE_MANAGER",
    "GENERATED_SOURCE",
    "INSTALLED",
    "OLDEST",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "check_generated_source",
    "check_installed",
    "from_arrow_schema",
    "hide_pandas_warning",
    "is_at_least",
    "is_connect",
    "parse_version",
    "state_format",
    "to_arrow_schema",
    "version_text",
]
