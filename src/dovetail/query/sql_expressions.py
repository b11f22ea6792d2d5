"""The expression binder: sqlglot nodes to typed expressions.

Each supported sqlglot node has one entry in a table; any other node is rejected by name, so no construct is partly
understood. Everything is lowered to the operations of `expressions`: BETWEEN, CASE and NULLIF do not exist after this
module. An error raised while a node is bound points at the innermost node that has a position in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from sqlglot import exp

from dovetail.errors import QueryError
from dovetail.query import functions, texts
from dovetail.query.binder import Scope
from dovetail.query.conversion_hints import interval_cast_hint
from dovetail.query.expressions import Call, Column, Expression, Literal
from dovetail.query.intervals import read_interval
from dovetail.query.refusals import is_double_quoted, quoted_column_warning, unsupported
from dovetail.query.sql_text import SqlText
from dovetail.schema import LARGEST_DECIMAL, MICROSECOND, TIMESTAMP, TIMESTAMP_NTZ, common_type

Handler: TypeAlias = "Callable[[ExpressionBinder, Any], Expression]"

_TYPES = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
    "BINARY": pa.binary(),
}
_TYPE_NAMES = (
    "tinyint, smallint, int, bigint, float, double, decimal(p,s), "
    "string, boolean, date, timestamp, timestamp_ntz, binary"
)
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeEQ: "null_safe_eq",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.Mod: "modulo",
}

_READ_ARGUMENTS = {
    "this",
    "expression",
    "table",
    "db",
    "catalog",
    "default",
    "true",
    "false",
    "low",
    "high",
    "start",
    "length",
    "unit",
    "to",
    "position",
    "query",
}
"""Arguments of nodes that handlers read. A node with any other argument is rejected."""


class ExpressionBinder:
    """Binder of the expressions of one query."""

    def __init__(self, sql_text: SqlText, scope: Scope) -> None:
        self._sql_text = sql_text
        self._scope = scope
        self._columns_by_name: dict[str, list[Column]] = {}
        for column in (column for binding in scope.bindings for column in scope.columns_of(binding)):
            for name in (str(column), column.name):
                self._columns_by_name.setdefault(name, []).append(column)
        self.warnings: dict[str, None] = {}
        """Warnings to show when the query is registered, each once."""

    def bind(self, node: exp.Expr) -> Expression:
        """Return the typed expression of a node; a bare column keeps its stored type."""
        with self._sql_text.locating_errors(node):
            return _handler(node)(self, node)

    def value(self, node: exp.Expr) -> Expression:
        """Return the typed expression of an operand; a column has its SQL type."""
        with self._sql_text.locating_errors(node):
            return functions.with_sql_type(self.bind(node))

    def boolean(self, node: exp.Expr, role: str) -> Expression:
        """Return the typed expression of a node that must be boolean."""
        with self._sql_text.locating_errors(node):
            return functions.as_boolean(self.value(node), role)

    def values(self, nodes: list[exp.Expr]) -> list[Expression]:
        return [self.value(node) for node in nodes]

    def column(self, node: exp.Column) -> Expression:
        if node.args.get("db"):
            raise QueryError("fields of nested values are not supported", "add the field to the stream as a column")
        if isinstance(node.this, exp.Star):
            raise QueryError("'*' is not allowed inside an expression", "name a column")
        return self._scope.column(node.name, node.table or None)

    def literal(self, node: exp.Literal) -> Expression:
        if node.is_string:
            if is_double_quoted(node, self._sql_text) and self._could_be_column(node):
                warning = quoted_column_warning(node.name, node.name)
                other = _compared_with(node)
                if other is not None and not pa.types.is_string(self.value(other).type):  # the comparison is refused
                    raise QueryError(*warning.split("\nHint: "))
                self.warnings[warning] = None
            return Literal(node.name, pa.string())
        if re.fullmatch(r"\d+", node.name):
            return functions.integer_literal(int(node.name))
        if "e" in node.name.lower():
            return Literal(float(node.name), pa.float64())
        return functions.decimal_literal(Decimal(node.name))

    def _could_be_column(self, node: exp.Literal) -> bool:
        """Whether text names a column that could stand in its place."""
        columns = self._columns_by_name.get(node.name, [])
        other = _compared_with(node)
        if not columns or other is None:
            return bool(columns)
        dtype = self.value(other).type
        return any(common_type(functions.with_sql_type(column).type, dtype) is not None for column in columns)

    def hexadecimal(self, node: exp.HexString) -> Expression:
        digits = node.name if len(node.name) % 2 == 0 else f"0{node.name}"
        return Literal(bytes.fromhex(digits), pa.binary())

    def cast(self, node: exp.Cast) -> Expression:
        if node.args.get("format") or node.args.get("action"):
            raise QueryError("CAST with a format is not supported", "write CAST(x AS type)")
        if self._is_big_decimal(node):
            return functions.decimal_literal(Decimal(node.this.name))
        if node.to.this == exp.DType.INTERVAL:
            value = node.this.name if isinstance(node.this, exp.Literal) else None
            raise QueryError("casts to interval are not supported", interval_cast_hint(value))
        return functions.convert(self.value(node.this), _data_type(node.to))

    def _is_big_decimal(self, node: exp.Cast) -> bool:
        # sqlglot reads the literal 1.5BD as a cast of a string without offsets.
        inner = node.this
        has_no_offsets = isinstance(inner, exp.Literal) and inner.is_string and "start" not in inner.meta
        return has_no_offsets and node.to.this == exp.DType.DECIMAL

    def case(self, node: exp.Case) -> Expression:
        subject = self.value(node.this) if node.this else None
        branches = []
        for branch in node.args["ifs"]:
            condition = self.value(branch.this)
            if subject is not None:
                condition = functions.compare("eq", subject, condition)
            branches.append((condition, self.value(branch.args["true"])))
        return functions.case_when(branches, self._optional(node.args.get("default")))

    def conditional(self, node: exp.If) -> Expression:
        branch = (self.value(node.this), self.value(node.args["true"]))
        return functions.case_when([branch], self._optional(node.args.get("false")))

    def _optional(self, node: exp.Expr | None) -> Expression:
        return self.value(node) if node is not None else Literal(None, pa.null())

    def between(self, node: exp.Between) -> Expression:
        if node.args.get("symmetric"):
            raise QueryError("BETWEEN SYMMETRIC is not supported", "write BETWEEN LEAST(a, b) AND GREATEST(a, b)")
        subject, low, high = self.values([node.this, node.args["low"], node.args["high"]])
        bounds = [functions.compare("ge", subject, low), functions.compare("le", subject, high)]
        return functions.logical("and", bounds)

    def membership(self, node: exp.In) -> Expression:
        if not node.expressions:
            raise QueryError("IN needs a list of values", "write x IN (1, 2, 3)")
        return functions.membership(self.value(node.this), self.values(node.expressions))

    def identity(self, node: exp.Is) -> Expression:
        subject = self.value(node.this)
        if isinstance(node.expression, exp.Null):
            return Call("is_null", (subject,), pa.bool_())
        if isinstance(node.expression, exp.Boolean):
            truth = functions.as_boolean(subject, "the operand of IS TRUE or IS FALSE")
            return functions.compare("null_safe_eq", truth, self.value(node.expression))
        raise QueryError("IS allows only NULL, TRUE or FALSE", "compare with = or <=>")

    def like(self, node: exp.Like) -> Expression:
        pattern = self.bind(node.expression)
        if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            raise QueryError("LIKE needs a constant pattern", "write the pattern as text: name LIKE 'A%'")
        call = texts.text_call("like", [self.value(node.this), pattern])
        return functions.negation(call) if node.args.get("negate") else call

    def trim(self, node: exp.Trim) -> Expression:
        if node.args.get("expression") or node.args.get("position"):
            raise QueryError("TRIM allows one argument only", "it removes spaces at both ends: TRIM(x)")
        return texts.text_call("trim", [self.value(node.this)])

    def substring(self, node: exp.Substring) -> Expression:
        start, size = node.args.get("start"), node.args.get("length")
        if start is None:
            raise QueryError(
                "SUBSTRING needs a start", "write SUBSTRING(text, start) or SUBSTRING(text, start, length)"
            )
        size_value = self.value(size) if size is not None else None
        return texts.substring(self.value(node.this), self.value(start), size_value)

    def unify(self, node: exp.Func) -> Expression:
        operation = {exp.Coalesce: "coalesce", exp.Least: "least", exp.Greatest: "greatest"}[type(node)]
        arguments = self.values([node.this, *node.expressions])
        if len(arguments) < 2 and operation != "coalesce":
            raise QueryError(f"{operation.upper()} needs two arguments or more", None)
        return functions.unify(operation, arguments)

    def connective(self, node: exp.Connector) -> Expression:
        operation = "and" if isinstance(node, exp.And) else "or"
        operands = [self.boolean(part, f"an operand of {operation.upper()}") for part in node.flatten()]
        return functions.logical(operation, operands)

    def reject(self, node: exp.Expr) -> Expression:
        extent = self._sql_text.extent(node)
        text = self._sql_text.sql[extent[0] : extent[1]] if extent else node.sql(dialect="spark")
        raise unsupported(node, " ".join(text.split()), self._sql_text)


def _handler(node: exp.Expr) -> Handler:
    unread = [key for key, value in node.args.items() if isinstance(value, exp.Expr) and key not in _READ_ARGUMENTS]
    return _HANDLERS.get(type(node), ExpressionBinder.reject) if not unread else ExpressionBinder.reject


def _data_type(node: exp.DataType) -> pa.DataType:
    name = node.this.name if isinstance(node.this, exp.DType) else str(node.this)
    if name == "DECIMAL":
        sizes = [parameter.name for parameter in node.expressions] or ["10"]
        precision, scale = (int(size) if size.isdecimal() else -1 for size in (*sizes, "0")[:2])
        if not 1 <= precision <= LARGEST_DECIMAL or not 0 <= scale <= precision:
            raise QueryError(
                f"decimal({precision},{scale}) is not a type", f"decimal(p,s) needs s <= p <= {LARGEST_DECIMAL}"
            )
        return pa.decimal128(precision, scale)
    if name not in _TYPES:
        written = node.sql(dialect="spark").lower()
        raise QueryError(f"cannot cast to {written}; allowed: {_TYPE_NAMES}", "choose one of these types")
    return _TYPES[name]


def _compared_with(node: exp.Literal) -> exp.Expr | None:
    """Return the expression that a constant is compared with; None if it is none, or a constant too."""
    parent, other = node.parent, None
    if isinstance(parent, exp.Binary) and type(parent) in _COMPARISONS:
        other = parent.expression if parent.this is node else parent.this
    elif isinstance(parent, exp.In | exp.Between) and parent.this is not node:
        other = parent.this
    return None if isinstance(other, exp.Literal) else other


def _comparison(binder: ExpressionBinder, node: exp.Binary) -> Expression:
    return functions.compare(_COMPARISONS[type(node)], binder.value(node.left), binder.value(node.right))


def _arithmetic(binder: ExpressionBinder, node: exp.Binary) -> Expression:
    return functions.arithmetic(_ARITHMETIC[type(node)], binder.value(node.left), binder.value(node.right))


def _distinct_from(binder: ExpressionBinder, node: exp.Binary) -> Expression:
    return functions.negation(functions.compare("null_safe_eq", binder.value(node.left), binder.value(node.right)))


_HANDLERS: dict[type[exp.Expr], Handler] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    exp.NullSafeNEQ: _distinct_from,
    exp.Column: ExpressionBinder.column,
    exp.Literal: ExpressionBinder.literal,
    exp.HexString: ExpressionBinder.hexadecimal,
    exp.Boolean: lambda _, node: Literal(bool(node.this), pa.bool_()),
    exp.Null: lambda *_: Literal(None, pa.null()),
    exp.Interval: lambda _, node: Literal(read_interval(node), MICROSECOND),
    exp.Paren: lambda binder, node: binder.bind(node.this),
    exp.Cast: ExpressionBinder.cast,
    exp.TryCast: ExpressionBinder.cast,
    exp.Case: ExpressionBinder.case,
    exp.If: ExpressionBinder.conditional,
    exp.Nullif: lambda binder, node: functions.null_if(binder.value(node.this), binder.value(node.expression)),
    exp.Between: ExpressionBinder.between,
    exp.In: ExpressionBinder.membership,
    exp.Is: ExpressionBinder.identity,
    exp.Like: ExpressionBinder.like,
    exp.Trim: ExpressionBinder.trim,
    exp.Substring: ExpressionBinder.substring,
    exp.Coalesce: ExpressionBinder.unify,
    exp.Least: ExpressionBinder.unify,
    exp.Greatest: ExpressionBinder.unify,
    exp.And: ExpressionBinder.connective,
    exp.Or: ExpressionBinder.connective,
    exp.Not: lambda binder, node: functions.negation(binder.boolean(node.this, "the operand of NOT")),
    exp.Neg: lambda binder, node: functions.negate_or_abs("negate", binder.value(node.this)),
    exp.Abs: lambda binder, node: functions.negate_or_abs("abs", binder.value(node.this)),
    exp.Lower: lambda binder, node: texts.text_call("lower", [binder.value(node.this)]),
    exp.Upper: lambda binder, node: texts.text_call("upper", [binder.value(node.this)]),
    exp.Length: lambda binder, node: texts.length(binder.value(node.this)),
    exp.Concat: lambda binder, node: texts.text_call("concat", binder.values(node.expressions)),
    exp.DPipe: lambda binder, node: texts.text_call("concat", binder.values(list(node.flatten()))),
}
