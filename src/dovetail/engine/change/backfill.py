"""Which rows of a window a query may see that came before it.

What is known of a row follows from who sees it: all that they need of it was kept when it came. So a row counts if for each thing
that the new query needs somebody saw it who needs that as well. Its filters may also be computed from columns that are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.execution import User, View
from dovetail.plan.needs import Needs
from dovetail.query.expressions import Column, Expression, columns


@dataclass(frozen=True)
class HeldRows:
    """The living rows of a window, as the users of some `views` have seen them; `asked` is what each user needs of it."""

    store: WindowStore
    views: Sequence[View]
    asked: Mapping[User, Needs]

    def seen_by(self, is_one: Callable[[View], bool]) -> BoolArray:
        """Which rows some view sees of those that `is_one` says."""
        visible = np.zeros(len(self.store.rows), np.bool_)
        for view in filter(is_one, self.views):
            words, bit = self.store.flags(view.bit)
            visible |= (words & bit) != 0
        return visible

    def known_to(self, view: View, needs: Needs, first: int) -> BoolArray:
        """Which rows, from event time `first` on, a new view whose users have these `needs` can be shown."""
        held: BoolArray = self.store.living("ts") >= first
        for name in needs.columns:
            held &= self._has_column(name)
        for name in needs.parts:
            held &= self._read(name, lambda needs: needs.parts)
        for key in view.keys:
            held &= self._has_key(key)
        for condition in view.filters:
            held &= self._satisfies(condition, held)
        return held

    def _has_key(self, key: Expression) -> BoolArray:
        return self.seen_by(lambda view: key in view.keys)

    def _has_column(self, name: str) -> BoolArray:
        return self._read(name, lambda needs: needs.columns)

    def _read(self, name: str, of: Callable[[Needs], Iterable[str]]) -> BoolArray:
        return self.seen_by(lambda view: any(name in of(self.asked[user]) for user in view.users))

    def _satisfies(self, condition: Expression, among: BoolArray) -> BoolArray:
        """Which of some rows meet a condition: those who see them have it as well, or its columns are known."""
        met = self.seen_by(lambda view: condition in view.filters)
        open_ = among & ~met
        for column in columns(condition):
            open_ &= self._has_column(f".{column.name}")
        places = np.flatnonzero(open_)
        numbers = places + self.store.rows.tail

        def resolve(column: Column) -> pa.Array:
            return self.store.take(f".{column.name}", numbers)

        if len(places):
            met[places] = is_true(evaluate(condition, resolve, len(places)))
        return met
