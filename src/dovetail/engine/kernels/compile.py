"""The one place that says how kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numba
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` with Numba; with `NUMBA_DISABLE_JIT=1` run it as Python, where hashing may overflow silently too."""
    if not numba.config.DISABLE_JIT:
        compiled: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
        return compiled

    @wraps(function)
    def interpreted(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(over="ignore"):
            return function(*args, **kwargs)

    return interpreted
