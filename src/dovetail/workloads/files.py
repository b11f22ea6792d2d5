"""Workloads as Parquet files: `<folder>/<stream>/<number>.parquet`, each of which holds what arrives in one span of time."""

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
"""Tuples of the fastest stream in a file, at most, if nobody says how many files there are to be."""


def write_batches(
    batches: Iterable[Batch], folder: Path, taken: Callable[[Batch], None] | None = None
) -> dict[str, int]:
    """Write each batch as a file of each stream, and hand it to `taken`; return how many tuples each stream has.

    Spark's file source reads the oldest file first, so the files are a second apart whatever the clock of the file system.
    """
    written: Counter[str] = Counter()
    for number, batch in enumerate(batches):
        for stream, table in batch.items():
            path = folder / stream / f"{number:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            os.utime(path, (START // SECOND + number,) * 2)
            written[stream] += table.num_rows
        if taken is not None:
            taken(batch)
    return dict(written)


def write_workload(workload: Workload, folder: Path, seconds: float, files: int | None = None) -> dict[str, int]:
    """Write what arrives in the first `seconds`, as so many files of each stream; return how many tuples each stream has.

    The folder must be new or empty: files that were there would be read as part of the streams.
    """
    checks.above("seconds", seconds)
    if files is None:
        files = ceil(seconds * max(stream.rate or 0 for stream in workload.streams) / FILE_ROWS)
    checks.whole("files", files, 1, 99_999)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"the folder {str(folder)!r} is not empty", "name one that is new, or empty it first")
    return write_batches(islice(workload.batches(seconds / files), files), folder)


def described(workload: Workload, written: Mapping[str, int], folder: Path, seconds: float) -> str:
    """Say what was written, and how to read it."""
    lines = [f"{seconds:g} s of {workload.name}, seed {workload.seed}, in {folder}:"]
    for stream in workload.streams:
        count = written[stream.name]
        rates = f"{count / seconds:,.1f}/s, in the long run {stream.rate:,.1f}/s"
        lines.append(f"  {stream.name}: {count:,} tuples ({rates}) of {', '.join(stream.columns.names)}")
    first = workload.streams[0]
    place, columns = str(folder / first.name), workload.sql_columns(first.name)
    lateness = f"{first.lateness / SECOND:g} seconds"
    return "\n".join(
        [
            *lines,
            f"Queries over them, in scenario({workload.name!r}).queries: {', '.join(workload.queries)}.",
            "Read a stream as a table, or on Spark as a stream:",
            f"  pyarrow.parquet.read_table({place!r})",
            f"  frame = spark.readStream.schema({columns!r}).parquet({place!r})",
            f"  session.stream({first.name!r}, frame, event_time={first.event_time!r}, lateness={lateness!r})",
        ]
    )
