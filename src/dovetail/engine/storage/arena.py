"""Where a shard's arrays live: in this process's memory, or in memory-mapped files that another process can open.

An array is known by its name. Allocating a name again replaces the array; readers of the old one keep it until they let go.

Files can be sealed when one process is done with them: the length of each, and a checksum of the part that matters. Who opens a
sealed file gets what was sealed, or a `StateError`. Up to `WHOLE` bytes all of it is summed up; of more, evenly spaced pages and the
last one of each file, so that the cost stays the same. A file that is missing, or of another length, is always noticed; damage inside
a large one if it hits such a page, which a stretch longer than their distance must.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from dovetail._typing import Array, ByteArray
from dovetail.engine.kernels.checksum import checksum
from dovetail.errors import StateError

_AT_ONCE = 1 << 20
"""Bytes up to which an array is mapped with all its pages at once: most will be touched, and a fault for each costs more."""
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
WHOLE = 4 << 20
"""Bytes of sealed files, all together, that are summed up whole."""
SAMPLES = 128
"""Pages that are summed up of more."""
_PAGE = 4096
_WORD = 8


class Arena(Protocol):
    """What a window store needs of its memory."""

    def allocate(self, name: str, dtype: DTypeLike, length: int, fill: object = None) -> Array: ...

    def put(self, name: str, values: pa.Array) -> pa.Array: ...

    def get(self, name: str) -> pa.Array: ...

    def free(self, name: str) -> None: ...


class HeapArena:
    """Arrays in this process's memory; they end with it."""

    def allocate(self, name: str, dtype: DTypeLike, length: int, fill: object = None) -> Array:  # noqa: ARG002
        return np.empty(length, dtype) if fill is None else np.full(length, fill, dtype)

    def put(self, name: str, values: pa.Array) -> pa.Array:  # noqa: ARG002
        """A copy: what is pushed belongs to the caller, and a slice would keep all that it was cut from."""
        sink, batch = pa.BufferOutputStream(), pa.record_batch({"values": values})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return pa.ipc.open_stream(sink.getvalue()).read_all().column(0).combine_chunks()

    def get(self, name: str) -> pa.Array:
        raise StateError(f"values {name!r} lived in another process's memory", "use a MappedArena to share arrays")

    def free(self, name: str) -> None:
        """Nothing to do: memory is returned when the last reader lets go."""


class MappedArena:
    """Arrays in files of one directory, mapped into memory. One process at a time may write."""

    def __init__(self, directory: str | Path, seal: Mapping[str, Any] | None = None) -> None:
        """Arrays of `directory`; those that are opened must be as `seal`, if it is given, says."""
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.opening = False
        """Whether arrays that are asked for are those that another process has left, with their content and length."""
        self._seal = seal
        self._files: dict[str, ByteArray] = {}
        """What is mapped now, by name of the file."""

    def allocate(self, name: str, dtype: DTypeLike, length: int, fill: object = None) -> Array:
        if self.opening:
            return self._open(name, dtype)
        path = self._path(name)
        path.unlink(missing_ok=True)
        with path.open("w+b") as file:
            # Reserved, not only promised: writing to a mapped page that a full device cannot give would end the process.
            os.posix_fallocate(file.fileno(), 0, max(1, length) * np.dtype(dtype).itemsize)
            array: Array = self._map(path.name, file.fileno()).view(dtype)[:length]
        if fill is not None:
            array[:] = fill
        return array

    def _open(self, name: str, dtype: DTypeLike) -> Array:
        content, width = self._opened("array", name), np.dtype(dtype).itemsize
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
            return _values(self._opened("values", name))
        except (pa.ArrowInvalid, OSError) as error:
            raise StateError(f"values {name!r} in {self.directory} are damaged: {error}") from None

    def free(self, name: str) -> None:
        path = self._path(name)
        self._files.pop(path.name, None)
        path.unlink(missing_ok=True)

    def seal(self, living: Mapping[str, tuple[int, int]], salt: int) -> dict[str, Any]:
        """What must be found again, as JSON; of arrays in `living` those bytes, of all others everything.

        `salt` moves the pages that are looked at where not all are.
        """
        named = {self._path(name).name: span for name, span in living.items()}
        spans = {file: named.get(file, (0, len(content))) for file, content in self._files.items()}
        total = sum(stop - first for first, stop in spans.values())
        stride = 1 if total <= WHOLE else -(-total // (_PAGE * SAMPLES))
        pages = {"stride": stride, "salt": salt % stride}
        sums = {file: _sum(self._files[file], span, **pages) for file, span in spans.items()}
        return {**pages, "files": {file: [len(self._files[file]), *spans[file], sums[file]] for file in spans}}

    def check_complete(self) -> None:
        """Raise `StateError` if something was sealed that nobody has opened."""
        if self._seal is not None and self._seal["files"].keys() != self._files.keys():
            raise StateError(f"{self.directory} holds arrays that its engine does not know")

    def _opened(self, kind: str, name: str) -> ByteArray:
        path = self._path(name)
        try:
            with path.open("r+b") as file:
                content = self._map(path.name, file.fileno())
        except FileNotFoundError:
            raise StateError(f"{kind} {name!r}: missing from {self.directory}") from None
        except ValueError as error:  # an empty file cannot be mapped
            raise StateError(f"{kind} {name!r} in {self.directory}: damaged: {error}") from None
        if self._seal is not None:
            size, first, stop, found = self._seal["files"].get(path.name, (-1, 0, 0, 0))
            pages = {"stride": self._seal["stride"], "salt": self._seal["salt"]}
            if len(content) != size or _sum(content, (first, stop), **pages) != found:
                raise StateError(f"{kind} {name!r} in {self.directory}: damaged: it is not what was sealed")
        return content

    def _map(self, file: str, number: int) -> ByteArray:
        small = os.fstat(number).st_size <= _AT_ONCE
        mapped = mmap.mmap(number, 0, flags=mmap.MAP_SHARED | (_POPULATE if small else 0))
        self._files[file] = np.frombuffer(mapped, np.uint8)
        return self._files[file]

    def _path(self, name: str) -> Path:
        # Names hold users' column names, of any length and with any character; digests are good file names.
        return self.directory / blake2b(name.encode(), digest_size=16).hexdigest()


def _values(content: ByteArray) -> pa.Array:
    return pa.ipc.open_file(pa.py_buffer(content)).read_all().column(0).combine_chunks()


def _sum(content: ByteArray, span: tuple[int, int], stride: int, salt: int) -> int:
    """Sum up the words that hold the bytes of `span`, and the last bytes of an odd length."""
    first, stop = span
    whole = len(content) // _WORD
    words = content[: whole * _WORD].view(np.uint64)
    odd = int.from_bytes(content[whole * _WORD : stop].tobytes(), "little") if stop > whole * _WORD else 0
    return int(checksum(words, first // _WORD, min(-(-stop // _WORD), whole), stride, salt)) ^ odd
