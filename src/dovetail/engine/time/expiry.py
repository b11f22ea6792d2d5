"""Expiry of rows that no later result needs.

Eager expiration also hides rows before they are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.progress import Progress
from dovetail.plan.execution import WindowPlan
from dovetail.query.model import CountWindow

_SLACK_BITS = 5
"""Lazy expiration lets a window grow by one part in 2 to this power before it drops rows."""


def oldest_needed(window: WindowPlan, watermarks: Mapping[str, int]) -> int:
    """Return the event time below which no time window needs a tuple, given the watermarks of all streams."""
    if not window.micros_by_others:
        return LONG_AGO
    ends = [min([watermarks[other] for other in others]) - micros for others, micros in window.micros_by_others.items()]
    return max(min(ends), LONG_AGO)


def floors(
    plans: Mapping[str, WindowPlan], windows: Mapping[str, WindowStore], ts: Int64Array, progress: Progress
) -> dict[str, Int64Array]:
    """Return, by stream, the first row that has not expired for each tuple of time `ts`.

    Streams with count windows are omitted.
    """
    first_rows, watermarks = {}, progress.watermarks
    for stream, plan in plans.items():
        if not plan.expiry_tables:
            oldest = np.minimum(ts - plan.longest_micros, oldest_needed(plan, watermarks))
            first_rows[stream] = windows[stream].rows.tail + np.searchsorted(
                windows[stream].live_values("prefix_max"), oldest
            )
    return first_rows


class Expiry:
    """Drops expired rows of time windows.

    If `lazy`, it drops them only once they are about 3% of the window, to save time.
    """

    def __init__(self, *, lazy: bool) -> None:
        self._lazy = lazy
        self._dropped_before: dict[str, int] = {}
        """Event time before which tuples have been dropped, by stream."""
        self.kept_from: dict[str, int] = {}
        """Event time before which tuples may be missing, by stream. It never decreases, even if a window becomes longer."""

    def drop_expired(
        self,
        plans: Mapping[str, WindowPlan],
        windows: Mapping[str, WindowStore],
        progress: Progress,
        list_held: Mapping[str, Callable[[], Int64Array]],
    ) -> None:
        """Drop expired rows, except those that a shedder holds.

        By stream, a function in `list_held` returns the latter.
        """
        watermarks = progress.watermarks
        for stream, plan in plans.items():
            oldest = oldest_needed(plan, watermarks)
            self.kept_from[stream] = max(oldest, self.kept_from.get(stream, LONG_AGO))
            slack = plan.longest_micros >> _SLACK_BITS if self._lazy else 0
            if oldest - self._dropped_before.get(stream, LONG_AGO) > slack:
                windows[stream].expire_before(oldest, list_held.get(stream))
                self._dropped_before[stream] = oldest


def expire_matches(joins: Mapping[str, MaterializedJoin], progress: Progress) -> None:
    """Drop the matches of materialized joins that no reader needs."""
    for join in joins.values():
        join.expire_matches(progress.watermark(join.plan.awaited))


def needed_rows(plan: WindowPlan, store: WindowStore, frontier: int, progress: Progress) -> BoolArray:
    """Return which settled tuples can still match one that settles later, at or after `frontier`."""
    needed = np.zeros(len(store.rows), np.bool_)
    for retention in plan.retention:
        horizon = min(frontier, progress.watermark(retention.others))
        if isinstance(retention.window, CountWindow):
            needed |= store.live_values(store.count_window_ends[retention.window].ends) >= horizon
        else:
            needed |= store.live_values("ts") >= horizon - retention.window.micros
    return needed
