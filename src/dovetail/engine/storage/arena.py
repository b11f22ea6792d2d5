"""Allocators for a shard's arrays: process memory, or mapped files that another process can open.

An array is identified by its name. Allocating a name again replaces the array; the old one lives as long as it is referenced.

When a process is done with its files, `MappedArena.checksums` records the length of each file and a checksum of its live part. An
arena that opens the files with these checksums raises a `StateError` if a file differs. Up to `WHOLE` bytes in total, everything is
summed; beyond that, evenly spaced pages and the last page of each file, so that the cost stays constant. A missing file or a wrong
length is always detected; damage inside a large file only if it hits a sampled page, as every damaged stretch longer than the page
distance does.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from dovetail._typing import Array, ByteArray
from dovetail.engine.kernels.checksum import checksum
from dovetail.errors import StateError

_POPULATE_UP_TO = 1 << 20
"""Bytes up to which all pages of an array are mapped at once: most are touched soon, and a page fault for each costs more."""
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
WHOLE = 4 << 20
"""Total live bytes up to which checksums cover everything."""
SAMPLES = 128
"""Pages that checksums cover beyond that."""
_PAGE = 4096
_WORD = 8


class Arena(Protocol):
    """Interface of the allocators."""

    def allocate(self, name: str, dtype: DTypeLike, length: int, fill: object = None) -> Array: ...

    def put(self, name: str, values: pa.Array) -> pa.Array: ...

    def get(self, name: str) -> pa.Array: ...

    def free(self, name: str) -> None: ...


def return_free_memory() -> None:
    """Return freed memory to the system, where the C library can; otherwise it stays with the process."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class HeapArena:
    """Arrays in this process's memory."""

    def allocate(self, name: str, dtype: DTypeLike, length: int, fill: object = None) -> Array:  # noqa: ARG002
        return np.empty(length, dtype) if fill is None else np.full(length, fill, dtype)

    def put(self, name: str, values: pa.Array) -> pa.Array:  # noqa: ARG002
        """Copy the values: the caller owns them, and a slice would keep its whole parent in memory."""
        sink, batch = pa.BufferOutputStream(), pa.record_batch({"values": values})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return pa.ipc.open_stream(sink.getvalue()).read_all().column(0).combine_chunks()

    def get(self, name: str) -> pa.Array:
        raise StateError(f"values {name!r} are in another process's memory", "use a MappedArena to share arrays")

    def free(self, name: str) -> None:
        """Do nothing: memory is freed with the last reference."""


class MappedArena:
    """Arrays in files of one directory, mapped into memory. One process at a time may write."""

    def __init__(self, directory: str | Path, expected: Mapping[str, Any] | None = None) -> None:
        """Use the files of `directory`; verify existing files against the checksums `expected`, if given."""
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.is_attaching = False
        """Whether `allocate` opens the existing file, with its content and length, instead of creating one."""
        self._expected = expected
        self._files: dict[str, ByteArray] = {}
        """Mapped files, by file name."""

    def allocate(self, name: str, dtype: DTypeLike, length: int, fill: object = None) -> Array:
        if self.is_attaching:
            return self._open(name, dtype)
        path = self._path(name)
        path.unlink(missing_ok=True)
        with path.open("w+b") as file:
            # Reserve the blocks now: writing to a mapped page that a full device cannot provide would kill the process.
            os.posix_fallocate(file.fileno(), 0, max(1, length) * np.dtype(dtype).itemsize)
            array: Array = self._map(path.name, file.fileno()).view(dtype)[:length]
        if fill is not None:
            array[:] = fill
        return array

    def _open(self, name: str, dtype: DTypeLike) -> Array:
        content, width = self._attached_bytes("array", name), np.dtype(dtype).itemsize
        if len(content) % width:
            raise StateError(
                f"array {name!r} in {self.directory} has {len(content)} bytes; expected {width} for each entry"
            )
        return content.view(dtype)

    def put(self, name: str, values: pa.Array) -> pa.Array:
        table, path = pa.table({"values": values}), self._path(name)
        path.unlink(missing_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        with path.open("r+b") as file:
            return _values(self._map(path.name, file.fileno()))

    def get(self, name: str) -> pa.Array:
        try:
            return _values(self._attached_bytes("values", name))
        except (pa.ArrowInvalid, OSError) as error:
            raise StateError(f"values {name!r} in {self.directory} are damaged: {error}") from None

    def free(self, name: str) -> None:
        path = self._path(name)
        self._files.pop(path.name, None)
        path.unlink(missing_ok=True)

    def checksums(self, live_bytes: Mapping[str, tuple[int, int]], salt: int) -> dict[str, Any]:
        """Return the lengths and checksums of all files, as JSON.

        A checksum covers the file's range in `live_bytes`, or the whole file. `salt` selects the pages if not all are covered.
        """
        named = {self._path(name).name: span for name, span in live_bytes.items()}
        spans = {file: named.get(file, (0, len(content))) for file, content in self._files.items()}
        total = sum(stop - first for first, stop in spans.values())
        stride = 1 if total <= WHOLE else -(-total // (_PAGE * SAMPLES))
        pages = {"stride": stride, "salt": salt % stride}
        sums = {file: _sum(self._files[file], span, **pages) for file, span in spans.items()}
        return {**pages, "files": {file: [len(self._files[file]), *spans[file], sums[file]] for file in spans}}

    def check_complete(self) -> None:
        """Raise `StateError` if a file with a checksum has not been opened."""
        if self._expected is not None and self._expected["files"].keys() != self._files.keys():
            raise StateError(f"{self.directory} contains arrays that the plan does not use")

    def _attached_bytes(self, kind: str, name: str) -> ByteArray:
        path = self._path(name)
        try:
            with path.open("r+b") as file:
                content = self._map(path.name, file.fileno())
        except FileNotFoundError:
            raise StateError(f"{kind} {name!r}: missing from {self.directory}") from None
        except ValueError as error:  # an empty file cannot be mapped
            raise StateError(f"{kind} {name!r} in {self.directory}: damaged: {error}") from None
        if self._expected is not None:
            size, first, stop, checksum_before = self._expected["files"].get(path.name, (-1, 0, 0, 0))
            pages = {"stride": self._expected["stride"], "salt": self._expected["salt"]}
            if len(content) != size or _sum(content, (first, stop), **pages) != checksum_before:
                raise StateError(f"{kind} {name!r} in {self.directory}: damaged: length or checksum differs")
        return content

    def _map(self, file: str, descriptor: int) -> ByteArray:
        small = os.fstat(descriptor).st_size <= _POPULATE_UP_TO
        mapped = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | (_POPULATE if small else 0))
        self._files[file] = np.frombuffer(mapped, np.uint8)
        return self._files[file]

    def _path(self, name: str) -> Path:
        # Names contain users' column names, of any length and with any character: file names are digests of them.
        return self.directory / blake2b(name.encode(), digest_size=16).hexdigest()


def _values(content: ByteArray) -> pa.Array:
    return pa.ipc.open_file(pa.py_buffer(content)).read_all().column(0).combine_chunks()


def _sum(content: ByteArray, span: tuple[int, int], stride: int, salt: int) -> int:
    """Return the checksum of the words that contain the bytes of `span`, odd last bytes included."""
    first, stop = span
    whole = len(content) // _WORD
    words = content[: whole * _WORD].view(np.uint64)
    odd = int.from_bytes(content[whole * _WORD : stop].tobytes(), "little") if stop > whole * _WORD else 0
    return int(checksum(words, first // _WORD, min(-(-stop // _WORD), whole), stride, salt)) ^ odd
