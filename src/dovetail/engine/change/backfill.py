"""Backfill: find the rows of a window from before a query's registration that the query may see.

For each row, a window keeps the columns and key parts that the views that see the row need. So a new query may see a row if, for each
column and key part that it needs, some view that sees the row needs it too. The query's filters may be evaluated on kept columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.execution import StepSource, View
from dovetail.plan.needs import Needs
from dovetail.query.expressions import Column, Expression, columns


@dataclass(frozen=True)
class VisibleRows:
    """Live rows of a window, as seen by some `views`; `needs`: what the window keeps for each user."""

    store: WindowStore
    views: Sequence[View]
    needs: Mapping[StepSource, Needs]

    def seen_by(self, condition: Callable[[View], bool]) -> BoolArray:
        """Return which rows are visible to at least one view that meets a condition."""
        visible = np.zeros(len(self.store.rows), np.bool_)
        for view in filter(condition, self.views):
            words, mask = self.store.flags(view.bit)
            visible |= (words & mask) != 0
        return visible

    def backfilled_for(self, view: View, needs: Needs, first: int) -> BoolArray:
        """Return which rows, from event time `first` on, a new view with these `needs` may see."""
        usable: BoolArray = self.store.live_values("ts") >= first
        for name in needs.columns:
            usable &= self._has_column(name)
        for name in needs.parts:
            usable &= self._has_needed(name, lambda needs: needs.parts)
        for key in view.keys:
            usable &= self._has_key(key)
        for condition in view.filters:
            usable &= self._satisfies(condition, usable)
        return usable

    def _has_key(self, key: Expression) -> BoolArray:
        return self.seen_by(lambda view: key in view.keys)

    def _has_column(self, name: str) -> BoolArray:
        return self._has_needed(name, lambda needs: needs.columns)

    def _has_needed(self, name: str, of: Callable[[Needs], Iterable[str]]) -> BoolArray:
        return self.seen_by(lambda view: any(name in of(self.needs[user]) for user in view.users))

    def _satisfies(self, condition: Expression, among: BoolArray) -> BoolArray:
        """Return which rows meet a condition.

        A row does if a view with that filter sees it, or if the condition is true of the kept columns.
        """
        met = self.seen_by(lambda view: condition in view.filters)
        unknown = among & ~met
        for column in columns(condition):
            unknown &= self._has_column(f".{column.name}")
        indices = np.flatnonzero(unknown)
        row_numbers = indices + self.store.rows.tail

        def resolve(column: Column) -> pa.Array:
            return self.store.take(f".{column.name}", row_numbers)

        if len(indices):
            met[indices] = is_true(evaluate(condition, resolve, len(indices)))
        return met
