"""Where a shard's arrays live: in this process's memory, or in memory-mapped files that another process can open.

An array is known by its name. Allocating a name again replaces the array; readers of the old one keep it until they let go.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from dovetail._typing import Array
from dovetail.errors import StateError

_AT_ONCE = 1 << 20
"""Bytes up to which an array is mapped with all its pages at once: most will be touched, and a fault for each costs more."""
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


class Arena(Protocol):
    """What a window store needs of its memory."""

    def allocate(self, name: str, dtype: DTypeLike, length: int) -> Array: ...

    def open(self, name: str, dtype: DTypeLike, length: int) -> Array: ...

    def put(self, name: str, values: pa.Array) -> pa.Array: ...

    def get(self, name: str) -> pa.Array: ...

    def free(self, name: str) -> None: ...


class HeapArena:
    """Arrays in this process's memory; they end with it."""

    def allocate(self, name: str, dtype: DTypeLike, length: int) -> Array:  # noqa: ARG002
        return np.empty(length, dtype)

    def open(self, name: str, dtype: DTypeLike, length: int) -> Array:  # noqa: ARG002
        raise StateError(f"array {name!r} lived in another process's memory", "use a MappedArena to share arrays")

    def put(self, name: str, values: pa.Array) -> pa.Array:  # noqa: ARG002
        return values

    def get(self, name: str) -> pa.Array:
        raise StateError(f"values {name!r} lived in another process's memory", "use a MappedArena to share arrays")

    def free(self, name: str) -> None:
        """Nothing to do: memory is returned when the last reader lets go."""


class MappedArena:
    """Arrays in files of one directory, mapped into memory. One process at a time may write."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def allocate(self, name: str, dtype: DTypeLike, length: int) -> Array:
        path = self._path(name)
        path.unlink(missing_ok=True)
        with path.open("w+b") as file:
            # Reserved, not only promised: writing to a mapped page that a full device cannot give would end the process.
            os.posix_fallocate(file.fileno(), 0, max(1, length) * np.dtype(dtype).itemsize)
            return np.frombuffer(_mapped(file.fileno()), dtype)[:length]

    def open(self, name: str, dtype: DTypeLike, length: int) -> Array:
        try:
            with self._path(name).open("r+b") as file:
                array = np.frombuffer(_mapped(file.fileno()), dtype)
        except FileNotFoundError:
            raise StateError(f"array {name!r} is missing from {self.directory}") from None
        except ValueError as error:
            raise StateError(f"array {name!r} in {self.directory} is damaged: {error}") from None
        if len(array) < length:
            raise StateError(f"array {name!r} in {self.directory} is cut short: {len(array)} of {length} entries")
        return array[:length]

    def put(self, name: str, values: pa.Array) -> pa.Array:
        table = pa.table({"values": values})
        with pa.OSFile(str(self._path(name)), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return self.get(name)

    def get(self, name: str) -> pa.Array:
        try:
            table = pa.ipc.open_file(pa.memory_map(str(self._path(name)))).read_all()
        except FileNotFoundError:
            raise StateError(f"values {name!r} are missing from {self.directory}") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise StateError(f"values {name!r} in {self.directory} are damaged: {error}") from None
        return table.column(0).combine_chunks()

    def free(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        # Names hold users' column names, of any length and with any character; digests are good file names.
        return self.directory / blake2b(name.encode(), digest_size=16).hexdigest()


def _mapped(file: int) -> mmap.mmap:
    small = os.fstat(file).st_size <= _AT_ONCE
    return mmap.mmap(file, 0, flags=mmap.MAP_SHARED | (_POPULATE if small else 0))
