"""Conditions that can provably never hold, such as comparisons with NULL.

Each expression is compared with constants in one type, and has one value in a result. Columns that an equality joins have the same
value if both have the same type. Nothing else is concluded: no warning is given unless there can be no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dovetail.query.expressions import MIRRORED, Call, Column, Expression, Literal
from dovetail.query.model import Condition, Equality
from dovetail.schema import is_integer

_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "ne": "eq", "eq": "ne"}
_COMPARED = {*_OPPOSITE, "in"}
_Bound = tuple[Any, bool, str]
"""A constant, whether it is excluded, and the condition that it is from."""


def contradiction_warnings(conditions: Iterable[Condition], equalities: Sequence[Equality]) -> Iterator[str]:
    """Yield at most one warning: conditions that cannot hold together, or one that never holds."""
    representatives = _representatives(equalities)
    values: dict[str, _Values] = {}
    keys = {str(key.expression): edge.text for edge in equalities for key in (edge.left, edge.right)}
    for condition in conditions:
        for part, holds in _conjuncts(condition.expression, holds=True):
            texts = _never(part, condition.text, keys, holds=holds)
            if not texts and (compared := _comparison(part, holds=holds)) is not None:
                subject, operation, constants = compared
                name = representatives.get(str(subject), str(subject))
                known = values.setdefault(name, _Values(is_integer(subject.type)))
                texts = known.add(operation, constants, condition.text)
            if texts:
                unique = list(dict.fromkeys(texts))
                verb = "contradict each other" if len(unique) > 1 else "never holds"
                quoted = " and ".join(repr(text) for text in unique)
                hint = (
                    "\nHint: a comparison with NULL is not true; write IS NULL, IS NOT NULL or <=>"
                    if _has_null(part)
                    else ""
                )
                yield f"there can be no result: {quoted} {verb}{hint}"
                return


def _representatives(equalities: Sequence[Equality]) -> dict[str, str]:
    """Return a common name for columns of one type that are equal in every result."""
    names: dict[str, str] = {}
    for edge in equalities:
        left, right = edge.left.expression, edge.right.expression
        if isinstance(left, Column) and isinstance(right, Column) and left.type == right.type == edge.type:
            first, second = names.get(str(left), str(left)), names.get(str(right), str(right))
            names = {name: first if common == second else common for name, common in names.items()}
            names |= {str(left): first, str(right): first}
    return names


def _conjuncts(expression: Expression, *, holds: bool) -> Iterator[tuple[Expression, bool]]:
    """Yield the parts of a condition that must be true, or false where `holds` is not set."""
    if isinstance(expression, Call) and expression.operation == "not":
        yield from _conjuncts(expression.arguments[0], holds=not holds)
    elif isinstance(expression, Call) and expression.operation == ("and" if holds else "or"):
        for argument in expression.arguments:
            yield from _conjuncts(argument, holds=holds)
    else:
        yield expression, holds


def _never(part: Expression, text: str, keys: dict[str, str], *, holds: bool) -> list[str]:
    """Return the text of a condition that never holds alone, with that of the equality that excludes it."""
    if isinstance(part, Literal):
        return [text] if part.value is None or bool(part.value) is not holds else []
    if not isinstance(part, Call):
        return []
    arguments = part.arguments
    if part.operation == "is_null" and holds and str(arguments[0]) in keys:
        return [text, keys[str(arguments[0])]]
    has_null = any(isinstance(argument, Literal) and argument.value is None for argument in arguments)
    if part.operation in _OPPOSITE and has_null:
        return [text]
    if part.operation == "in" and has_null and not holds:
        return [text]
    operation = part.operation if holds else _OPPOSITE.get(part.operation, "")
    return [text] if operation in ("ne", "lt", "gt") and arguments[0] == arguments[1] else []


def _comparison(part: Expression, *, holds: bool) -> tuple[Expression, str, list[object]] | None:
    """Return the parts of a comparison with constants; None if it is anything else."""
    if isinstance(part, Column) or (isinstance(part, Call) and part.operation not in {*_COMPARED, "null_safe_eq"}):
        return (part, "eq", [holds]) if part.type == pa.bool_() else None
    if not isinstance(part, Call) or (part.operation == "null_safe_eq" and not holds):
        return None
    operation, (first, *others) = part.operation.replace("null_safe_eq", "eq"), part.arguments
    if operation == "in":
        constants = [argument.value for argument in others if isinstance(argument, Literal)]
        return (first, "in", constants) if holds and len(constants) == len(others) else None
    second = others[0]
    if isinstance(first, Literal):
        first, second, operation = second, first, MIRRORED.get(operation, operation)
    if isinstance(first, Literal) or not isinstance(second, Literal) or second.value is None:
        return None
    operation = operation if holds else _OPPOSITE[operation]
    return None if operation == "ne" else (first, operation, [second.value])


def _has_null(part: Expression) -> bool:
    is_comparison = isinstance(part, Call) and part.operation in _COMPARED
    return is_comparison and any(isinstance(a, Literal) and a.value is None for a in part.arguments)  # type: ignore[union-attr]


@dataclass
class _Values:
    """The values that an expression can have, by the conditions so far."""

    whole: bool
    """Whether it is an integer."""
    low: _Bound | None = None
    high: _Bound | None = None
    allowed: list[tuple[list[Any], str]] = field(default_factory=list)
    """Lists of values, one of which it has, with their conditions."""

    def add(self, operation: str, constants: list[Any], text: str) -> list[str]:
        """Add a condition; return the texts of conditions that contradict each other."""
        if operation in ("eq", "in"):
            self.allowed.append((constants, text))
        elif operation in ("lt", "le"):
            bound = (constants[0], operation == "lt", text)
            if self.high is None or (bound[0], not bound[1]) < (self.high[0], not self.high[1]):
                self.high = bound
        else:
            bound = (constants[0], operation == "gt", text)
            if self.low is None or (bound[0], bound[1]) > (self.low[0], self.low[1]):
                self.low = bound
        return self._contradiction()

    def _contradiction(self) -> list[str]:
        if self.low is not None and self.high is not None and self._is_empty(self.low, self.high):
            return [self.low[2], self.high[2]]
        for index, (constants, text) in enumerate(self.allowed):
            for others, other in self.allowed[:index]:
                if not any(value == constant for value in constants for constant in others):
                    return [other, text]
            for bound, is_low in ((self.low, True), (self.high, False)):
                if bound is not None and not any(self._fits(value, bound, is_low=is_low) for value in constants):
                    return [bound[2], text]
        return []

    def _is_empty(self, low: _Bound, high: _Bound) -> bool:
        if self.whole and low[1] and high[1] and isinstance(low[0], int) and isinstance(high[0], int):
            return low[0] + 1 >= high[0]
        return bool(low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])))

    @staticmethod
    def _fits(value: Any, bound: _Bound, *, is_low: bool) -> bool:
        if value is None:
            return False
        return bool(value == bound[0] and not bound[1]) or bool(value > bound[0] if is_low else value < bound[0])
