"""Backfill: find the rows of a window from before a query's registration that the query may see.

For each row, a window keeps the columns and key parts that the views that see the row need. So a new query may see a row if, for each
column and key part that it needs, some view that sees the row needs it too. What is not held is computed from the columns that are:
filters, key parts and computed columns. The event time is held for every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyarrow.compute import if_else

from dovetail._typing import BoolArray, UInt64Array
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.keys import codes_of, combine
from dovetail.engine.storage.buffers import valid_mask
from dovetail.engine.storage.columns import TimeColumn
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.execution import StepSource, View
from dovetail.plan.needs import KeyId, Needs, column_name
from dovetail.query.expressions import Column, Expression, columns


@dataclass(frozen=True)
class VisibleRows:
    """Live rows of a window, as seen by some `views`; `needs`: what the window keeps for each user."""

    store: WindowStore
    views: Sequence[View]
    needs: Mapping[StepSource, Needs]
    codes: dict[str, UInt64Array] = field(default_factory=dict)
    """Codes of all live rows, by key part, where `backfilled_for` has computed some."""

    def write_codes(self) -> None:
        """Write the codes that were computed, with the codes of several parts and the indexes that follow."""
        store, names = self.store, self.codes.keys()
        for name, values in self.codes.items():
            _live_codes(store, (name,))[:] = values
        for key in store.codes:
            if len(key) > 1 and not names.isdisjoint(key):
                _live_codes(store, key)[:] = combine([_live_codes(store, (part,)) for part in key])
        if any(not names.isdisjoint(key) for key in store.indexes):
            store.rebuild_chains()

    def seen_by(self, condition: Callable[[View], bool]) -> BoolArray:
        """Return which rows are visible to at least one view that meets a condition."""
        visible = np.zeros(len(self.store.rows), np.bool_)
        for view in filter(condition, self.views):
            words, mask = self.store.flags(view.bit)
            visible |= (words & mask) != 0
        return visible

    def backfilled_for(self, view: View, needs: Needs, first: int) -> BoolArray:
        """Return which rows, from event time `first` on, a new view may see; compute what they lack."""
        usable: BoolArray = self.store.live_values("ts") >= first
        for name, expression in needs.columns.items():
            usable &= self._with_column(name, expression)
        for name, expression in needs.parts.items():
            usable &= self._with_part(name, expression)
        for key in view.keys:
            usable &= self._has_key(key)
        for condition in view.filters:
            usable &= self._satisfies(condition, usable)
        return usable

    def _has_column(self, column: Column) -> BoolArray:
        if self._is_event_time(column):
            return np.ones(len(self.store.rows), np.bool_)
        return self._has_needed(column_name(column), lambda needs: needs.columns)

    def _is_event_time(self, expression: Expression) -> bool:
        """Whether a column is the event time in a type that the window's microseconds convert to."""
        time = self.store.event_time
        return time is not None and column_name(expression) == time[0] and expression.type.unit != "ns"

    def _has_needed(self, name: str, of: Callable[[Needs], Iterable[str]]) -> BoolArray:
        return self.seen_by(lambda view: any(name in of(self.needs[user]) for user in view.users))

    def _has_inputs(self, expression: Expression) -> BoolArray:
        """Return which rows hold all columns of an expression."""
        held = np.ones(len(self.store.rows), np.bool_)
        for column in columns(expression):
            held &= self._has_column(column)
        return held

    def _with_column(self, name: str, expression: Expression) -> BoolArray:
        """Return which rows have a column; compute it, or take the event time, for others if possible."""
        is_event_time = self._is_event_time(expression)
        if isinstance(expression, Column) and not is_event_time:
            return self._has_column(expression)
        held = self._has_needed(name, lambda needs: needs.columns)
        computable = self._has_inputs(expression) & ~held
        column, rows = self.store.columns[name], self.store.rows
        if column.is_stored and computable.any():
            positions = pa.array(np.cumsum(computable) - 1, mask=~computable)
            computed = self._values(expression, computable).take(positions)
            column.rewrite(if_else(pa.array(held), column.take(np.arange(len(rows)) + rows.tail - rows.base), computed))
        return held | computable

    def _with_part(self, name: str, expression: Expression) -> BoolArray:
        """Return which rows have the code of a key part; it is computed for the others if possible."""
        held = self._has_needed(name, lambda needs: needs.parts)
        computable = self._has_inputs(expression) & ~held
        if computable.any():
            if name not in self.codes:
                self.codes[name] = _live_codes(self.store, (name,)).copy()
            self.codes[name][computable] = codes_of(self._values(expression, computable))
        return held | computable

    def _has_key(self, key: Expression) -> BoolArray:
        """Return which rows have a key that is not NULL: a view with that key sees them, or its value is one."""
        present = self.seen_by(lambda view: key in view.keys)
        unknown = self._has_inputs(key) & ~present
        if unknown.any():
            valid = valid_mask(self._values(key, unknown))
            present[unknown] = True if valid is None else valid
        return present

    def _satisfies(self, condition: Expression, among: BoolArray) -> BoolArray:
        """Return which rows meet a condition.

        A row does if a view with that filter sees it, or if the condition is true of the kept columns.
        """
        met = self.seen_by(lambda view: condition in view.filters)
        unknown = among & ~met & self._has_inputs(condition)
        if unknown.any():
            met[unknown] = is_true(self._values(condition, unknown))
        return met

    def _values(self, expression: Expression, among: BoolArray) -> pa.Array:
        """Evaluate an expression over some rows, which hold its columns."""
        row_numbers = np.flatnonzero(among) + self.store.rows.tail

        def resolve(column: Column) -> pa.Array:
            if self.store.event_time is not None and self._is_event_time(column):
                times = TimeColumn(self.store.rows, *self.store.event_time)
                return times.take(row_numbers - self.store.rows.base).cast(column.type)
            return self.store.take(f".{column.name}", row_numbers)

        return evaluate(expression, resolve, len(row_numbers))


def _live_codes(store: WindowStore, key: KeyId) -> UInt64Array:
    """Return the codes of the live rows, to read or write."""
    return store.live_values(store.codes[key]).view(np.uint64)
