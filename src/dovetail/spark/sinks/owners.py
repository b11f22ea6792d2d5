"""Ownership of sinks: one query of one checkpoint writes to a sink, for as long as the sink exists.

Every checkpoint numbers its batches from zero, so two checkpoints with the same sink would overwrite each other's batches. A sink
therefore stores the identity of its owner: a directory in a small file that readers skip, a table in its properties. Any other query
is refused before anything is written, and so is a directory with foreign files. If two claim a directory at once, one of them gets it.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.errors import ConfigError, DovetailWarning, StateError, listed, warn
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.sinks.staging import BATCH_NAME, MAX_LISTED, OWNER_FILE, check_owner_file, update_record

VERSION = 1
OWNER_PROPERTY = "dovetail.owner"
"""Property of a table that stores its owner."""
_RESERVED = re.compile(r"_dovetail.*|\..*")
_NEW_SINK_HINT = (
    "give the query a sink of its own: a new path or table; a new checkpoint needs new sinks. To continue the old results, "
    "start with the checkpoint that wrote them"
)


@dataclass(frozen=True)
class Owner:
    """A query of a checkpoint."""

    checkpoint: str
    query: str
    at: str
    """Location of the checkpoint when it claimed the sink, for messages only."""
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def is_same_query(self, other: Owner) -> bool:
        return (self.checkpoint, self.query) == (other.checkpoint, other.query)

    @classmethod
    def from_json(cls, text: str, where: str) -> Owner:
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            raise StateError(
                f"{where} has an owner that this release cannot read: {text[:100]!r}",
                "use a new path; if a start was killed on a file system without links, remove the file",
            ) from None


@dataclass(frozen=True)
class SinkUse:
    """A query that is about to write to a sink."""

    spark: SparkSession
    query: str
    schema: pa.Schema
    checkpoint: Checkpoint
    is_added_later: bool = False
    """Whether the query was added to a running job, so that it has no earlier results."""

    @property
    def owner(self) -> Owner:
        return Owner(self.checkpoint.identity, self.query, self.checkpoint.directory.uri)

    def warn_of_earlier_results(self, where: str) -> None:
        """Warn that the sink is new but the checkpoint is not: earlier results are elsewhere."""
        if self.checkpoint.last_batch >= 0 and not self.is_added_later:
            warnings.warn(
                f"query {self.query!r}: {where} is new, but the checkpoint is at batch {self.checkpoint.last_batch}. Earlier results "
                f"stay in the old sink; batch {self.checkpoint.last_batch} may be written here again",
                DovetailWarning,
                stacklevel=2,
            )

    def warn_of_removed_batches(self, target: Path) -> None:
        """Report, once, the batches that were removed from a sink directory and that no replay writes again."""
        removed = update_record(target)
        next_batch = self.checkpoint.next_batch if removed else 0
        lost = sorted(batch for batch in removed if batch < next_batch)
        if lost:
            batches = ", ".join(map(str, lost[:MAX_LISTED])) + (", ..." if len(lost) > MAX_LISTED else "")
            warn(
                f"query {self.query!r}: {target} lacks {len(lost)} of the batches that were written there ({batches}); Dovetail does "
                "not write them again\nHint: do nothing if you removed them on purpose; this warning appears once. Otherwise restore "
                "them from a copy, or compute them again with a new checkpoint and a new path"
            )

    def check_owner(self, stored: str | None, batches: list[int], where: str) -> None:
        """Refuse a sink of another query or checkpoint, or one with later batches than this checkpoint."""
        if stored is not None:
            owner = Owner.from_json(stored, where)
            if not owner.is_same_query(self.owner):
                is_same = owner.checkpoint == self.owner.checkpoint
                whose = "of this checkpoint" if is_same else f"of another checkpoint, which was {owner.at}"
                raise StateError(
                    f"query {self.query!r}: {where} belongs to query {owner.query!r} {whose}", _NEW_SINK_HINT
                )
        elif batches and not self.checkpoint.lacks_identity:
            raise StateError(
                f"query {self.query!r}: {where} holds results ({len(batches)} batches) and does not say of which checkpoint; "
                f"this is {self.checkpoint.directory.uri}, which has not written them",
                _NEW_SINK_HINT,
            )
        last = self.checkpoint.last_batch
        ahead = [batch for batch in batches if batch > last]
        if ahead:
            raise StateError(
                f"query {self.query!r}: {where} holds batch {max(ahead)}, but the checkpoint {self.checkpoint.directory.uri} "
                f"has started no batch{f' after {last}' if last >= 0 else ''}: it was emptied or restored from an older copy",
                f"remove the batches after {last} from the sink, they will be written again; or use a new checkpoint and a new sink",
            )


def check_still_owner(stored: str | None, owner: Owner, where: str) -> None:
    """Raise if a sink has become another query's since it was claimed."""
    if stored is None or not Owner.from_json(stored, where).is_same_query(owner):
        raise StateError(
            f"{where} was replaced or given to another query while the job was running",
            "start again with the same checkpoint and a sink of its own: a new path or table",
        )


def check_owned_directory(directory: Directory, owner: Owner) -> None:
    """Raise if a claimed directory was removed or has become another query's.

    Two checkpoints that claim a new directory of an object store at once can both succeed: the one that wrote last has it.
    """
    stored = directory.read(OWNER_FILE)
    if stored is None:
        check_owner_file(directory)  # the error says what was removed
    check_still_owner(stored, owner, directory.uri)


def check_directory(directory: Directory, use: SinkUse) -> None:
    """Refuse a directory that belongs to another query or holds foreign files, without changing it."""
    names = directory.names()
    batches = [int(batch[1]) for batch in map(BATCH_NAME.fullmatch, names) if batch]
    stored = directory.read(OWNER_FILE) if OWNER_FILE in names else None
    foreign = [name for name in names if not BATCH_NAME.fullmatch(name) and not _RESERVED.fullmatch(name)]
    if foreign and stored is None:
        raise ConfigError(
            f"query {use.query!r}: the directory {directory.uri} holds {listed(foreign[:3])}, which no query of Dovetail wrote",
            "give the sink a new or an empty directory",
        )
    for above in directory.local.parents if directory.local is not None else ():
        if (above / OWNER_FILE).exists():
            raise ConfigError(
                f"query {use.query!r}: {directory.uri} is inside {above}, where another query's results are",
                "give each query a directory beside the others",
            )
    use.check_owner(stored, batches, directory.uri)


def claim_directory(directory: Directory, use: SinkUse) -> Lock | None:
    """Claim a directory for a query or refuse it; lock it if it is local, against copied checkpoints."""
    check_directory(directory, use)
    names = directory.names()
    if OWNER_FILE not in names:
        if not directory.create(OWNER_FILE, use.owner.to_json()):
            check_directory(directory, use)  # another start was first, perhaps of this very checkpoint
        elif not any(map(BATCH_NAME.fullmatch, names)):
            use.warn_of_earlier_results(directory.uri)
    if directory.local is None:
        return None
    lock = lock_sink(directory.local / OWNER_FILE, directory.uri, use)
    try:
        use.warn_of_removed_batches(directory.local)
    except BaseException:  # a warning filter may raise
        lock.release()
        raise
    return lock


def lock_sink(file: Path, where: str, use: SinkUse) -> Lock:
    """Lock a sink on a local disk by a file; refuse one that a running session writes to."""
    try:
        return Lock(file)
    except BlockingIOError:
        raise StateError(
            f"query {use.query!r}: a session that is running writes to {where}",
            "stop() it first, or use another path or table",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be written: {error.strerror}", "make it writable, or use another path or table"
        ) from error
