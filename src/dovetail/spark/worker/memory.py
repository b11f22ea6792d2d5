"""Return freed memory of a worker to the operating system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import pyarrow as pa


def _trimmer() -> Callable[[int], int] | None:
    """Return the C library's `malloc_trim`, which only glibc has."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


_trim = _trimmer()


def release_memory() -> None:
    """Return freed memory to the system; allocators would keep it for this worker, which may stay idle."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
