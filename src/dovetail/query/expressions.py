"""Typed scalar expressions with explicit casts.

The binder inserts every coercion as a `cast`, so evaluators need no typing rules: the arguments of a comparison, of
`add`/`subtract`/`multiply`/`divide`/`modulo`, of `if` (branches), `coalesce`, `least` and `greatest` all have one SQL type, except
where `OPERATIONS` says otherwise. Evaluation never raises on data: where Spark's ANSI mode would fail a query (overflow, division by
zero, a value that does not fit a cast) the result is NULL, as with Spark's `try_` functions, because a stream must not stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

OPERATIONS = {
    "add": "a + b; also timestamp + interval, interval + interval",
    "subtract": "a - b; also timestamp - interval, timestamp - timestamp (an interval), interval - interval",
    "multiply": "a * b; decimals keep their own types",
    "divide": "a / b in double; NULL when b = 0",
    "modulo": "a % b with the sign of a; NULL when b = 0",
    "negate": "-a",
    "abs": "absolute value",
    "eq": "a = b; NaN equals NaN, -0.0 equals 0.0",
    "ne": "a <> b",
    "lt": "a < b; NaN is larger than any number",
    "le": "a <= b",
    "gt": "a > b",
    "ge": "a >= b",
    "null_safe_eq": "a <=> b: true when both are NULL, false when one is",
    "in": "in(a, constants...): a = one of them; the constants have a's type",
    "and": "three-valued",
    "or": "three-valued",
    "not": "three-valued",
    "is_null": "true or false",
    "coalesce": "the first argument that is not NULL",
    "if": "if(condition, then, otherwise); a NULL condition takes otherwise",
    "least": "the smallest argument, NULLs skipped",
    "greatest": "the largest argument, NULLs skipped",
    "lower": "text in lower case",
    "upper": "text in upper case",
    "trim": "text without spaces at either end",
    "length": "characters of a string or bytes of a binary, as int",
    "concat": "texts one after another; NULL if any is NULL",
    "substring": "substring(text, start, length), from 1; negative start counts from the end",
    "like": "like(text, pattern literal): % any run, _ any character, backslash escapes",
    "cast": "to the node's own type",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of one alias, with the stored type of the stream's schema."""

    alias: str
    name: str
    type: pa.DataType

    def __str__(self) -> str:
        return f"{self.alias}.{self.name}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant.

    Its value is an int, float, Decimal, str, bytes, bool, date, or None; for timestamps and intervals int microseconds.
    """

    value: object
    type: pa.DataType

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Call:
    """An operation of `OPERATIONS` on its arguments."""

    operation: str
    arguments: tuple[Expression, ...]
    type: pa.DataType

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.arguments))
        return f"{self.operation}({inner}, {self.type})" if self.operation == "cast" else f"{self.operation}({inner})"


Expression: TypeAlias = Column | Literal | Call


def cast(expression: Expression, dtype: pa.DataType) -> Expression:
    """Return `expression` cast to `dtype`, or itself if it has that type."""
    return expression if expression.type == dtype else Call("cast", (expression,), dtype)


def columns(expression: Expression) -> Iterator[Column]:
    """Yield every column reference in order of appearance, with repetitions."""
    stack: list[Expression] = [expression]
    while stack:
        part = stack.pop()
        if isinstance(part, Column):
            yield part
        elif isinstance(part, Call):
            stack.extend(reversed(part.arguments))


def depth(expression: Expression) -> int:
    """Return the nesting depth of calls."""
    deepest, stack = 0, [(expression, 0)]
    while stack:
        part, level = stack.pop()
        deepest = max(deepest, level)
        if isinstance(part, Call):
            stack.extend((argument, level + 1) for argument in part.arguments)
    return deepest


def aliases(expression: Expression) -> tuple[str, ...]:
    """Return the aliases that an expression refers to, each once, in order of appearance."""
    return tuple(dict.fromkeys(column.alias for column in columns(expression)))


def map_columns(expression: Expression, change: Callable[[Column], Column]) -> Expression:
    """Return a copy of an expression with every column passed through `change`."""
    if isinstance(expression, Column):
        return change(expression)
    if isinstance(expression, Call):
        return Call(expression.operation, tuple(map_columns(a, change) for a in expression.arguments), expression.type)
    return expression


MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
"""Comparisons with their sides exchanged."""
SYMMETRIC = {"eq", "ne", "null_safe_eq", "and", "or"}


def canonical(expression: Expression) -> Expression:
    """Return an expression with its symmetric and comparison operands in one canonical order."""
    if not isinstance(expression, Call):
        return expression
    arguments = tuple(canonical(argument) for argument in expression.arguments)
    operation = expression.operation
    if operation in MIRRORED or operation in SYMMETRIC:
        ordered = sorted(arguments, key=lambda argument: (isinstance(argument, Literal), str(argument)))
        if ordered[0] is not arguments[0]:
            operation = MIRRORED.get(operation, operation)
        arguments = tuple(ordered)
    return Call(operation, arguments, expression.type)


def rename_alias(expression: Expression, rename: Callable[[str], str]) -> Expression:
    """Return a copy of an expression with every alias passed through `rename`."""
    return map_columns(expression, lambda column: Column(rename(column.alias), column.name, column.type))
