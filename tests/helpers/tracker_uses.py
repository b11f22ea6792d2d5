"""A join on one key, as the kernels of shedding see it."""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.roster import NONE, Uses

SECOND = 1_000_000


def uses(windows: int = 3, cap: int = 4, span: int = 100 * SECOND) -> Uses:
    """Return a join of the given number of windows on one key, each with its own cap."""
    each = np.arange(windows)
    others = (1 << windows) - 1 - (1 << each)
    kept = np.stack([each, np.full(windows, span), others], axis=1)
    return Uses(
        np.arange(windows + 1), np.zeros(windows, np.int64), each, np.full(windows, span), np.array([windows]), each[None, :].copy(),
        each, np.full(windows, cap), kept, np.zeros(windows, np.int64), each,
        np.full(windows, NONE), np.zeros(0, np.int64), np.zeros(0, np.int64),
    )  # fmt: skip
