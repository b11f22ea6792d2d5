"""A checkpoint as Dovetail sees it: whose it is, which layout it is bound to, and that one session at a time uses it.

Beside Spark's own files there is a directory `dovetail` with the frozen layout and a random identity, both written once. Sinks keep
the identity, so that results of two checkpoints never mix. A checkpoint of a release that gave none takes the id of Spark's own
metadata: killed at any point, the next start comes to the same answer.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from dovetail.errors import ConfigError, StateError
from dovetail.spark.layout import Layout
from dovetail.spark.places import Lock, Place

_LAYOUT, _IDENTITY, _LOCK = "layout.json", "_identity.json", "_lock"
"""Earlier releases read all files but those with an underscore as one layout."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that this process has for itself until it is released."""

    place: Place
    identity: str
    layout: str | None
    """What it is bound to; None when it is new."""
    is_nameless: bool
    """Whether a release wrote it that gave no identities, so that its sinks do not know theirs."""
    last_batch: int
    """The last batch that was begun; -1 if none was. No sink can be ahead of it."""
    lock: Lock | None

    @classmethod
    def open(cls, place: Place) -> Checkpoint:
        """Take a checkpoint, or refuse one that is in use or somebody else's. Nothing but the lock is written."""
        lock = _lock(place.within("dovetail"))
        try:
            return cls._read(place, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def _read(cls, place: Place, lock: Lock | None) -> Checkpoint:
        own = place.within("dovetail")
        begun = [int(name) for name in place.within("offsets").names() if name.isdigit()]
        layouts = [name for name in own.names() if not name.startswith(("_", "."))]
        if len(layouts) > 1:
            raise StateError(
                f"{own.uri} holds {len(layouts)} layouts; there is one", "use a new checkpoint and new sinks"
            )
        layout = own.read(layouts[0]) if layouts else None
        if not layout and begun:
            raise StateError(
                f"{place.uri} is the checkpoint of another streaming query, or lost its layout in {own.uri}",
                "start with a new checkpoint directory and new sink paths",
            )
        stored = own.read(_IDENTITY)
        is_nameless = stored is None and bool(layout)
        given = _spark_id(place) if is_nameless else uuid.uuid4().hex
        identity = given if stored is None else str(json.loads(stored)["identity"])
        return cls(place, identity, layout or None, is_nameless, max(begun, default=-1), lock)

    def bind(self, layout: Layout) -> Layout:
        """Go on with the layout of an old checkpoint, or refuse it if it is another."""
        return layout if self.layout is None else layout.thawed(self.layout)

    def save(self, layout: Layout) -> None:
        """Bind a new checkpoint to a layout, before any sink is claimed."""
        if self.layout is not None:
            return
        made = self._name() if not self.place.within("dovetail").read(_IDENTITY) else True
        if not made or not self.place.within("dovetail").create(_LAYOUT, layout.frozen_json()):
            raise _in_use(self.place)

    def save_name(self) -> None:
        """Give an old checkpoint an identity, after its sinks have been claimed by it."""
        if self.is_nameless and not self._name():
            raise _in_use(self.place)

    def _name(self) -> bool:
        return self.place.within("dovetail").create(_IDENTITY, json.dumps({"version": 1, "identity": self.identity}))

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()


def _lock(own: Place) -> Lock | None:
    if own.local is None:
        return None
    try:
        own.local.mkdir(parents=True, exist_ok=True)
        return Lock(own.local / _LOCK)
    except BlockingIOError:
        raise _in_use(own) from None
    except OSError as error:
        raise ConfigError(
            f"the checkpoint directory {own.local.parent} cannot be written: {error.strerror}",
            "make it writable, or use another path",
        ) from error


def _in_use(place: Place) -> StateError:
    where = place.uri.removesuffix("/dovetail")
    return StateError(
        f"the checkpoint {where} is in use: another session has been started with it and has not ended",
        "stop() that one first, or give this session a checkpoint and sinks of its own",
    )


def _spark_id(place: Place) -> str:
    text = place.read("metadata")
    return str(json.loads(text)["id"]) if text else uuid.uuid4().hex
