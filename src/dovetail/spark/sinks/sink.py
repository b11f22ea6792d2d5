"""The base class of sinks.

A sink gets every batch of its query once, and again, unchanged, when the batch is replayed. A sink that outlives the process belongs
to one query of one checkpoint; see `owners`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from dovetail.errors import ConfigError, listed
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.stage import BATCH_COLUMN, other_columns


class Sink(ABC):
    """Base class: a destination for the results of one query, batch by batch."""

    @abstractmethod
    def write(self, results: DataFrame, batch_id: int) -> None:
        """Write one batch; after a failure the session calls it again with the same batch id and rows."""

    def discard(self, batch_id: int) -> None:  # noqa: B027
        """Remove the output of an earlier attempt at this batch; called when the replay has no results."""

    def check(self, use: SinkUse) -> None:  # noqa: B027
        """Refuse a query that must not write here, without changing anything."""

    def claim(self, use: SinkUse) -> Lock | None:  # noqa: ARG002
        """Make this query the owner of the sink, or refuse it."""
        return None

    def directory(self, use: SinkUse) -> Directory | None:  # noqa: ARG002
        """Return the directory that the sink writes to, if any; those of two queries must not overlap."""
        return None

    def committer(self, use: SinkUse, run_id: str) -> Committer | None:  # noqa: ARG002
        """Return the committer of a run if shards write files themselves; None to have `write` called."""
        return None

    def find(self, condition: pc.Expression) -> pa.Table | None:  # noqa: ARG002
        """Return the rows that the sink holds and that meet a condition, with their `batch_id`.

        None if it cannot tell.
        """
        return None

    def verify(self, batch_id: int, rows: int) -> None:  # noqa: B027
        """Raise an error if a batch that `write` has written lacks some of its `rows`.

        Check only where that is cheap.
        """


def check_columns(use: SinkUse) -> None:
    """Refuse a column named `batch_id`, and names that Spark does not distinguish."""
    count = Counter(name.casefold() for name in use.schema.names)
    if BATCH_COLUMN in count:
        raise ConfigError(
            f"query {use.query!r} selects a column batch_id; the sink has one of that name, with the batch's number",
            "give the column another name with AS",
        )
    duplicates = [name for name in use.schema.names if count[name.casefold()] > 1]
    if duplicates:
        raise ConfigError(
            f"query {use.query!r} selects the columns {listed(duplicates)}, which Spark reads as one",
            "rename one with AS",
        )


def shares_disk(path: str, use: SinkUse) -> bool:
    """Whether workers reach a path of the driver's disk: by a `file:` path or a local master."""
    return path.startswith("file:") or str(use.spark.conf.get("spark.master", "")).startswith("local")


def check_types(use: SinkUse, sink: str) -> None:
    """Refuse columns of types that shards do not write to files as Spark would."""
    if unknown := other_columns(use.schema):
        raise ConfigError(
            f"query {use.query!r}: its column {unknown[0].name!r} has type {unknown[0].type}, which {sink} cannot store",
            "cast or omit it in the select list, or use dt.sinks.parquet(path), which has Spark write it",
        )
