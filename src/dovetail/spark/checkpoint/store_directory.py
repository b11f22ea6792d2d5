"""Directories on any file system of Arrow, such as an object store, without a JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from dovetail.errors import ConfigError
from dovetail.spark.checkpoint.directories import Directory


@dataclass(frozen=True)
class StoreDirectory(Directory):
    """A directory on a file system of Arrow; it exists if it has an entry."""

    path: str = ""
    """Its path on that file system, without a trailing slash."""

    @classmethod
    def at(cls, uri: str, files: pafs.FileSystem, path: str) -> StoreDirectory:
        """Return the directory of a URI."""
        return cls(uri.rstrip("/"), None, files, path)

    def within(self, *names: str) -> StoreDirectory:
        return StoreDirectory("/".join((self.uri, *names)), None, self.files, "/".join((self.path, *names)))

    def entries(self) -> list[Any]:
        """Return what the file system tells of each entry."""
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        try:
            return [info for info in self.files.get_file_info(selector) if info.path.rstrip("/") != self.path]
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                f"{self.uri} cannot be read as a directory: {_reason(error)}", "check its URI and its storage options"
            ) from error

    def names(self) -> list[str]:
        return sorted(info.base_name for info in self.entries())

    def read(self, name: str) -> str | None:
        try:
            with self.files.open_input_stream(f"{self.path}/{name}") as stream:
                return str(stream.read(), "utf-8")
        except FileNotFoundError:
            return None

    def create(self, name: str, text: str) -> bool:
        """Create a small file; return False if it exists. Of two writers at once, the last one wins."""
        if self.read(name) is not None:
            return False
        self.replace(name, text)
        return self.read(name) == text

    def replace(self, name: str, text: str) -> None:
        """Write a small file, in place of an earlier one."""
        try:
            make_parents(self.files, self.path)
            with self.files.open_output_stream(f"{self.path}/{name}") as stream:
                stream.write(text.encode())
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                f"{self.uri} cannot be written: {_reason(error)}", "check its URI and its storage options"
            ) from error

    def remove(self, name: str) -> None:
        (info,) = self.files.get_file_info([f"{self.path}/{name}"])
        if info.type == pafs.FileType.Directory:
            self.files.delete_dir(info.path)
        elif info.type == pafs.FileType.File:
            self.files.delete_file(info.path)


def make_parents(files: pafs.FileSystem, path: str) -> None:
    """Create a directory where directories are not made by the files in them."""
    if isinstance(files, pafs.LocalFileSystem):
        files.create_dir(path, recursive=True)


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0]
