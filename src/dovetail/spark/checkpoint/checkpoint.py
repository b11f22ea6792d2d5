"""A checkpoint as Dovetail sees it: whose it is, which layout it is bound to, and that one session at a time uses it.

Beside Spark's own files there is a directory `dovetail` with the frozen layout and a random identity, both written once. Sinks keep
the identity, so that results of two checkpoints never mix. A checkpoint of a release that gave none takes the id of Spark's own
metadata: killed at any point, the next start comes to the same answer.

A checkpoint that was resharded has a note that says so, and the new one has a note from its first moment until all is done. Both hold
the same token, and the new one can be started as soon as the old one has its note: at any moment one of the two can, and never both.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from dovetail.errors import ConfigError, StateError
from dovetail.spark.checkpoint.compatibility import frozen_json
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.checkpoint.plan_log import (
    FOLDER,
    MAX_LOG_ENTRIES,
    PlanLogEntry,
    entry_name,
    in_force,
    read_revisions,
    write_revision,
)
from dovetail.spark.driver.job_diff import Comparison, bind
from dovetail.spark.driver.layout import Layout
from dovetail.spark.state.log import RESTORE

LAYOUT, IDENTITY, LOCK = "layout.json", "_identity.json", "_lock"
MIGRATED, UNFINISHED = "_migrated.json", "_unfinished.json"
"""Earlier releases read all files but those with an underscore as one layout."""
_STATE_FILE = re.compile(r"\.?(\d+)(?:_[^.]*)?\.(?:changelog|zip|delta|snapshot)(?:\.crc)*")
"""Matches a file of one state store version; batch n writes version n + 1."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that this process has for itself until it is released."""

    directory: Directory
    identity: str
    layout: str | None
    """What it is bound to; None when it is new."""
    is_nameless: bool
    """Whether a release wrote it that gave no identities, so that its sinks do not know theirs."""
    last_batch: int
    """The last batch that was begun; -1 if none was. No sink can be ahead of it."""
    lock: Lock | None
    revisions: tuple[PlanLogEntry, ...] = ()
    """Its plan log."""

    @classmethod
    def open(cls, directory: Directory) -> Checkpoint:
        """Take a checkpoint, or refuse one that is in use or somebody else's. Nothing but the lock is written."""
        lock = take_lock(directory.within("dovetail"))
        try:
            return cls._read(directory, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def _read(cls, directory: Directory, lock: Lock | None) -> Checkpoint:
        own = directory.within("dovetail")
        _check_notes(directory)
        _check_path(directory)
        begun = [int(name) for name in directory.within("offsets").names() if name.isdigit()]
        layouts = [name for name in own.names() if not name.startswith(("_", "."))]
        if len(layouts) > 1:
            raise StateError(
                f"{own.uri} holds {len(layouts)} layouts; there is one", "use a new checkpoint and new sinks"
            )
        layout = own.read(layouts[0]) if layouts else None
        if not layout and begun:
            raise StateError(
                f"{directory.uri} is the checkpoint of another streaming query, or lost its layout in {own.uri}",
                "start with a new checkpoint directory and new sink paths",
            )
        if not begun and any(name.isdigit() for name in directory.within("state").names()):
            raise StateError(
                f"{directory.uri} holds state and no offsets: the log of its batches was removed",
                f"{RESTORE} and new sinks",
            )
        stored = own.read(IDENTITY)
        is_nameless = stored is None and bool(layout)
        given = _spark_id(directory) if is_nameless else uuid.uuid4().hex
        identity = given if stored is None else str(json.loads(stored)["identity"])
        revisions = tuple(read_revisions(own))
        return cls(directory, identity, layout or None, is_nameless, max(begun, default=-1), lock, revisions)

    @property
    def contract(self) -> str | None:
        """What it has come to be bound to; None when it is new."""
        revision = self.last_revision
        return self.layout if revision is None else revision.contract

    @property
    def last_revision(self) -> PlanLogEntry | None:
        """Return the log entry in force for the next batch; None if there is none."""
        next_batch = self.next_batch()
        entries = in_force(self.revisions, next_batch)
        if self.revisions and not entries and min(entry.epoch for entry in self.revisions) > 0:
            raise StateError(
                f"the checkpoint {self.directory.uri} was put back to batch {next_batch}, which its plan log no longer reaches",
                RESTORE,
            )
        return entries[-1] if entries else None

    @property
    def next_epoch(self) -> int:
        return 1 + max((revision.epoch for revision in self.revisions), default=-1)

    def bind(self, layout: Layout) -> tuple[Layout, Comparison | None]:
        """The layout of an old checkpoint, and what becomes of it if this one is to go on with it; refuse one that cannot."""
        if self.layout is None or self.contract is None:
            return layout, None
        return bind(layout, self.contract, self.layout)

    def begun(self) -> Checkpoint:
        """The same, with the batches that have been begun by now."""
        return replace(self, last_batch=max(self._batches("offsets"), default=-1))

    def next_batch(self) -> int:
        """Return the batch that Spark runs next: the last one that was begun, unless it is completed."""
        begun = max(self._batches("offsets"), default=-1)
        return begun + 1 if begun < 0 or self.has_completed(begun) else begun

    def has_completed(self, batch: int) -> bool:
        return batch in self._batches("commits")

    def _batches(self, log: str) -> set[int]:
        return {int(name) for name in self.directory.within(log).names() if name.isdigit()}

    def revise(self, revision: PlanLogEntry) -> Checkpoint:
        """Append an entry to the plan log and delete the entries that it supersedes."""
        own = self.directory.within("dovetail")
        write_revision(own, revision)
        revisions = (*self.revisions, revision)
        kept = in_force(revisions, revision.first)[-MAX_LOG_ENTRIES:]
        with suppress(ConfigError):  # they do no harm
            for old in set(self.revisions) - set(kept):
                own.within(FOLDER).remove(entry_name(old.epoch))
        return replace(self, revisions=kept)

    def discard_uncommitted_state(self, next_batch: int) -> None:
        """Delete the state files that uncommitted attempts at `next_batch` or later wrote.

        Spark replaces such files when the batch runs again. But some file systems do not replace a file by renaming another, and
        Spark takes that for success: the state of the first attempt would stay, whatever job the batch is replayed under.
        """
        state = self.directory.within("state")
        for operator in state.names():
            for partition in state.within(operator).names() if operator.isdigit() else ():
                store = state.within(operator, partition)
                for name in store.names() if partition.isdigit() else ():
                    version = _STATE_FILE.fullmatch(name)
                    if version is not None and int(version[1]) > next_batch:
                        store.remove(name)

    def save(self, layout: Layout) -> None:
        """Bind a new checkpoint to a layout, before any sink is claimed."""
        if self.layout is not None:
            return
        made = self._name() if not self.directory.within("dovetail").read(IDENTITY) else True
        if not made or not self.directory.within("dovetail").create(LAYOUT, frozen_json(layout)):
            raise _in_use(self.directory)

    def save_name(self) -> None:
        """Give an old checkpoint an identity, after its sinks have been claimed by it."""
        if self.is_nameless and not self._name():
            raise _in_use(self.directory)

    def _name(self) -> bool:
        return self.directory.within("dovetail").create(IDENTITY, json.dumps({"version": 1, "identity": self.identity}))

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()


def _check_notes(directory: Directory) -> None:
    """Refuse a checkpoint that goes on elsewhere, and one that is not all there."""
    own = directory.within("dovetail")
    if (note := own.read(MIGRATED)) is not None:
        new = json.loads(note)["to"]
        raise StateError(
            f"the checkpoint {directory.uri} has been resharded to {new}, which has its sinks now",
            f"go on with {new}, and with the number of shards that it has",
        )
    if (note := own.read(UNFINISHED)) is not None:
        begun = json.loads(note)
        left = Directory.of(SparkSession.active(), begun["from"]).within("dovetail").read(MIGRATED)
        if left is None or json.loads(left)["token"] != begun["token"]:
            raise StateError(
                f"the checkpoint {directory.uri} is unfinished: its resharding from {begun['from']} was interrupted",
                "reshard again, with the same two directories; until then the old checkpoint can be used as before",
            )


def _check_path(directory: Directory) -> None:
    """Refuse a checkpoint that was renamed: Spark has written whole paths into it, and reads files under the old one."""
    folder = directory.within("state", "0", "_metadata", "v2")
    versions = [name for name in folder.names() if name.isdigit()]
    if not versions:
        return
    text = (folder.read(max(versions, key=int)) or "").partition("\n")[2]
    stores: list[dict[str, Any]] = json.loads(text)["stateStoreInfo"]
    for path in (path for store in stores for path in store["stateSchemaFilePaths"]):
        if not path.startswith(f"{directory.uri}/") and not directory.has_file(path):
            old = path.rpartition("/state/0/")[0]
            raise StateError(
                f"the checkpoint {directory.uri} was created as {old}; Spark still reads its files there",
                f"move it back to {old}, or make that path a link to it",
            )


def take_lock(own: Directory) -> Lock | None:
    """Have a checkpoint for this process; `own` is Dovetail's directory in it."""
    if own.local is None:
        return None
    try:
        own.local.mkdir(parents=True, exist_ok=True)
        return Lock(own.local / LOCK)
    except BlockingIOError:
        raise _in_use(own) from None
    except OSError as error:
        raise ConfigError(
            f"the checkpoint directory {own.local.parent} cannot be written: {error.strerror}",
            "make it writable, or use another path",
        ) from error


def _in_use(directory: Directory) -> StateError:
    where = directory.uri.removesuffix("/dovetail")
    return StateError(
        f"the checkpoint {where} is in use: another session has been started with it and has not ended",
        "stop() that one first, or give this session a checkpoint and sinks of its own",
    )


def _spark_id(directory: Directory) -> str:
    text = directory.read("metadata")
    return str(json.loads(text)["id"]) if text else uuid.uuid4().hex
