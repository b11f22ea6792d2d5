"""One stream's window and everyone who uses it.

The store holds what any alias of any query needs, and no more; adding or dropping a query changes its layout. Each alias has a
flag bit of its own, so that a row is visible to those it was checked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dovetail.engine.intake import Needs, Usage, free_bit
from dovetail.engine.keys import is_exact
from dovetail.engine.needs import AliasNeeds, stored_name
from dovetail.engine.window_store import LONG_AGO, WindowStore
from dovetail.query.expressions import Call, Column, Expression, cast, rename_alias
from dovetail.query.model import CountWindow, JoinQuery, StreamRef, TimeWindow
from dovetail.schema import StreamSchema, sql_type


@dataclass(slots=True)
class SharedWindow:
    """One stream's store and everyone who uses it."""

    schema: StreamSchema
    store: WindowStore
    usages: dict[tuple[str, str], Usage] = field(default_factory=dict)
    windows: dict[tuple[str, str], StreamRef] = field(default_factory=dict)
    needed: dict[tuple[str, str], AliasNeeds] = field(default_factory=dict)
    needs: Needs = field(default_factory=lambda: Needs({}, {}, set()))
    first_new: int = 0
    expired_before: int = LONG_AGO
    longest: int = 0
    """The longest time window of any usage; 0 when all are count windows."""

    def add(self, query: JoinQuery, ref: StreamRef, needs: AliasNeeds, place: tuple[int, int] | None) -> Usage:
        """Let one alias use the window, at a given (word, bit) when restoring."""
        word, bit = place or free_bit((usage.word, int(usage.bit)) for usage in self.usages.values())
        while self.store.flag_words <= word:
            self.store.add_flag_word()
        if place is None:
            self.store.clear_flag(word, bit)
        filters, keys = alias_filters(query, ref.alias), alias_keys(query, ref.alias)
        usage = Usage(query.name, ref.alias, filters, keys, word, np.uint64(bit))
        owner = (query.name, ref.alias)
        self.usages[owner], self.windows[owner], self.needed[owner] = usage, ref, needs
        if isinstance(ref.window, CountWindow):
            self._add_count_window(ref.window, needs)
        else:
            self._settle_layout()
        return usage

    def change_needs(self, owner: tuple[str, str], needs: AliasNeeds) -> None:
        """Let one alias be probed in another way. Columns and key parts are the same in any order, and rows have them already."""
        before = self.needed[owner]
        needs.columns.update(before.columns)
        needs.parts.update(before.parts)
        needs.codes |= {key for key in before.codes if len(key) == 1}
        self.needed[owner] = needs
        self._settle_layout()

    def change_window(self, run: str, ref: StreamRef) -> None:
        """Let one alias have another time window."""
        self.windows[run, ref.alias] = ref
        self._settle_layout()

    def drop(self, owner: tuple[str, str]) -> None:
        del self.usages[owner], self.windows[owner], self.needed[owner]
        used = {ref.window for ref in self.windows.values()}
        for window in [window for window in self.store.ledgers if window not in used]:
            self.store.remove_count_window(window)
        self._settle_layout()

    def _add_count_window(self, window: CountWindow, needs: AliasNeeds) -> None:
        if window.partition_by is None:
            self._settle_layout()
            self.store.add_count_window(window, None, "")
            return
        column = Column("", window.partition_by, self.schema.columns.field(window.partition_by).type)
        key = cast(column, sql_type(column.type) or column.type)
        if pa.types.is_decimal(key.type) and not is_exact(key.type):
            key = cast(key, pa.string())  # values of any length are told apart by their bytes
        needs.add_part(key)
        needs.add_column(column)
        self._settle_layout()
        self.store.add_count_window(window, (stored_name(key),), stored_name(column if is_exact(key.type) else key))

    def _settle_layout(self) -> None:
        """Make the store hold what is needed now, and no more."""
        total = AliasNeeds()
        for needs in self.needed.values():
            total.update(needs)
        store = self.store
        for name in [name for name in store.columns if name not in total.columns]:
            store.remove_column(name)
        for key in [key for key in store.codes if key not in total.codes]:
            store.remove_key(key)
        for key in [key for key in store.indexes if key not in total.indexes]:
            store.remove_index(key)
        for name, expression in total.columns.items():
            store.add_column(name, expression.type)
        for key in sorted(
            total.codes, key=lambda key: (len(key), key)
        ):  # parts before the keys that are mixed from them
            store.add_codes(key)
        for key in sorted(total.indexes):
            store.add_index(key)
        plain = [name for name, expression in total.columns.items() if isinstance(expression, Column)]
        computed = {name: expression for name, expression in total.columns.items() if name not in plain}
        self.needs = Needs(computed, total.parts, total.codes)
        spans = [ref.window.micros for ref in self.windows.values() if isinstance(ref.window, TimeWindow)]
        self.longest = max(spans, default=0)


def alias_filters(query: JoinQuery, alias: str) -> tuple[Expression, ...]:
    """An alias's filters, the equality of its own keys within one class among them."""
    written = [condition.expression for condition in query.filters if condition.aliases == (alias,)]
    for group in query.classes:
        first, *others = group.of(alias) or (None,)
        if first is not None:
            written.extend(Call("eq", (first, other), pa.bool_()) for other in others)
    return tuple(rename_alias(expression, lambda _: "") for expression in written)


def alias_keys(query: JoinQuery, alias: str) -> dict[str, Expression]:
    """One key of each class that the alias takes part in, by name."""
    keys = (rename_alias(group.of(alias)[0], lambda _: "") for group in query.classes if group.of(alias))
    return {str(key): key for key in keys}
