"""Time limits of windows: until when a row can be needed, which rows an eager tuple no longer sees, and when rows are forgotten."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.progress import Progress
from dovetail.plan.execution import WindowPlan
from dovetail.query.model import CountWindow

_PATIENCE_BITS = 5
"""Lazy expiration lets a window outgrow itself by one part in 2 to this power."""


def bound(window: WindowPlan, watermarks: Mapping[str, int]) -> int:
    """The event time below which no time window needs a tuple, by the watermarks of all streams."""
    if not window.waits:
        return LONG_AGO
    ends = [min([watermarks[other] for other in others]) - micros for others, micros in window.waits.items()]
    return max(min(ends), LONG_AGO)


def floors(
    plans: Mapping[str, WindowPlan], windows: Mapping[str, WindowStore], ts: Int64Array, progress: Progress
) -> dict[str, Int64Array]:
    """For each stream without count windows, the first row that has not expired when a tuple of time `ts` is joined."""
    found, watermarks = {}, progress.watermarks
    for stream, plan in plans.items():
        if not plan.ledgers:
            least = np.minimum(ts - plan.longest, bound(plan, watermarks))
            found[stream] = windows[stream].rows.tail + np.searchsorted(windows[stream].living("prefix_max"), least)
    return found


class Expiry:
    """Forgets what has expired of windows that tuples enter at once.

    When lazy, only once it is a few per cent of the window, because each look costs.
    """

    def __init__(self, *, lazy: bool) -> None:
        self._lazy = lazy
        self._before: dict[str, int] = {}
        """By stream: what is older has been forgotten."""
        self.kept_from: dict[str, int] = {}
        """By stream: what is older may have been forgotten; a window that has become longer does not bring it back."""

    def __call__(self, plans: Mapping[str, WindowPlan], windows: Mapping[str, WindowStore], progress: Progress) -> None:
        watermarks = progress.watermarks
        for stream, plan in plans.items():
            least = bound(plan, watermarks)
            self.kept_from[stream] = max(least, self.kept_from.get(stream, LONG_AGO))
            patience = plan.longest >> _PATIENCE_BITS if self._lazy else 0
            if least - self._before.get(stream, LONG_AGO) > patience:
                windows[stream].expire_before(least)
                self._before[stream] = least


def expire_matches(states: Mapping[str, MaterializedJoin], progress: Progress) -> None:
    """Forget stored matches that no reader can need."""
    for state in states.values():
        state.expire_before(progress.watermark(state.plan.awaited))


def alive(plan: WindowPlan, store: WindowStore, frontier: int, progress: Progress) -> BoolArray:
    """Which settled tuples a later one can still meet, all of which are at or after `frontier`."""
    marked = np.zeros(len(store.rows), np.bool_)
    for kept in plan.retention:
        horizon = min(frontier, progress.watermark(kept.others))
        if isinstance(kept.window, CountWindow):
            marked |= store.living(store.ledgers[kept.window].ends) >= horizon
        else:
            marked |= store.living("ts") >= horizon - kept.window.micros
    return marked
