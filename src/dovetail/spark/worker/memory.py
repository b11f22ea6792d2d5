"""Memory that a worker no longer uses, given back to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import pyarrow as pa


def _trimmer() -> Callable[[int], int] | None:
    """The C library's `malloc_trim`; only glibc has it."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


_trim = _trimmer()


def give_back() -> None:
    """Give freed memory back; allocators would keep it for this worker, who may next do something else, or nothing."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
