"""Live shards: memory-mapped arrays that any worker of a host can take over.

A shard moves between Python workers from batch to batch, so its arrays are files in a directory named after the token of the state
they belong to. An attempt takes the directory by an atomic rename, works on it, and gives it back under the token that it writes into
the state. If the attempt fails, or its state is never committed, nobody asks for what it left; whoever finds no directory under the
token that the state names rebuilds the shard from its log.

Directories lie where everybody may write. What is used, or swept, is a real directory that belongs to this user, seen through no
link, in another where others cannot replace it; nobody else may look into it. If something else has its name, another name is taken,
one that nobody can know beforehand and that all workers of the host come to by themselves.

The environment variable `DOVETAIL_SHARED_MEMORY_DIR` names another directory for them, on a disk if shared memory is too small. Set
it before Spark starts; on a cluster, executors get it from `spark.executorEnv.DOVETAIL_SHARED_MEMORY_DIR`.
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
from dovetail.plan.explain.shared import bytes_text

_CHOICE = "DOVETAIL_SHARED_MEMORY_DIR"
_ABANDONED_SECONDS = 600
_FORGOTTEN_SECONDS = 86_400
_OWNER = "owner.json"
_LEAST_MEMORY = 1 << 30
"""Bytes of shared memory below which it is left alone; a container has 64 MB unless told otherwise."""
_PRIVATE = 0o700
_REAL_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def shared_memory_root(run_id: str) -> Path:
    """Where one run of a session keeps its live shards on this host: memory where there is enough, else a local directory.

    `DOVETAIL_SHARED_MEMORY_DIR` overrides this choice. All workers must come to the same answer at any time, so the size of the
    memory decides, not what is free; and a run that once took a name of its own, because the common one was taken, keeps it.
    """
    parent = _parent()
    common, own = parent / f"dovetail-{os.getuid()}", parent / f"dovetail-{os.getuid()}-{run_id}"
    if not os.path.lexists(own) and _make_private(common):
        return common / run_id
    if not _make_private(own):
        raise StateError(
            f"{own} is a link, a file or another user's, and so is {common}", f"set {_CHOICE} to a directory of yours"
        )
    return own / run_id


def _parent() -> Path:
    """The first directory with room in which others cannot remove or replace what is ours."""
    parents = _parents()
    for parent in parents:
        found = parent.stat()
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid in (0, os.getuid()) and (not others_write or found.st_mode & stat.S_ISVTX):
            return parent
    raise StateError(
        f"others can replace our files in {listed(map(str, parents))}", f"set {_CHOICE} to a directory of yours"
    )


def _parents() -> list[Path]:
    """Return the directory that `DOVETAIL_SHARED_MEMORY_DIR` names, or else shared memory, if large enough, and local ones."""
    chosen = os.environ.get(_CHOICE)
    if chosen and not (Path(chosen).is_absolute() and Path(chosen).is_dir()):
        raise StateError(
            f"{_CHOICE} is {chosen!r} on {socket.gethostname()}; expected the whole path of a directory that exists",
            f"create it there, or unset {_CHOICE}",
        )
    if chosen:
        return [Path(chosen)]
    shared = Path("/dev/shm")  # noqa: S108 - this is what is done about it
    roomy = os.access(shared, os.W_OK) and shutil.disk_usage(shared).total >= _LEAST_MEMORY
    return [shared] * roomy + [Path(tempfile.gettempdir()), Path("~").expanduser()]


def _make_private(path: Path) -> bool:
    """Make a directory that only this user can enter, or correct its mode; False if something else has the name."""
    with suppress(FileExistsError):
        path.mkdir(mode=_PRIVATE)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    if stat.S_IMODE(found.st_mode) != _PRIVATE:
        path.chmod(_PRIVATE)  # it is ours, so that nobody else can put another in its place
    return True


@contextmanager
def _opened(name: str | Path, inside: int | None = None) -> Iterator[int | None]:
    """A directory of this user's, opened without following a link; None if it is anything else."""
    try:
        directory = os.open(name, _REAL_DIRECTORY, dir_fd=inside)
    except OSError:
        yield None
        return
    try:
        yield directory if os.fstat(directory).st_uid == os.getuid() else None
    finally:
        os.close(directory)


def claim(run_id: str) -> None:
    """Say that this process drives a run, and sweep what runs that ended without cleaning up have left on this host."""
    with explaining_full_disk():
        _make_run(shared_memory_root(run_id), here=True)


def release(run_id: str) -> None:
    """Remove what a run has left on this host."""
    home = shared_memory_root(run_id)
    shutil.rmtree(home, ignore_errors=True)
    if home.parent.name.endswith(run_id):
        with suppress(OSError):
            home.parent.rmdir()


@contextmanager
def explaining_full_disk() -> Iterator[None]:
    """Turn the error of a full disk into one that names the directory of the shards and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StateError(
            f"no space is left for the windows of shards: {free_space(_parent())}",
            f"free space there, or set {_CHOICE} to a directory on a disk with room, for driver and executors, before Spark "
            "starts; then start again",
        ) from error


def free_space(path: Path) -> str:
    """Say how much of the file system of a directory is free: `64 KiB of 1 GiB are free in /dev/shm`."""
    usage = shutil.disk_usage(path)
    return f"{bytes_text(usage.free)} of {bytes_text(usage.total)} are free in {path}"


def _make_run(home: Path, *, here: bool) -> None:
    """Make the directory of a run and sign it; dead runs are swept first, which may free the space that it needs."""
    _sweep(home)
    _make(home)
    try:
        sign(home, here=here)
    except OSError:  # without an owner nobody would sweep it
        shutil.rmtree(home, ignore_errors=True)
        raise


def _make(path: Path) -> None:
    """Make a directory inside one that is private, whatever the umask."""
    path.mkdir()
    path.chmod(_PRIVATE)


def sign(home: Path, *, here: bool = True) -> None:
    """Say that a directory is this process's, or that of a driver on another host."""
    owner = [_machine(), os.getpid(), _started(os.getpid())] if here else ["another host", 0, None]
    (home / _OWNER).write_text(json.dumps(owner), encoding="utf-8")


def _machine() -> str:
    """Where numbers of processes mean the same: hosts of one name may share a directory, and so may containers of one host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _sweep(home: Path) -> None:
    """Remove other runs of this user whose driver is gone, beside `home` and under names of their own."""
    common = f"dovetail-{os.getuid()}"
    bases = {base for base in home.parent.parent.iterdir() if f"{base.name}-".startswith(f"{common}-")}
    for base in bases | {home.parent}:
        swept = []
        with _opened(base) as directory:
            if directory is not None:
                runs = os.listdir(directory)  # noqa: PTH208 - of a directory that stays the same whatever its name
                swept = [run for run in runs if run != home.name and is_abandoned(run, directory)]
                for run in swept:
                    shutil.rmtree(run, ignore_errors=True, dir_fd=directory)
        if swept and base.name.startswith(f"{common}-"):
            with suppress(OSError):  # not empty
                base.rmdir()


def is_abandoned(run: str | Path, base: int | None = None) -> bool:
    """Whether the driver that signed a directory is known to be gone; where it ran elsewhere, whether nothing moved for a day."""
    with _opened(run, base) as home:
        if home is None:
            return False
        try:
            with os.fdopen(os.open(_OWNER, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=home), encoding="utf-8") as file:
                machine, pid, started = json.load(file)
            if machine == _machine():
                return bool(_started(int(pid)) != started)
            names = os.listdir(home)  # noqa: PTH208
            moved = [os.stat(name, dir_fd=home, follow_symlinks=False).st_mtime for name in names]
        except (OSError, ValueError, TypeError):
            return False  # without an owner it is not a run
        return max([os.fstat(home).st_mtime, *moved]) < time.time() - _FORGOTTEN_SECONDS


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's own count; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]
    except OSError:
        return None


class SharedMemoryShard:
    """The live directories of one shard."""

    def __init__(self, root: Path, shard: int) -> None:
        """`root` is the run's; on a host where no driver has made it, the first worker does."""
        self._home = root / str(shard)
        if not self._home.exists():
            with explaining_full_disk():
                self._make_home(root)

    def _make_home(self, root: Path) -> None:
        if not root.exists():
            root.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                _make_run(root, here=False)
        with suppress(FileExistsError):  # another attempt may be as far
            _make(self._home)

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
        _make(work)
        return work

    def give(self, work: Path, token: str) -> None:
        """Give the arrays back under a token."""
        work.rename(self._home / token)

    def drop(self, work: Path) -> None:
        shutil.rmtree(work, ignore_errors=True)

    def _work(self) -> Path:
        return self._home / f"work-{uuid.uuid4().hex}"
