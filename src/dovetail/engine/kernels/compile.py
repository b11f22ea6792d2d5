"""Decorators and intrinsics that define how kernels are compiled, and where compiled code is cached.

Numba's on-disk cache notices a change in a kernel's own file, but not in the files of the kernels that it calls. Compiled code is
therefore cached in a directory named after a digest of all kernel sources, so that any edit recompiles every kernel. A digest in
Numba's index files would not be safe: after a process was killed, an index can refer to files of the previous code.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import caching, cgutils, types
from numba.extending import intrinsic
from numba.misc.appdirs import AppDirs

from dovetail._typing import ByteArray

P = ParamSpec("P")
R = TypeVar("R")

INTERPRETED = bool(numba.config.DISABLE_JIT)  # type: ignore[attr-defined]
"""Whether kernels run as plain Python, for readable tracebacks."""


_DIGEST = sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:16]


class _DigestPath:
    """Makes a locator of Numba return a subdirectory named after the digest."""

    def get_cache_path(self) -> str:
        parent: str = super().get_cache_path()  # type: ignore[misc]
        return str(Path(parent, f"dovetail-{_DIGEST}"))


class _ProvidedDirectory(_DigestPath, caching.UserProvidedCacheLocator):
    """Caches in NUMBA_CACHE_DIR, if it is set."""


class _PackageDirectory(_DigestPath, caching.InTreeCacheLocator):
    """Caches beside the kernels, if the package is writable."""


class _UserDirectory(_DigestPath, caching.UserWideCacheLocator):
    """Caches in the user's cache directory."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return a locator, or None.

        Without a home directory, the path would be relative to the working directory.
        """
        is_absolute = Path(AppDirs(appname="numba", appauthor=False).user_cache_dir).is_absolute()  # type: ignore[no-untyped-call]
        return super().from_function(function, file) if is_absolute else None  # type: ignore[no-untyped-call]


class _TemporaryDirectory(_DigestPath, caching.UserWideCacheLocator):
    """Caches in a private directory below the temporary one.

    It serves a read-only package, and a user without a home.
    """

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)  # type: ignore[no-untyped-call]
        self._cache_path = str(Path(_temporary_directory(), self.get_suitable_cache_subpath(file)))  # type: ignore[no-untyped-call]

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return a locator, or None if there is no such directory."""
        try:
            _make_private(_temporary_directory())
        except OSError:
            return None
        return super().from_function(function, file)  # type: ignore[no-untyped-call]


def _temporary_directory() -> Path:
    return Path(tempfile.gettempdir(), f"dovetail-kernels-{os.getuid()}")


def _make_private(path: Path) -> None:
    """Create a directory that only this user can write, or raise `OSError`.

    Whoever can write it can make us run their code.
    """
    parent = path.parent.stat()
    if parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not parent.st_mode & stat.S_ISVTX:
        raise PermissionError(f"other users can replace {path}")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise PermissionError(f"{path} is a link, a file or writable for other users")


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = [  # noqa: RUF012 - as in Numba
        _ProvidedDirectory, _PackageDirectory, _UserDirectory, _TemporaryDirectory
    ]  # fmt: skip


class _KernelCache(caching.FunctionCache):
    _impl_class = _CacheImpl


def _compile(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """Compile `function` and cache the code on disk, unless no directory is writable."""
    compiled: Any = numba.njit(nogil=True, **options)(function)
    with suppress(RuntimeError):  # no locator has a writable directory
        # Numba has no public way to choose the directory of one function.
        compiled._cache = _KernelCache(function)  # type: ignore[no-untyped-call]  # noqa: SLF001
    return compiled  # type: ignore[no-any-return]


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` with Numba; `NUMBA_DISABLE_JIT=1` runs it as Python, where hashes may overflow."""
    if not INTERPRETED:
        return _compile(function)

    @wraps(function)
    def interpreted(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(over="ignore"):
            return function(*args, **kwargs)

    return interpreted


_UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Numba's option for functions that neither allocate nor count references."""


def borrowing(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel that allocates nothing without reference counting, which is slow for many arrays."""
    return kernel(function) if INTERPRETED else _compile(function, **_UNCOUNTED)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a helper that is inlined into borrowing kernels, because passing many arrays is slow."""
    if INTERPRETED:
        return kernel(function)
    compiled: Callable[P, R] = numba.njit(nogil=True, forceinline=True, **_UNCOUNTED)(function)
    return compiled


def _copy_bytes(out: ByteArray, at: int, data: ByteArray, start: int, count: int) -> None:
    """Copy `count` bytes; compiled to one memcpy, since a loop over bytes is several times slower."""
    out[at : at + count] = data[start : start + count]


@intrinsic
def _memcpy(context: Any, out: Any, at: Any, data: Any, start: Any, count: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = []
        for array, kind, offset in (
            (arguments[0], signature.args[0], arguments[1]),
            (arguments[2], signature.args[2], arguments[3]),
        ):
            pointer = context.make_array(kind)(context, builder, array).data
            pointers.append(builder.gep(pointer, [offset]))
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder, pointers[0], pointers[1], arguments[4], 1
        )
        return context.get_dummy_value()

    return types.void(out, types.intp, data, types.intp, types.intp), generate


@numba.njit(inline="always")
def _copy_bytes_compiled(out: ByteArray, at: int, data: ByteArray, start: int, count: int) -> None:
    _memcpy(out, at, data, start, count)  # type: ignore[call-arg]


copy_bytes = _copy_bytes if INTERPRETED else _copy_bytes_compiled


def _prefetch(array: Any, at: int) -> None:
    """Prefetch an entry of an array."""


@intrinsic
def _fetch(context: Any, array: Any, at: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte = ir.IntType(8).as_pointer()
        offset = builder.mul(arguments[1], builder.extract_value(view.strides, 0))
        pointer = builder.gep(builder.bitcast(view.data, byte), [offset])
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call]
        builder.call(function, [pointer, int32(1), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@numba.njit(inline="always")
def _prefetch_compiled(array: Any, at: int) -> None:
    _fetch(array, at)  # type: ignore[call-arg]


prefetch = _prefetch if INTERPRETED else _prefetch_compiled
