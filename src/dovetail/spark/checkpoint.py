"""A checkpoint as Dovetail sees it: whose it is, which layout it is bound to, and that one session at a time uses it.

Beside Spark's own files there is a directory `dovetail` with the frozen layout and a random identity, both written once. Sinks keep
the identity, so that results of two checkpoints never mix. A checkpoint of a release that gave none takes the id of Spark's own
metadata: killed at any point, the next start comes to the same answer.

A checkpoint that was migrated has a note that says so, and the new one has a note from its first moment until all is done. Both hold
the same token, and the new one can be started as soon as the old one has its note: at any moment one of the two can, and never both.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from dovetail.errors import ConfigError, StateError
from dovetail.spark.changes import Comparison, bind
from dovetail.spark.contract import frozen_json
from dovetail.spark.directories import Directory, Lock
from dovetail.spark.layout import Layout
from dovetail.spark.revisions import Revision, read_revisions, write_revision

LAYOUT, IDENTITY, LOCK = "layout.json", "_identity.json", "_lock"
MIGRATED, UNFINISHED = "_migrated.json", "_unfinished.json"
"""Earlier releases read all files but those with an underscore as one layout."""


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
    revisions: tuple[Revision, ...] = ()
    """What has come since: queries came or went."""

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
        stored = own.read(IDENTITY)
        is_nameless = stored is None and bool(layout)
        given = _spark_id(directory) if is_nameless else uuid.uuid4().hex
        identity = given if stored is None else str(json.loads(stored)["identity"])
        revisions = tuple(read_revisions(own))
        return cls(directory, identity, layout or None, is_nameless, max(begun, default=-1), lock, revisions)

    @property
    def contract(self) -> str | None:
        """What it has come to be bound to; None when it is new."""
        return self.revisions[-1].contract if self.revisions else self.layout

    def bind(self, layout: Layout) -> tuple[Layout, Comparison | None]:
        """The layout of an old checkpoint, and what becomes of it if this one is to go on with it; refuse one that cannot."""
        if self.layout is None or self.contract is None:
            return layout, None
        return bind(layout, self.contract, self.layout)

    def begun(self) -> Checkpoint:
        """The same, with the batches that have been begun by now."""
        names = self.directory.within("offsets").names()
        return replace(self, last_batch=max((int(name) for name in names if name.isdigit()), default=-1))

    def completed(self) -> int:
        """The last batch that is completed; -1 if none is."""
        names = self.directory.within("commits").names()
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def revise(self, revision: Revision) -> Checkpoint:
        """The same with one more revision, which is written."""
        write_revision(self.directory.within("dovetail"), revision)
        return replace(self, revisions=(*self.revisions, revision))

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
            f"the checkpoint {directory.uri} has been migrated to {new}, which has its sinks now",
            f"go on with {new}, and with the number of shards that it has",
        )
    if (note := own.read(UNFINISHED)) is not None:
        begun = json.loads(note)
        left = Directory.of(SparkSession.active(), begun["from"]).within("dovetail").read(MIGRATED)
        if left is None or json.loads(left)["token"] != begun["token"]:
            raise StateError(
                f"the checkpoint {directory.uri} is unfinished: its migration from {begun['from']} was interrupted",
                "migrate again, with the same two directories; until then the old checkpoint can be used as before",
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
