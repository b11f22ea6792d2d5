"""Values of join keys that a window holds far more often than others, found in a sample of its tuples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.engine.keys import NULL_CODE
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.execution import WindowPlan
from dovetail.query.expressions import Expression

_LEAST = 1000
"""Tuples of a window that is asked."""
_SAMPLED = 4096
_HOT = 0.05
"""The share of a window's tuples from which on a value is hot."""


def hottest(store: WindowStore, plan: WindowPlan) -> dict[str, dict[str, int]]:
    """By key column and value: about how many tuples have a value that is hot."""
    held, found = len(store.rows), dict[str, dict[str, int]]()
    if held < _LEAST:
        return found
    places = np.random.default_rng(held).integers(0, held, _SAMPLED)  # at random: keys may come in turns
    for name, expression in plan.kept.parts.items():
        codes = store.living(store.codes[(name,)])[places]
        values, first, counts = np.unique(codes, return_index=True, return_counts=True)
        for number in np.flatnonzero((counts >= _HOT * _SAMPLED) & (values != NULL_CODE)).tolist():
            text = _text(store, name, expression, int(places[first[number]]))
            found.setdefault(name.removeprefix("."), {})[text] = int(held * counts[number] / _SAMPLED)
    return found


def _text(store: WindowStore, name: str, expression: Expression, place: int) -> str:
    """A value as text; where it is not kept itself, its code is the value."""
    if name in store.columns:
        return str(store.take(name, np.array([store.rows.tail + place]))[0].as_py())
    code, kind = store.living(store.codes[(name,)])[place : place + 1], expression.type
    if pa.types.is_floating(kind):
        return str(code.view(np.float64)[0].item())
    number = pa.array(code.view(np.int64))
    if pa.types.is_temporal(kind):
        number = number.cast(pa.int32() if kind.bit_width == number.type.bit_width // 2 else number.type).view(kind)
    return str(number[0].as_py())
