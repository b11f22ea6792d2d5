"""Shared-memory shards: memory-mapped arrays that any worker on a host can take over.

A shard moves between Python workers from batch to batch, so its arrays are files in a directory named after the token of its state.
An attempt acquires the directory by an atomic rename, works in it, and publishes it under the new token that it writes into the
state. If the attempt fails or its state is never committed, no state names that token. An attempt that finds no directory under its
state's token rebuilds the shard from the log.

The directories lie where every user may write. So Dovetail uses and sweeps only real directories (no links) of this user, with mode
0700, inside a parent where other users cannot replace them. If the usual name is taken by something else, all workers of a run
derive the same fallback name from the run id, which nobody can guess beforehand.

The environment variable `DOVETAIL_SHARED_MEMORY_DIR` chooses another parent, on a disk if shared memory is too small. Set it before
Spark starts; on a cluster, executors get it from `spark.executorEnv.DOVETAIL_SHARED_MEMORY_DIR`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dovetail.errors import StateError, listed
from dovetail.plan.explain.text import format_bytes

_VARIABLE = "DOVETAIL_SHARED_MEMORY_DIR"
_ABANDONED_SECONDS = 600
"""Age at which the arrays that a failed attempt left are removed."""
_FORGOTTEN_SECONDS = 86_400
"""Age at which a run of a driver on another host counts as dead."""
_OWNER = "owner.json"
_MIN_SHARED_MEMORY = 1 << 30
"""Smallest /dev/shm, in bytes, that is used; containers have 64 MB by default."""
_PRIVATE = 0o700
_REAL_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def shared_memory_root(run_id: str) -> Path:
    """Return the directory of a run's shards on this host: in shared memory if large enough, else on disk.

    `DOVETAIL_SHARED_MEMORY_DIR` overrides this choice. All workers must choose the same directory at any time, so the size of the
    memory decides, not its free space; and a run that once used the fallback name keeps it.
    """
    parent = shared_memory_parent()
    common, fallback = parent / f"dovetail-{os.getuid()}", parent / f"dovetail-{os.getuid()}-{run_id}"
    if not os.path.lexists(fallback) and _make_private(common):
        return common / run_id
    if not _make_private(fallback):
        raise StateError(
            f"{fallback} is a link, a file or another user's, and so is {common}",
            f"set {_VARIABLE} to a directory of yours",
        )
    return fallback / run_id


def shared_memory_parent() -> Path:
    """Return the first candidate in which other users cannot remove or replace our directories."""
    parents = _parents()
    for parent in parents:
        status = parent.stat()
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid in (0, os.getuid()) and (not others_write or status.st_mode & stat.S_ISVTX):
            return parent
    raise StateError(
        f"other users can write to {listed(map(str, parents))}", f"set {_VARIABLE} to a directory of yours"
    )


def _parents() -> list[Path]:
    """Return the directory that the variable names, or else /dev/shm, if large enough, and local ones."""
    chosen = os.environ.get(_VARIABLE)
    if chosen and not (Path(chosen).is_absolute() and Path(chosen).is_dir()):
        raise StateError(
            f"{_VARIABLE} is {chosen!r} on {socket.gethostname()}; expected the absolute path of an existing directory",
            f"create it there, or unset {_VARIABLE}",
        )
    if chosen:
        return [Path(chosen)]
    shared = Path("/dev/shm")  # noqa: S108 - `shared_memory_parent` checks that others cannot replace our directories
    is_usable = os.access(shared, os.W_OK) and shutil.disk_usage(shared).total >= _MIN_SHARED_MEMORY
    return [shared] * is_usable + [Path(tempfile.gettempdir()), Path("~").expanduser()]


def _make_private(path: Path) -> bool:
    """Create a directory with mode 0700, or correct its mode; False if something else has the name."""
    with suppress(FileExistsError):
        path.mkdir(mode=_PRIVATE)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    if stat.S_IMODE(status.st_mode) != _PRIVATE:
        path.chmod(_PRIVATE)  # no race: it is ours, so no other user can replace it
    return True


@contextmanager
def _open_private(name: str | Path, parent: int | None = None) -> Iterator[int | None]:
    """Open a directory of this user without following links; yield None for anything else."""
    try:
        directory = os.open(name, _REAL_DIRECTORY, dir_fd=parent)
    except OSError:
        yield None
        return
    try:
        yield directory if os.fstat(directory).st_uid == os.getuid() else None
    finally:
        os.close(directory)


def create_run_directory(run_id: str) -> None:
    """Create a run's directory, owned by this process, and sweep the directories of dead runs."""
    with translate_disk_full():
        _make_run(shared_memory_root(run_id), here=True)


def remove_run_directory(run_id: str) -> None:
    """Remove a run's directory from this host."""
    home = shared_memory_root(run_id)
    shutil.rmtree(home, ignore_errors=True)
    if home.parent.name.endswith(run_id):
        with suppress(OSError):
            home.parent.rmdir()


@contextmanager
def translate_disk_full() -> Iterator[None]:
    """Turn the error of a full disk into one that names the directory of the shards and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StateError(
            f"no space is left for the windows of shards: {free_space(shared_memory_parent())}",
            f"free space there, or set {_VARIABLE} to a directory on a disk with room, for driver and executors, before Spark "
            "starts; then start again",
        ) from error


def free_space(path: Path) -> str:
    """Describe the free space of a directory's file system: `64 KiB of 1 GiB are free in /dev/shm`."""
    usage = shutil.disk_usage(path)
    return f"{format_bytes(usage.free)} of {format_bytes(usage.total)} are free in {path}"


def _make_run(home: Path, *, here: bool) -> None:
    """Create a run's directory and its owner file; sweep dead runs first, which may free space."""
    _sweep(home)
    _make(home)
    try:
        write_owner(home, here=here)
    except OSError:  # a directory without an owner would never be swept
        shutil.rmtree(home, ignore_errors=True)
        raise


def _make(path: Path) -> None:
    """Create a directory with mode 0700, whatever the umask, inside a private one."""
    path.mkdir()
    path.chmod(_PRIVATE)


def write_owner(home: Path, *, here: bool = True) -> None:
    """Record as the owner of a directory this process, or, unless `here`, a driver on another host."""
    owner = [_machine(), os.getpid(), _start_time(os.getpid())] if here else ["another host", 0, None]
    (home / _OWNER).write_text(json.dumps(owner), encoding="utf-8")


def _machine() -> str:
    """Identify the process namespace: hosts of one name, or containers of a host, may share a directory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _sweep(home: Path) -> None:
    """Remove other runs of this user whose driver is dead, under the common name and under fallback names."""
    common = f"dovetail-{os.getuid()}"
    bases = {base for base in home.parent.parent.iterdir() if f"{base.name}-".startswith(f"{common}-")}
    for base in bases | {home.parent}:
        abandoned = []
        with _open_private(base) as directory:
            if directory is not None:
                runs = os.listdir(directory)  # noqa: PTH208 - by descriptor: the path may be replaced meanwhile
                abandoned = [run for run in runs if run != home.name and is_abandoned(run, directory)]
                for run in abandoned:
                    shutil.rmtree(run, ignore_errors=True, dir_fd=directory)
        if abandoned and base.name.startswith(f"{common}-"):
            with suppress(OSError):  # not empty
                base.rmdir()


def is_abandoned(run: str | Path, base: int | None = None) -> bool:
    """Whether a directory's driver is dead, or, on another host, the directory was unused for a day."""
    with _open_private(run, base) as home:
        if home is None:
            return False
        try:
            with os.fdopen(os.open(_OWNER, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=home), encoding="utf-8") as file:
                machine, pid, start_time = json.load(file)
            if machine == _machine():
                return bool(_start_time(int(pid)) != start_time)
            names = os.listdir(home)  # noqa: PTH208
            modified = [os.stat(name, dir_fd=home, follow_symlinks=False).st_mtime for name in names]
        except (OSError, ValueError, TypeError):
            return False  # a directory without an owner file is not a run
        return max([os.fstat(home).st_mtime, *modified]) < time.time() - _FORGOTTEN_SECONDS


def _start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks, or None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]
    except OSError:
        return None


class SharedMemoryShard:
    """The directories of one shard's arrays on this host, one per token."""

    def __init__(self, root: Path, shard: int) -> None:
        """Open the shard's directory in the run's `root`; on a host without a driver, a worker creates both."""
        self._home = root / str(shard)
        if not self._home.exists():
            with translate_disk_full():
                self._make_home(root)

    def _make_home(self, root: Path) -> None:
        if not root.exists():
            root.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                _make_run(root, here=False)
        with suppress(FileExistsError):  # another attempt may have created it meanwhile
            _make(self._home)

    def acquire(self, token: str | None) -> Path | None:
        """Take the arrays of a token for this attempt alone; None if they are not on this host."""
        if token is None:
            return None
        work = self._new_path()
        try:
            (self._home / token).rename(work)
        except FileNotFoundError:
            return None
        return work

    def create(self) -> Path:
        """Create an empty directory to build in, and sweep directories abandoned for ten minutes."""
        limit = time.time() - _ABANDONED_SECONDS
        for entry in self._home.iterdir():
            with suppress(FileNotFoundError):  # another worker may acquire or sweep it meanwhile
                if entry.stat().st_mtime < limit:
                    shutil.rmtree(entry, ignore_errors=True)
        work = self._new_path()
        _make(work)
        return work

    def publish(self, work: Path, token: str) -> None:
        """Make the arrays available under a token."""
        work.rename(self._home / token)

    def discard(self, work: Path) -> None:
        shutil.rmtree(work, ignore_errors=True)

    def _new_path(self) -> Path:
        return self._home / f"work-{uuid.uuid4().hex}"
