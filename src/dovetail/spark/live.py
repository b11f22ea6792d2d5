"""Live shards: memory-mapped arrays that any worker of a host can take over.

A shard moves between Python workers from batch to batch, so its arrays are files in a directory named after the token of the state
they belong to. An attempt takes the directory by an atomic rename, works on it, and gives it back under the token that it writes into
the state. If the attempt fails, or its state is never committed, nobody asks for what it left; whoever finds no directory under the
token that the state names rebuilds the shard from its log.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

from dovetail.errors import StateError

_ABANDONED_SECONDS = 600
_FORGOTTEN_SECONDS = 86_400
_OWNER = "owner.json"
_LEAST_MEMORY = 1 << 30
"""Bytes of shared memory below which it is left alone; a container has 64 MB unless told otherwise."""


def live_root(run: str) -> Path:
    """Where one run of a session keeps its live shards on this host: memory where there is enough, else a local directory.

    Enough is judged by its size, not by what is free: all workers must come to the same answer at any time.
    """
    shared = Path("/dev/shm")  # noqa: S108 - the point is to stay off the disk; names below are unguessable
    roomy = os.access(shared, os.W_OK) and shutil.disk_usage(shared).total >= _LEAST_MEMORY
    base = shared if roomy else Path(tempfile.gettempdir())
    return base / f"dovetail-{os.getuid()}" / run


def claim(run: str) -> None:
    """Say that this process drives a run, and sweep what runs that ended without cleaning up have left on this host."""
    home = live_root(run)
    for other in home.parent.iterdir() if home.parent.exists() else ():
        if is_abandoned(other):
            shutil.rmtree(other, ignore_errors=True)
    _make_private(home.parent)
    home.mkdir(mode=0o700)
    sign(home)


def sign(home: Path) -> None:
    """Say that a directory is this process's."""
    (home / _OWNER).write_text(json.dumps([socket.gethostname(), os.getpid(), _started(os.getpid())]), encoding="utf-8")


def _make_private(base: Path) -> None:
    """Make the directory of this user's runs; another user who made it first could read and change windows."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    if base.stat().st_uid != os.getuid():
        raise StateError(f"{base} belongs to another user", "remove it, or ask its owner to")


def is_abandoned(home: Path) -> bool:
    """Whether the driver of a run is known to be gone; where it ran elsewhere, whether nothing moved for a day."""
    try:
        host, pid, started = json.loads((home / _OWNER).read_text(encoding="utf-8"))
        if host == socket.gethostname():
            return bool(_started(pid) != started)
    except (OSError, ValueError):
        pass
    try:
        moved = max(entry.stat().st_mtime for entry in (home, *home.iterdir()))
    except OSError:
        return False
    return moved < time.time() - _FORGOTTEN_SECONDS


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's own count; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]
    except OSError:
        return None


class LiveShard:
    """The live directories of one shard."""

    def __init__(self, root: Path, shard: int) -> None:
        self._home = root / str(shard)
        _make_private(root.parent)
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)

    def take(self, token: str | None) -> Path | None:
        """Take over the arrays that belong to `token`; None when they are not here."""
        if token is None:
            return None
        work = self._work()
        try:
            (self._home / token).rename(work)
        except FileNotFoundError:
            return None
        return work

    def new(self) -> Path:
        """An empty directory to build in; what others abandoned long ago is swept."""
        limit = time.time() - _ABANDONED_SECONDS
        for entry in self._home.iterdir():
            with suppress(FileNotFoundError):  # another worker may take or sweep it meanwhile
                if entry.stat().st_mtime < limit:
                    shutil.rmtree(entry, ignore_errors=True)
        work = self._work()
        work.mkdir(mode=0o700)
        return work

    def give(self, work: Path, token: str) -> None:
        """Give the arrays back under a token."""
        work.rename(self._home / token)

    def drop(self, work: Path) -> None:
        shutil.rmtree(work, ignore_errors=True)

    def _work(self) -> Path:
        return self._home / f"work-{uuid.uuid4().hex}"
