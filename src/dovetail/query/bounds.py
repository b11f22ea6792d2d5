"""What conditions say about how far event times lie apart.

A condition that bounds the difference of two event times is a *difference constraint*, `ts_left - ts_right <= micros`.
Only a comparison that holds in every result counts, and only the event-time columns that streams declare: another
timestamp says nothing about windows. Event times are whole microseconds, so a strict bound is one microsecond tighter.
Where adding an interval overflows, the comparison is NULL and there is no result: a bound read here is never too tight.

Constraints are closed by shortest paths. What the closure gives is exact: for every pair some choice of event times
meets all constraints with equality there, unless a cycle of them contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dovetail.query.expressions import Call, Column, Expression, Literal


@dataclass(frozen=True, slots=True)
class Bound:
    """The event time of `left` is at most `micros` after that of `right`; `text` is where this is written."""

    left: str
    right: str
    micros: int
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The tightest bound of each pair that follows, with the bounds it follows from; or those that contradict each other."""

    paths: Mapping[tuple[str, str], tuple[int, tuple[Bound, ...]]] = field(default_factory=dict)
    conflict: tuple[Bound, ...] = ()

    def upper(self, left: str, right: str) -> int | None:
        """The largest `ts_left - ts_right`; None if there is none."""
        found = self.paths.get((left, right))
        return None if found is None else found[0]

    def reach(self, alias: str, others: Iterable[str]) -> tuple[int, tuple[Bound, ...]] | None:
        """How long after its own time an alias can be needed, and why; None if nothing says so."""
        found = [self.paths.get((other, alias)) for other in others if other != alias]
        if None in found:
            return None
        known = [path for path in found if path is not None]
        return max([0, *(micros for micros, _ in known)]), tuple(dict.fromkeys(b for _, path in known for b in path))


def close(bounds: Sequence[Bound]) -> Closed:
    """Everything that follows from some bounds.

    >>> closed = close([Bound("b", "a", 5, "b <= a + 5"), Bound("c", "b", 2, "c <= b + 2")])
    >>> closed.upper("c", "a"), closed.upper("a", "c")
    (7, None)
    """
    paths: dict[tuple[str, str], tuple[int, tuple[Bound, ...]]] = {}
    for bound in bounds:
        known = paths.get((bound.left, bound.right))
        if known is None or bound.micros < known[0]:
            paths[bound.left, bound.right] = (bound.micros, (bound,))
    names = list(dict.fromkeys(name for bound in bounds for name in (bound.left, bound.right)))
    for middle in names:
        ends = [(name, *paths[middle, name]) for name in names if (middle, name) in paths]
        for left in [name for name in names if (name, middle) in paths]:
            first, why = paths[left, middle]
            for right, second, because in ends:
                if left == right and first + second < 0:
                    return Closed(conflict=tuple(dict.fromkeys((*why, *because))))
                known = paths.get((left, right))
                if left != right and (known is None or first + second < known[0]):
                    paths[left, right] = (first + second, (*why, *because))
    return Closed(paths)


_ORDERED = {"lt": (0, 1, 1), "le": (0, 1, 0), "gt": (1, 0, 1), "ge": (1, 0, 0)}
"""By comparison: which argument is the smaller, which the larger, and by how much at least."""
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "ne": "eq", "eq": "ne"}
_Sum = tuple[dict[str, int], int]
"""How often each alias's event time is added, and a number of microseconds."""


def bounds_of(expression: Expression, text: str, times: Mapping[str, str]) -> Iterator[Bound]:
    """The bounds that hold where an expression is true; `times` gives the event-time column of each alias."""
    for small, large, gap in _comparisons(expression, holds=True):
        for sign in (1, -1) if isinstance(small, Call) and small.operation == "abs" else (1,):
            left = _sum(small.arguments[0] if isinstance(small, Call) and small.operation == "abs" else small, times)
            right = _sum(large, times)
            if left is not None and right is not None:
                yield from _bound(_plus(_times(left, sign), right, -1), gap, text)


def _comparisons(expression: Expression, *, holds: bool) -> Iterator[tuple[Expression, Expression, int]]:
    """The smaller side, the larger side and their distance at least, for each comparison that must hold (or must not)."""
    if not isinstance(expression, Call):
        return
    operation, arguments = expression.operation, expression.arguments
    if operation == "not":
        yield from _comparisons(arguments[0], holds=not holds)
    elif operation == ("and" if holds else "or"):
        for argument in arguments:
            yield from _comparisons(argument, holds=holds)
    else:
        operation = operation if holds else _OPPOSITE.get(operation, "")
        for name in ("le", "ge") if operation == "eq" else (operation,):
            if name in _ORDERED:
                small, large, gap = _ORDERED[name]
                yield arguments[small], arguments[large], gap


def _sum(expression: Expression, times: Mapping[str, str]) -> _Sum | None:
    """An expression as a sum of event times and intervals; None if it is anything else."""
    if isinstance(expression, Column):
        return ({expression.alias: 1}, 0) if times[expression.alias] == expression.name else None
    if isinstance(expression, Literal):
        known = pa.types.is_duration(expression.type) and isinstance(expression.value, int)
        return ({}, expression.value) if known and isinstance(expression.value, int) else None
    operation, arguments = expression.operation, expression.arguments
    if operation == "cast" and isinstance(arguments[0], Column) and pa.types.is_timestamp(expression.type):
        return _sum(arguments[0], times)
    if operation not in ("add", "subtract", "negate"):
        return None
    parts = [_sum(argument, times) for argument in arguments]
    first, last = parts[0], parts[-1]
    if first is None or last is None:
        return None
    if operation == "negate":
        return _times(first, -1)
    return _plus(first, last, 1 if operation == "add" else -1)


def _times(one: _Sum, factor: int) -> _Sum:
    return {name: factor * count for name, count in one[0].items()}, factor * one[1]


def _plus(one: _Sum, other: _Sum, factor: int) -> _Sum:
    names = dict.fromkeys((*one[0], *other[0]))
    counts = {name: one[0].get(name, 0) + factor * other[0].get(name, 0) for name in names}
    return {name: count for name, count in counts.items() if count}, one[1] + factor * other[1]


def _bound(difference: _Sum, gap: int, text: str) -> Iterator[Bound]:
    """What `difference <= -gap` says."""
    counts, micros = difference
    by_count = {count: name for name, count in counts.items()}
    if len(counts) == 2 and by_count.keys() == {1, -1}:
        yield Bound(by_count[1], by_count[-1], -micros - gap, text)
