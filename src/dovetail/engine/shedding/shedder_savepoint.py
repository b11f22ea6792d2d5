"""A shedder before a change: its state, and the rows that it has hidden since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.shedding.result_losses import LossesSavepoint
from dovetail.engine.shedding.tracked_windows import TrackedSavepoint, TrackedWindows
from dovetail.engine.storage.window import WindowStore


@dataclass(frozen=True, slots=True)
class ShedderSavepoint:
    """State of the shedder at a savepoint."""

    tracked: tuple[TrackedWindows, TrackedSavepoint] | None
    counts: Mapping[str, tuple[int, int]]
    losses: LossesSavepoint
    max_event_times: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Rows that were hidden, and their flags before that."""

    store: WindowStore
    rows: Int64Array
    flags: list[UInt64Array]
