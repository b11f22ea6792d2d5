"""Bounds on the differences of event times, derived from the conditions of a query.

A condition that bounds the difference of two event times is a *difference constraint*, `ts_left - ts_right <= micros`.
Only comparisons that hold in every result count, and only the event-time columns that streams declare: other
timestamps do not limit windows. Event times are whole microseconds, so a strict bound is one microsecond tighter.
Where adding an interval overflows, the comparison is NULL and there is no result: a derived bound is never too tight.

Shortest paths close the constraints. The closure is exact: for every pair, some choice of event times meets all
constraints with equality in that pair, unless a cycle of constraints contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dovetail.query.expressions import Call, Column, Expression, Literal


@dataclass(frozen=True, slots=True)
class Bound:
    """A constraint: the event time of `left` is at most `micros` after that of `right`; `text` is its SQL."""

    left: str
    right: str
    micros: int
    text: str


@dataclass(frozen=True, slots=True)
class BoundClosure:
    """The tightest bound of each pair of aliases, or the bounds in conflict.

    Each has the bounds that it is derived from.
    """

    paths: Mapping[tuple[str, str], tuple[int, tuple[Bound, ...]]] = field(default_factory=dict)
    conflict: tuple[Bound, ...] = ()

    def upper(self, left: str, right: str) -> int | None:
        """Return the largest `ts_left - ts_right`; None if it is unbounded."""
        path = self.paths.get((left, right))
        return None if path is None else path[0]

    def required_window(self, alias: str, others: Iterable[str]) -> tuple[int, tuple[Bound, ...]] | None:
        """Return the microseconds that a tuple of an alias can still match.

        The bounds that imply it are returned, too; None if it is unbounded.
        """
        paths = [self.paths.get((other, alias)) for other in others if other != alias]
        bounded = [path for path in paths if path is not None]
        if len(bounded) < len(paths):
            return None
        return max([0, *(micros for micros, _ in bounded)]), tuple(
            dict.fromkeys(b for _, path in bounded for b in path)
        )


def close_bounds(bounds: Sequence[Bound]) -> BoundClosure:
    """Derive the tightest bound of every pair of aliases.

    >>> closure = close_bounds([Bound("b", "a", 5, "b <= a + 5"), Bound("c", "b", 2, "c <= b + 2")])
    >>> closure.upper("c", "a"), closure.upper("a", "c")
    (7, None)
    """
    paths: dict[tuple[str, str], tuple[int, tuple[Bound, ...]]] = {}
    for bound in bounds:
        tightest = paths.get((bound.left, bound.right))
        if tightest is None or bound.micros < tightest[0]:
            paths[bound.left, bound.right] = (bound.micros, (bound,))
    names = list(dict.fromkeys(name for bound in bounds for name in (bound.left, bound.right)))
    for middle in names:
        ends = [(name, *paths[middle, name]) for name in names if (middle, name) in paths]
        for left in [name for name in names if (name, middle) in paths]:
            first, first_bounds = paths[left, middle]
            for right, second, second_bounds in ends:
                if left == right and first + second < 0:
                    return BoundClosure(conflict=tuple(dict.fromkeys((*first_bounds, *second_bounds))))
                tightest = paths.get((left, right))
                if left != right and (tightest is None or first + second < tightest[0]):
                    paths[left, right] = (first + second, (*first_bounds, *second_bounds))
    return BoundClosure(paths)


_ORDERED = {"lt": (0, 1, 1), "le": (0, 1, 0), "gt": (1, 0, 1), "ge": (1, 0, 0)}
"""For each comparison: the index of the smaller argument, of the larger one, and their minimum distance."""
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "ne": "eq", "eq": "ne"}
_Sum = tuple[dict[str, int], int]
"""A linear sum: the coefficient of each alias's event time, and a number of microseconds."""


def bounds_of(expression: Expression, text: str, event_time_columns: Mapping[str, str]) -> Iterator[Bound]:
    """Yield the bounds that hold where an expression is true; `event_time_columns` are by alias."""
    for small, large, gap in _comparisons(expression, holds=True):
        signs: tuple[int, ...] = (1,)
        if isinstance(small, Call) and small.operation == "abs":
            small, signs = small.arguments[0], (1, -1)  # noqa: PLW2901 - |x| <= y holds if x <= y and -x <= y
        left, right = _sum(small, event_time_columns), _sum(large, event_time_columns)
        if left is None or right is None:
            continue
        for sign in signs:
            yield from _bound(_added(_scaled(left, sign), right, -1), gap, text)


def _comparisons(expression: Expression, *, holds: bool) -> Iterator[tuple[Expression, Expression, int]]:
    """Yield the smaller side, the larger side and their minimum distance.

    There is one for each comparison that must hold (or must not).
    """
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


def _sum(expression: Expression, event_time_columns: Mapping[str, str]) -> _Sum | None:
    """Return an expression as a sum of event times and intervals; None if it is anything else."""
    if isinstance(expression, Column):
        return ({expression.alias: 1}, 0) if event_time_columns[expression.alias] == expression.name else None
    if isinstance(expression, Literal):
        is_interval = pa.types.is_duration(expression.type)
        return ({}, expression.value) if is_interval and isinstance(expression.value, int) else None
    operation, arguments = expression.operation, expression.arguments
    if operation == "cast" and isinstance(arguments[0], Column) and pa.types.is_timestamp(expression.type):
        return _sum(arguments[0], event_time_columns)
    if operation not in ("add", "subtract", "negate"):
        return None
    parts = [_sum(argument, event_time_columns) for argument in arguments]
    first, last = parts[0], parts[-1]
    if first is None or last is None:
        return None
    if operation == "negate":
        return _scaled(first, -1)
    return _added(first, last, 1 if operation == "add" else -1)


def _scaled(terms: _Sum, factor: int) -> _Sum:
    return {name: factor * count for name, count in terms[0].items()}, factor * terms[1]


def _added(first: _Sum, second: _Sum, factor: int) -> _Sum:
    """Return `first + factor * second`."""
    names = dict.fromkeys((*first[0], *second[0]))
    counts = {name: first[0].get(name, 0) + factor * second[0].get(name, 0) for name in names}
    return {name: count for name, count in counts.items() if count}, first[1] + factor * second[1]


def _bound(difference: _Sum, gap: int, text: str) -> Iterator[Bound]:
    """Yield the bound `difference <= -gap`, if it is between two aliases."""
    counts, micros = difference
    by_count = {count: name for name, count in counts.items()}
    if len(counts) == 2 and by_count.keys() == {1, -1}:
        yield Bound(by_count[1], by_count[-1], -micros - gap, text)
