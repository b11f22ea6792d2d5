"""The content of a checkpoint on a local disk, read from its files without Spark.

What only the state store holds, the windows and counters of shards, needs a Spark session.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dovetail._display import iso_time
from dovetail.codec import from_json
from dovetail.errors import StateError, suggestion
from dovetail.schema import StreamSchema
from dovetail.session.columns import columns_text
from dovetail.spark.checkpoint.checkpoint import IDENTITY, LAYOUT, LOCK, RESHARDED
from dovetail.spark.checkpoint.plan_log import FOLDER, PlanLogEntry
from dovetail.spark.driver.pipeline import read_manifests

_COUNTERS = {"arrivals": "arrived", "late": "late", "refused": "refused", "ahead": "ahead"}
_ENTRY = re.compile(r"\d{8}\.json")


@dataclass(frozen=True)
class InspectedQuery:
    """A query of a checkpoint."""

    sql: str
    since_batch: int
    """The first batch whose tuples it sees."""
    shards: int


@dataclass(frozen=True)
class InspectedStream:
    """A stream of a checkpoint; what only the state store knows is None unless a Spark session was given."""

    columns: str
    event_time: str
    lateness_seconds: float
    max_event_time: str | None = None
    watermark: str | None = None
    counters: Mapping[str, int] | None = None
    state_tuples: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True)
class InspectedEntry:
    """An entry of the plan log."""

    epoch: int
    first_batch: int
    written: str
    cause: str
    queries: Sequence[str]


@dataclass(frozen=True)
class InspectedCheckpoint:
    """The content of a checkpoint."""

    path: str
    identity: str | None
    is_in_use: bool
    resharded_to: str | None
    last_begun_batch: int | None
    last_committed_batch: int | None
    shards: int | None
    streams: Mapping[str, InspectedStream]
    queries: Mapping[str, InspectedQuery]
    plan_log: Sequence[InspectedEntry]
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes on disk, by directory."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content as plain data that `json.dumps` accepts."""
        return asdict(self)


def inspect_checkpoint(path: str | os.PathLike[str], spark: SparkSession | None = None) -> InspectedCheckpoint:
    """Return what a checkpoint holds; it is only read.

    Parameters
    ----------
    path
        The directory, on a local disk.
    spark
        A session that reads the state store, for the counters and windows of streams; without it they are left out.
    """
    root = Path(path)
    own = root / "dovetail"
    if not own.is_dir():
        near = [str(other.parent) for other in root.parent.glob("*/dovetail")] if root.parent.is_dir() else []
        what = "holds no checkpoint of Dovetail" if root.is_dir() else "does not exist"
        raise StateError(
            f"{root} {what}", suggestion(str(root), near, "name the directory that a job was started with")
        )
    begun, committed = (max(_batches(root / name), default=None) for name in ("offsets", "commits"))
    entries = list(_entries(own / FOLDER))
    pinned = _read_json(own / LAYOUT)
    current = json.loads(entries[-1][1].layout_json) if entries else pinned or {}
    streams = {content["name"]: from_json(StreamSchema, content) for content in current.get("streams", ())}
    manifests: Sequence[Mapping[str, Any]] = ()
    if spark is not None and committed is not None:
        uri = root.resolve().as_uri()
        manifests = [json.loads(text) for text in read_manifests(spark, uri, current.get("ids", ())).values()]
    return InspectedCheckpoint(
        path=str(root.resolve()),
        identity=(_read_json(own / IDENTITY) or {}).get("identity"),
        is_in_use=_is_locked(own / LOCK),
        resharded_to=(_read_json(own / RESHARDED) or {}).get("to"),
        last_begun_batch=begun,
        last_committed_batch=committed,
        shards=current.get("shards"),
        streams={name: _stream(stream, manifests) for name, stream in streams.items()},
        queries=_queries(current),
        plan_log=[_entry(path, entry) for path, entry in entries],
        bytes={name: _size(root / name) for name in ("state", "offsets", "commits", "sources", "dovetail")},
    )


def _queries(content: Mapping[str, Any]) -> dict[str, InspectedQuery]:
    starts, splits = content.get("came", {}), content.get("shares", {})
    queries = {}
    for name, sql in content.get("queries", ()):
        shards = 1
        for parts in splits.get(name, ()):
            shards *= parts
        queries[name] = InspectedQuery(sql, starts.get(name, {}).get("since", 0), shards)
    return queries


def _stream(schema: StreamSchema, manifests: Sequence[Mapping[str, Any]]) -> InspectedStream:
    declared = InspectedStream(columns_text(schema.columns), schema.event_time, schema.lateness / 1e6)
    progress = [manifest["progress"][schema.name] for manifest in manifests if schema.name in manifest["progress"]]
    if not progress:
        return declared
    latest = max(entry["head"] for entry in progress)
    segments = [
        segment for manifest in manifests for segment in manifest["segments"] if segment["stream"] == schema.name
    ]
    has_arrived = any(entry["arrived"] for entry in progress)
    return InspectedStream(
        declared.columns,
        declared.event_time,
        declared.lateness_seconds,
        iso_time(latest) if has_arrived else None,
        iso_time(latest - schema.lateness) if has_arrived else None,
        {name: sum(entry.get(key, 0) for entry in progress) for name, key in _COUNTERS.items()},
        sum(segment["rows"] for segment in segments),
        sum(segment["size"] for segment in segments),
    )


def _entries(folder: Path) -> Iterator[tuple[Path, PlanLogEntry]]:
    """Yield the entries of the plan log that can be read, in order."""
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        content = _read_json(path) if _ENTRY.fullmatch(path.name) else None
        if content is not None:
            yield path, from_json(PlanLogEntry, content, str(path))


def _entry(path: Path, entry: PlanLogEntry) -> InspectedEntry:
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    queries = [name for name, _ in json.loads(entry.layout_json)["queries"]]
    return InspectedEntry(int(path.stem), entry.first_batch, f"{written:%Y-%m-%dT%H:%M:%SZ}", entry.cause, queries)


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if there is none, or it was not written completely."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _batches(folder: Path) -> Iterator[int]:
    return (int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else iter(())


def _is_locked(path: Path) -> bool:
    """Whether a process holds the lock of the checkpoint."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Spark has removed it meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total
