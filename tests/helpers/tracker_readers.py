"""The readers of a join on one key, as arrays for the kernels of shedding."""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.tuple_table import NONE, WindowReaders

SECOND = 1_000_000


def readers(windows: int = 3, cap: int = 4, span: int = 100 * SECOND) -> WindowReaders:
    """Return the readers of a join of some windows on one key, each window with its own cap."""
    positions = np.arange(windows)
    others = (1 << windows) - 1 - (1 << positions)
    retention = np.stack([positions, np.full(windows, span), others], axis=1)
    return WindowReaders(
        np.arange(windows + 1), np.zeros(windows, np.int64), positions, np.full(windows, span), np.array([windows]),
        positions[None, :].copy(), positions, np.full(windows, cap), retention, np.zeros(windows, np.int64), positions,
        np.full(windows, NONE), np.zeros(0, np.int64), np.zeros(0, np.int64),
    )  # fmt: skip
