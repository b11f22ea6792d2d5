"""A checkpoint directory: its identity, its layouts, its plan log and its lock.

Beside Spark's own files there is a directory `dovetail` with the pinned layout and a random identity, both written once. Sinks store
the identity, so that results of two checkpoints never mix. A checkpoint written by a release without identities takes the id in
Spark's own metadata, so that every start derives the same one, even after a kill.

Resharding leaves a note in both checkpoints, with a common token. The new checkpoint has its note from the start; it can be used as
soon as the old one has the matching note. So exactly one of the two can be started at any moment.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from dovetail.errors import ConfigError, StateError, listed, warn
from dovetail.spark.checkpoint.compatibility import pinned_json
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.checkpoint.locate import directory_at
from dovetail.spark.checkpoint.plan_log import (
    FOLDER,
    MAX_LOG_ENTRIES,
    PlanLogEntry,
    entry_name,
    in_force,
    read_entries,
    write_entry,
)
from dovetail.spark.driver.job_diff import Comparison, reconcile_layouts
from dovetail.spark.driver.layout import Layout
from dovetail.spark.state.log import RESTORE_HINT

LAYOUT, IDENTITY, LOCK = "layout.json", "_identity.json", "_lock"
RESHARDED, UNFINISHED = "_migrated.json", "_unfinished.json"
"""The underscores keep earlier releases from reading these files as layouts. The name `_migrated.json` stays: resharding was once
called migration (the `migrations` of the metrics are changes of the plan), and existing checkpoints have such notes."""
_STATE_FILE = re.compile(r"\.?(\d+)(?:_[^.]*)?\.(?:changelog|zip|delta|snapshot)(?:\.crc)*")
"""Matches a file of one state store version; batch n writes version n + 1."""


_OWN_FILES = {"dovetail", "commits", "metadata", "offsets", "sources", "state"}
_NAMED = 3


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that this process has locked until it is released."""

    directory: Directory
    identity: str
    pinned_json: str | None
    """The pinned layout, see `compatibility`; None if the checkpoint is new."""
    lacks_identity: bool
    """Whether a release without identities wrote it, so that its sinks do not store one."""
    last_batch: int
    """The last batch that was begun; -1 if none was. No sink can be ahead of it."""
    next_batch: int
    """The batch that Spark runs next: the last one that was begun, unless it is completed."""
    lock: Lock | None = None
    plan_log: tuple[PlanLogEntry, ...] = ()

    @classmethod
    def open(cls, directory: Directory) -> Checkpoint:
        """Lock and read a checkpoint, without changing it; refuse one in use, or one of another query."""
        lock = take_lock(directory.within("dovetail"))
        try:
            return cls._read(directory, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def _read(cls, directory: Directory, lock: Lock | None) -> Checkpoint:
        subdirectory = directory.within("dovetail")
        _check_notes(directory)
        _check_path(directory)
        last_batch, next_batch = _last_and_next_batch(directory)
        layouts = [name for name in subdirectory.names() if not name.startswith(("_", "."))]
        if len(layouts) > 1:
            raise StateError(
                f"{subdirectory.uri} holds {len(layouts)} layouts; there is one", "use a new checkpoint and new sinks"
            )
        layout = subdirectory.read(layouts[0]) if layouts else None
        if not layout and last_batch < 0:
            _warn_of_other_files(directory)
        if not layout and last_batch >= 0:
            raise StateError(
                f"{directory.uri} is the checkpoint of another streaming query, or lost its layout in {subdirectory.uri}",
                "start with a new checkpoint directory and new sink paths",
            )
        if last_batch < 0 and any(name.isdigit() for name in directory.within("state").names()):
            raise StateError(
                f"{directory.uri} has state but no offset log",
                f"{RESTORE_HINT} and new sinks",
            )
        identity_json = subdirectory.read(IDENTITY)
        lacks_identity = identity_json is None and bool(layout)
        new_identity = _spark_id(directory) if lacks_identity else uuid.uuid4().hex
        identity = new_identity if identity_json is None else str(json.loads(identity_json)["identity"])
        plan_log = tuple(read_entries(subdirectory))
        return cls(directory, identity, layout or None, lacks_identity, last_batch, next_batch, lock, plan_log)

    @classmethod
    def peek(cls, directory: Directory) -> Checkpoint:
        """Read a checkpoint without locking it; a job may be running with it."""
        return cls._read(directory, None)

    @property
    def entry_in_force(self) -> PlanLogEntry | None:
        """The log entry in force for the next batch; None if there is none."""
        entries = in_force(self.plan_log, self.next_batch)
        if self.plan_log and not entries and min(entry.epoch for entry in self.plan_log) > 0:
            raise StateError(
                f"the checkpoint {self.directory.uri} was restored to batch {self.next_batch}, "
                "before the oldest entry of its plan log",
                RESTORE_HINT,
            )
        return entries[-1] if entries else None

    @property
    def current_json(self) -> str | None:
        """The current layout, see `compatibility`; None if the checkpoint is new."""
        entry = self.entry_in_force
        return self.pinned_json if entry is None else entry.layout_json

    @property
    def next_epoch(self) -> int:
        return 1 + max((entry.epoch for entry in self.plan_log), default=-1)

    def reconcile(self, layout: Layout) -> tuple[Layout, Comparison | None, PlanLogEntry | None]:
        """Return this checkpoint's layout, the changes that `layout` makes, and the log entry to continue.

        There are no changes if `layout` means the same. A layout that the checkpoint cannot continue with is refused.
        """
        if self.pinned_json is None:
            return layout, None, None
        last = self.entry_in_force
        reconciled, changes = reconcile_layouts(layout, self.current_json or "", self.pinned_json)
        if changes is not None and last is not None and last.first_batch == self.next_batch:
            # The last entry has completed no batch. A job that equals the one before it reverts that change.
            for previous in in_force(self.plan_log, self.next_batch - 1)[-1:]:
                restored, difference = reconcile_layouts(layout, previous.layout_json, self.pinned_json)
                if difference is None:
                    return restored, None, previous
        return reconciled, changes, last

    def refreshed(self) -> Checkpoint:
        """Return this checkpoint as it is now.

        Its plan log, and the batches that Spark has begun and completed, are read again.
        """
        last_batch, next_batch = _last_and_next_batch(self.directory)
        plan_log = tuple(read_entries(self.directory.within("dovetail")))
        return replace(self, last_batch=last_batch, next_batch=next_batch, plan_log=plan_log)

    def has_completed(self, batch: int) -> bool:
        return batch in _batches(self.directory, "commits")

    def append_entry(self, entry: PlanLogEntry) -> Checkpoint:
        """Append an entry to the plan log and delete the entries that it supersedes."""
        subdirectory = self.directory.within("dovetail")
        write_entry(subdirectory, entry)
        plan_log = in_force((*self.plan_log, entry), entry.first_batch)[-MAX_LOG_ENTRIES:]
        with suppress(ConfigError):  # superseded entries are harmless
            for old in set(self.plan_log) - set(plan_log):
                subdirectory.within(FOLDER).remove(entry_name(old.epoch))
        return replace(self, plan_log=plan_log)

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

    def pin_layout(self, layout: Layout) -> None:
        """Write the pinned layout and the identity of a new checkpoint, before any sink is claimed."""
        if self.pinned_json is not None:
            return
        has_identity = bool(self.directory.within("dovetail").read(IDENTITY)) or self._write_identity()
        if not has_identity or not self.directory.within("dovetail").create(LAYOUT, pinned_json(layout)):
            raise _in_use(self.directory)

    def save_identity(self) -> None:
        """Store the identity of a checkpoint without one, after it has claimed its sinks."""
        if self.lacks_identity and not self._write_identity():
            raise _in_use(self.directory)

    def _write_identity(self) -> bool:
        return self.directory.within("dovetail").create(IDENTITY, json.dumps({"version": 1, "identity": self.identity}))

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()


def _batches(directory: Directory, log: str) -> set[int]:
    return {int(name) for name in directory.within(log).names() if name.isdigit()}


def _last_and_next_batch(directory: Directory) -> tuple[int, int]:
    last = max(_batches(directory, "offsets"), default=-1)
    return last, last if last >= 0 and last not in _batches(directory, "commits") else last + 1


def _check_notes(directory: Directory) -> None:
    """Refuse a checkpoint that was resharded, and one whose resharding is not complete."""
    subdirectory = directory.within("dovetail")
    if (note := subdirectory.read(RESHARDED)) is not None:
        new = json.loads(note)["to"]
        raise StateError(
            f"the checkpoint {directory.uri} has been resharded to {new}, which has its sinks now",
            f"use {new}, with its number of shards",
        )
    if (note := subdirectory.read(UNFINISHED)) is not None:
        unfinished = json.loads(note)
        old_note = directory_at(SparkSession.active(), unfinished["from"]).within("dovetail").read(RESHARDED)
        if old_note is None or json.loads(old_note)["token"] != unfinished["token"]:
            raise StateError(
                f"the checkpoint {directory.uri} is unfinished: its resharding from {unfinished['from']} was interrupted",
                "reshard again, with the same two directories; until then the old checkpoint can be used as before",
            )


def _warn_of_other_files(directory: Directory) -> None:
    """Warn if the directory of a new checkpoint holds files that are not part of one."""
    others = sorted(name for name in directory.names() if name not in _OWN_FILES and not name.startswith((".", "_")))
    if others:
        more = ", ..." if len(others) > _NAMED else ""
        warn(
            f"the checkpoint directory {directory.uri} holds other files: {listed(others[:_NAMED])}{more}\n"
            f"Hint: give the checkpoint a directory of its own, e.g. {directory.uri}/checkpoint"
        )


def _check_path(directory: Directory) -> None:
    """Refuse a renamed checkpoint: Spark stores absolute paths in it, and would read the old ones."""
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


def take_lock(subdirectory: Directory) -> Lock | None:
    """Lock a checkpoint on a local disk for this process; `subdirectory` is Dovetail's own in it."""
    if subdirectory.local is None:
        return None
    try:
        subdirectory.local.mkdir(parents=True, exist_ok=True)
        return Lock(subdirectory.local / LOCK)
    except BlockingIOError:
        raise _in_use(subdirectory) from None
    except OSError as error:
        raise ConfigError(
            f"the checkpoint directory {subdirectory.local.parent} cannot be written: {error.strerror}",
            "make it writable, or use another path",
        ) from error


def _in_use(directory: Directory) -> StateError:
    where = directory.uri.removesuffix("/dovetail")
    return StateError(
        f"the checkpoint {where} is in use: this session, or another one, has been started with it and has not ended",
        "stop() what start() returned first, or use another checkpoint and other sinks",
    )


def _spark_id(directory: Directory) -> str:
    text = directory.read("metadata")
    return str(json.loads(text)["id"]) if text else uuid.uuid4().hex
