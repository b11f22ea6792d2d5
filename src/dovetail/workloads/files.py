"""Write workloads as Parquet files `<folder>/<stream>/<number>.parquet`, one per span of arrival time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import ceil
from pathlib import Path

import pyarrow.parquet as pq

from dovetail.errors import ConfigError
from dovetail.workloads import checks
from dovetail.workloads.arrivals import SECOND
from dovetail.workloads.workload import START, Batch, Workload

FILE_ROWS = 1_000_000
"""Maximum number of tuples of the fastest stream in a file, if the number of files is not given."""


def write_batches(
    batches: Iterable[Batch], folder: Path, on_batch: Callable[[Batch], None] | None = None
) -> dict[str, int]:
    """Write each batch as a file per stream, then call `on_batch`; return the number of tuples by stream.

    Spark's file source reads the oldest file first, so the modification times of the files are set one second apart.
    """
    written: Counter[str] = Counter()
    for number, batch in enumerate(batches):
        for stream, table in batch.items():
            path = folder / stream / f"{number:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            os.utime(path, (START // SECOND + number,) * 2)
            written[stream] += table.num_rows
        if on_batch is not None:
            on_batch(batch)
    return dict(written)


def write_workload(workload: Workload, folder: Path, seconds: float, files: int | None = None) -> dict[str, int]:
    """Write the first seconds of a workload as Parquet files; return the number of tuples by stream.

    The folder must be new or empty: files already in it would be read as part of the streams.
    """
    checks.above("seconds", seconds)
    if files is None:
        files = ceil(seconds * max(stream.rate or 0 for stream in workload.streams) / FILE_ROWS)
    checks.whole("files", files, 1, 99_999)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"the folder {str(folder)!r} is not empty", "name one that is new, or empty it first")
    return write_batches(islice(workload.batches(seconds / files), files), folder)


def describe_files(workload: Workload, written: Mapping[str, int], folder: Path, seconds: float) -> str:
    """Describe the written files, and how to read them."""
    lines = [f"{seconds:g} s of {workload.name}, seed {workload.seed}, in {folder}:"]
    for stream in workload.streams:
        count = written[stream.name]
        rates = f"{count / seconds:,.1f}/s, in the long run {stream.rate:,.1f}/s"
        lines.append(f"  {stream.name}: {count:,} tuples ({rates}) of {', '.join(stream.columns.names)}")
    first = workload.streams[0]
    path, columns = str(folder / first.name), workload.sql_columns(first.name)
    lateness = f"{first.lateness / SECOND:g} seconds"
    return "\n".join(
        [
            *lines,
            f"Queries over them, in scenario({workload.name!r}).queries: {', '.join(workload.queries)}.",
            "Read a stream as a table, or on Spark as a stream:",
            f"  pyarrow.parquet.read_table({path!r})",
            f"  frame = spark.readStream.schema({columns!r}).parquet({path!r})",
            f"  session.stream({first.name!r}, frame, event_time={first.event_time!r}, lateness={lateness!r})",
        ]
    )
