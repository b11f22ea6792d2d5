"""Directories on any file system that Spark can write, and locks that end with their process.

Hadoop resolves every path, in the JVM, against the JVM's working directory and default file system, as Spark does. Python resolves
some paths differently (`%20` in a `file:` path, relative ones after `os.chdir`), and results would be written to another directory.
Small files are created atomically: of several writers that try at once, one succeeds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dovetail.errors import ConfigError, StateError

JVM_ERRORS = (Py4JError, PySparkException)
_COPY_ATTEMPTS = 5


@dataclass(frozen=True)
class Directory:
    """A directory, which need not exist yet."""

    uri: str
    """Absolute, without a trailing slash: two paths of one directory have the same URI, except for links."""
    local: Path | None
    """Path on the driver's own disk, with links resolved; None if the directory is elsewhere."""
    files: Any = None
    """Hadoop's file system, None over Spark Connect; for a local directory it is only used to look up, copy and remove files."""

    @classmethod
    def of(cls, spark: SparkSession, path: str) -> Directory:
        """Return the directory that Spark reads and writes under a path; `locate` also knows Spark Connect."""
        session: Any = spark
        jvm = session._jvm  # noqa: SLF001
        try:
            hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
            files = hadoop_path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
            qualified = files.makeQualified(hadoop_path)
        except JVM_ERRORS as error:
            message = str(error).partition("\n\tat ")[0].splitlines()[-1]
            raise ConfigError(
                f"Spark cannot use the path {path!r}: {message}", "see Spark's configuration of that file system"
            ) from error
        is_local = qualified.toUri().getScheme() == "file"
        return cls(qualified.toString(), Path(qualified.toUri().getPath()).resolve() if is_local else None, files)

    def within(self, *names: str) -> Directory:
        """Return a directory below this one."""
        local = None if self.local is None else self.local.joinpath(*names)
        return Directory("/".join((self.uri, *names)), local, self.files)

    def contains(self, other: Directory) -> bool:
        """Whether another directory is this one or below it."""
        if self.local is not None and other.local is not None:
            return other.local.is_relative_to(self.local)
        return f"{other.uri}/".startswith(f"{self.uri}/")

    def names(self) -> list[str]:
        """Return the names of its entries, sorted; none if it does not exist."""
        try:
            if self.local is not None:
                return sorted(entry.name for entry in self.local.iterdir())
            path = self._path()
            entries = self.files.listStatus(path) if self.files.exists(path) else ()
            return sorted(entry.getPath().getName() for entry in entries)
        except FileNotFoundError:
            return []
        except (OSError, *JVM_ERRORS) as error:
            raise ConfigError(
                f"{self.uri} cannot be read as a directory: {reason(error)}", "use another path"
            ) from error

    def read(self, name: str) -> str | None:
        """Return the text of a small file; None if it does not exist."""
        if self.local is not None:
            try:
                return (self.local / name).read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
        path = self._path(name)
        if not self.files.exists(path):
            return None
        stream = self.files.open(path)
        try:
            return str(self._jvm().org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def has_file(self, uri: str) -> bool:
        """Whether an absolute path of this file system is an existing file."""
        if self.files is None:
            return uri.startswith("file:") and Path(uri.removeprefix("file:")).exists()
        try:
            return bool(self.files.exists(self._jvm().org.apache.hadoop.fs.Path(uri)))
        except JVM_ERRORS:  # a path of another file system
            return False

    def create(self, name: str, text: str) -> bool:
        """Create a small file; return False if it exists already."""
        try:
            if self.local is not None:
                return self._create_local(self.local, name, text)
            return self._create_remote(name, text)
        except (OSError, *JVM_ERRORS) as error:
            raise ConfigError(
                f"{self.uri} cannot be written: {reason(error)}", "make it writable, or use another path"
            ) from error

    @staticmethod
    def _create_local(local: Path, name: str, text: str) -> bool:
        local.mkdir(parents=True, exist_ok=True)
        complete = local / f".{uuid.uuid4().hex}"
        try:
            complete.write_text(text, encoding="utf-8")
            try:
                (local / name).hardlink_to(complete)
            except FileExistsError:
                return False
            except OSError:  # a file system without links; a kill in the middle leaves an empty file
                with suppress(FileExistsError), (local / name).open("x", encoding="utf-8") as file:
                    file.write(text)
                    return True
                return False
        finally:
            complete.unlink(missing_ok=True)
        return True

    def _create_remote(self, name: str, text: str) -> bool:
        try:
            stream = self.files.create(self._path(name), False)
        except JVM_ERRORS:
            if self.files.exists(self._path(name)):
                return False
            raise
        stream.write(bytearray(text, "utf-8"))
        stream.close()
        return self.read(name) == text  # object stores may let two writers create it: the last one wins

    def copy(self, name: str, to: Directory) -> None:
        """Copy a file or a directory into another directory that has no entry of that name.

        For seconds after a job has ended, Spark renames and removes files of its state; then the copy starts over.
        """
        for attempt in range(1, _COPY_ATTEMPTS + 1):
            try:
                self._copy(name, to)
            except JVM_ERRORS as error:
                if attempt < _COPY_ATTEMPTS and "FileNotFoundException" in reason(error):
                    to.remove(name)
                    continue
                raise ConfigError(
                    f"{self.uri}/{name} cannot be copied to {to.uri}: {reason(error)}",
                    "check read access to the source and write access to the target",
                ) from error
            return

    def _copy(self, name: str, to: Directory) -> None:
        session: Any = SparkSession.active()
        conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        source, target = self._path(name), to._path(name)
        self._jvm().org.apache.hadoop.fs.FileUtil.copy(self.files, source, to.files, target, False, True, conf)

    def move(self, name: str, to: Directory, new_name: str) -> None:
        """Move a file into a directory of the same file system that has no entry of the new name."""
        if self.local is not None and to.local is not None:
            (self.local / name).rename(to.local / new_name)
        elif not self.files.rename(self._path(name), to._path(new_name)):
            raise StateError(f"{self.uri}/{name} cannot be moved to {to.uri}/{new_name}", "make both writable")

    def remove(self, name: str) -> None:
        """Remove a file or a directory, if it exists."""
        try:
            if self.files is None and self.local is not None:
                _remove_local(self.local / name)
            else:
                self.files.delete(self._path(name), True)
        except (OSError, *JVM_ERRORS) as error:
            raise ConfigError(
                f"{self.uri}/{name} cannot be removed: {reason(error)}", "make the directory writable"
            ) from error

    def _path(self, *names: str) -> Any:
        return self._jvm().org.apache.hadoop.fs.Path("/".join((self.uri, *names)))

    @staticmethod
    def _jvm() -> Any:
        session: Any = SparkSession.active()
        return session._jvm  # noqa: SLF001


def _remove_local(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def reason(error: BaseException) -> str:
    """Return the message of a Python or Java error, without its trace."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else str(error).splitlines()[0]


class Lock:
    """A file lock that one process holds at a time; the system releases it when that process dies.

    On a file system without locks every process gets it; then only Spark's own logs keep two drivers apart.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock; raise `BlockingIOError` if it is held already."""
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise
        except OSError:
            pass

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
