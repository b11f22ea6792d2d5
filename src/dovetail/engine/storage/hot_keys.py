"""Find hot keys, the most frequent values of join keys, in a sample of a window's tuples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.engine.keys import NULL_CODE
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.execution import WindowPlan
from dovetail.query.expressions import Expression

_SMALLEST_WINDOW = 1000
"""Tuples below which a window is not sampled."""
_SAMPLES = 4096
_HOT_FRACTION = 0.05
"""Fraction of a window's tuples from which a value is hot."""


def find_hot_keys(store: WindowStore, plan: WindowPlan) -> dict[str, dict[str, int]]:
    """Return the estimated number of tuples of each hot value, by key column and value."""
    tuples, counts_by_value = len(store.rows), dict[str, dict[str, int]]()
    if tuples < _SMALLEST_WINDOW:
        return counts_by_value
    samples = np.random.default_rng(tuples).integers(
        0, tuples, _SAMPLES
    )  # random, because keys may arrive periodically
    for name, expression in plan.kept.parts.items():
        codes = store.live_values(store.codes[(name,)])[samples]
        values, first, counts = np.unique(codes, return_index=True, return_counts=True)
        for hot in np.flatnonzero((counts >= _HOT_FRACTION * _SAMPLES) & (values != NULL_CODE)).tolist():
            text = _text(store, name, expression, int(samples[first[hot]]))
            counts_by_value.setdefault(name.removeprefix("."), {})[text] = int(tuples * counts[hot] / _SAMPLES)
    return counts_by_value


def _text(store: WindowStore, name: str, expression: Expression, index: int) -> str:
    """Return the key value of live row `index` as text; if it is not stored, its code is the value."""
    if name in store.columns:
        return str(store.take(name, np.array([store.rows.tail + index]))[0].as_py())
    code, dtype = store.live_values(store.codes[(name,)])[index : index + 1], expression.type
    if pa.types.is_floating(dtype):
        return str(code.view(np.float64)[0].item())
    value = pa.array(code.view(np.int64))
    if pa.types.is_temporal(dtype):
        value = value.cast(pa.int32() if dtype.bit_width == value.type.bit_width // 2 else value.type).view(dtype)
    return str(value[0].as_py())
