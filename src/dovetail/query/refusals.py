"""Hints for SQL that Dovetail refuses: each names what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlglot import Token, TokenType, exp

from dovetail.errors import QueryError, suggestion, with_imports
from dovetail.query.functions import FUNCTION_NAMES
from dovetail.query.sql_text import SqlText, error_at

AGGREGATE_HINT = (
    "aggregate the query's results instead: results['q'].group_by('k').aggregate([('v', 'sum')]) in Arrow; on Spark see "
    "docs/coming-from-spark.md#aggregation-after-the-join"
)
FROM_SUBQUERY_HINT = "name its streams in FROM, each with a window, and put its conditions into WHERE"
_SEMI_JOIN_HINT = (
    "write it as a join: its stream in FROM, with a window, and its conditions in WHERE; each match is a result"
)
_ANTI_JOIN_HINT = "only inner joins are supported: a row without a match has no result"
_CONDITION_STARTS = (TokenType.WHERE, TokenType.AND, TokenType.OR, TokenType.ON, TokenType.SELECT)
_SCALAR_HINT = "compute the value first and write it as a constant, or join its stream in FROM, with a window"
_NO_CLOCK = (
    "a query has no clock: compare event times with each other, or with a constant, TIMESTAMP '2026-01-31 12:30:00'"
)
_COLUMN_HINT = "compute it in a column before the stream enters the join"
_PARTS = ("YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")
_CLOCKS = ("NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURDATE", "LOCALTIMESTAMP", "CURRENT_TIME")
_NO_PARAMETERS = "a query has no parameters: write the value itself, e.g. with an f-string"
_WORDS = {"&&": "AND", "&": "AND", "|": "OR", "!": "NOT"}
_UNITS = re.compile(r"(?:micro|milli)?seconds?|minutes?|hours?|days?|weeks?", re.IGNORECASE)


def subquery_error(sql: str, tokens: Sequence[Token], position: int) -> QueryError:
    """Return the error for a SELECT inside parentheses, whose first token is at `position`."""
    before = tokens[position - 2].text.upper() if position > 1 else ""
    hint = _SCALAR_HINT
    if before in ("FROM", "JOIN", ","):
        hint = FROM_SUBQUERY_HINT
    elif before in ("EXISTS", "IN", "ANY", "SOME"):
        # NOT EXISTS (...), x NOT IN (...) or NOT x IN (...)
        is_negated = any(token.token_type == TokenType.NOT for token in tokens[_start_of(tokens, position) : position])
        hint = _ANTI_JOIN_HINT if is_negated else _SEMI_JOIN_HINT
    return error_at(sql, tokens[position], "subqueries are not supported", hint)


def _start_of(tokens: Sequence[Token], position: int) -> int:
    """Return where the condition begins that the token at `position` belongs to."""
    while position and tokens[position - 1].token_type not in _CONDITION_STARTS:
        position -= 1
    return position


def unsupported(node: exp.Expr, text: str, sql_text: SqlText) -> QueryError:
    """Return the error for a node that cannot be bound; `text` is its SQL."""
    name = text.split("(", maxsplit=1)[0].strip()
    if isinstance(node, exp.Window):
        return QueryError("window functions are not supported", AGGREGATE_HINT)
    if isinstance(node, exp.AggFunc):
        return QueryError(f"aggregate {name.upper()} is not supported", AGGREGATE_HINT)
    if isinstance(node, (exp.Query, exp.Exists)):
        return QueryError("subqueries are not supported", _SEMI_JOIN_HINT)
    if isinstance(node, exp.Escape):
        return QueryError("LIKE ... ESCAPE is not supported", "escape with a backslash")
    if isinstance(node, exp.Extract):
        return QueryError("EXTRACT is not supported", _part_hint(node.this.name.upper(), node))
    if isinstance(node, exp.RegexpLike):
        return QueryError("regular expressions are not supported", _regex_hint(node))
    if isinstance(node, exp.ILike):
        return QueryError(
            "ILIKE is not supported", f"write LOWER({node.this.sql('spark')}) LIKE a pattern in lower case"
        )
    if isinstance(node, (exp.Placeholder, exp.Parameter)):
        extent = sql_text.token_extent("?", ":", "$", "{", "@") or (0, len(sql_text.sql))
        return sql_text.error("parameters are not supported", _NO_PARAMETERS, extent)
    if isinstance(node, exp.Dot) and (quoted := _with_backticks(node, sql_text)) is not None:
        return QueryError(f"{text} is text, not a name", f"quote names with backticks: {quoted}")
    if isinstance(node, exp.Func) and (name.isidentifier() or not name):
        name = name.upper() or node.sql_name()
        message = f"function {name} is not supported; allowed: {', '.join(FUNCTION_NAMES)}"
        token = sql_text.token_extent(name) if sql_text.extent(node) is None else None
        if token is not None:
            return sql_text.error(message, _function_hint(name, node), token)
        return QueryError(message, _function_hint(name, node))
    return QueryError(f"{text!r} is not supported here", "docs/query-language.md lists what is supported")


def _function_hint(name: str, node: exp.Func) -> str:
    if name in _CLOCKS:
        return _NO_CLOCK
    if name in _PARTS:
        return _part_hint(name, node)
    if isinstance(node, exp.DateDiff | exp.TimestampDiff | exp.DatetimeDiff):
        later, earlier = (_column_text(part) for part in (node.this, node.expression))
        return f"subtract the times: {later or 'o.ts'} - {earlier or 'c.ts'} < INTERVAL 5 MINUTES"
    if isinstance(node, exp.TimestampAdd | exp.TsOrDsAdd | exp.DateAdd | exp.DateSub | exp.TimestampSub):
        return f"add an interval: {_column_text(node.this) or 'c.ts'} + INTERVAL 5 MINUTES"
    if name in ("UNIX_TIMESTAMP", "TO_UNIX_TIMESTAMP", "UNIX_SECONDS", "UNIX_MILLIS", "UNIX_MICROS", "EPOCH"):
        return "compare the times themselves: o.ts - c.ts < INTERVAL 5 MINUTES, c.ts > TIMESTAMP '2026-01-31 12:30:00'"
    if name in ("MAKE_INTERVAL", "MAKE_DT_INTERVAL", "TO_INTERVAL"):
        return "write INTERVAL 5 MINUTES or INTERVAL '1 hour 30 minutes'"
    if name in ("DATE_TRUNC", "TRUNC"):
        column = _column_name(node)
        arrow = f"pc.floor_temporal(table[{column!r}], unit='hour')"
        return with_imports(f"{_COLUMN_HINT}: F.date_trunc('hour', {column!r}) in PySpark, {arrow} in Arrow")
    if name == "WINDOW":
        return "windows slide with every tuple: write stream alias [RANGE 5 MINUTES] in FROM, and group the results"
    return suggestion(name, FUNCTION_NAMES, _COLUMN_HINT)


def _part_hint(part: str, node: exp.Expr) -> str:
    """Return how to compute a part of a time, such as its hour, in a column."""
    if part not in _PARTS:
        return _COLUMN_HINT
    column, function = _column_name(node), part.lower()
    return with_imports(
        f"{_COLUMN_HINT}: F.{function}({column!r}) in PySpark, pc.{function}(table[{column!r}]) in Arrow"
    )


def _regex_hint(node: exp.Expr) -> str:
    column = _column_name(node)
    return with_imports(
        f"use LIKE with % and _, or {_COLUMN_HINT}: F.col({column!r}).rlike(pattern) in PySpark, "
        f"pc.match_substring_regex(table[{column!r}], pattern) in Arrow"
    )


def _column_name(node: exp.Expr) -> str:
    column = node.find(exp.Column)
    return column.name if column is not None else "ts"


def _column_text(node: exp.Expr | None) -> str | None:
    column = node.find(exp.Column) if node is not None else None
    return column.sql("spark") if column is not None else None


def _with_backticks(node: exp.Dot, sql_text: SqlText) -> str | None:
    """Return names in double quotes with backticks instead; None if it is something else."""
    parts = [node.this, node.expression]
    if not all(isinstance(part, exp.Literal) and is_double_quoted(part, sql_text) for part in parts):
        return None
    return ".".join(f"`{part.name}`" for part in parts)


def is_double_quoted(node: exp.Literal, sql_text: SqlText) -> bool:
    """Whether a constant is text in double quotes."""
    return bool(node.is_string) and sql_text.sql[node.meta.get("start", -1) :][:1] == '"'


def quoted_column_warning(text: str, column: str) -> str:
    """Return the warning for text in double quotes that equals the name of a column."""
    backticks = ".".join(f"`{part}`" for part in column.split(".", maxsplit=1))
    single = "'" + text.replace("'", "''") + "'"
    return f'"{text}" is text, as in Spark, not the column {column}\nHint: write {backticks} for the column, or {single} for the text'


def syntax_hint(sql: str, tokens: Sequence[Token], position: int, streams: Mapping[str, object], otherwise: str) -> str:
    """Return the hint for a syntax error at a token."""
    token = tokens[position]
    before = tokens[position - 1] if position else token
    unquoted = find_unquoted_stream(sql, token, streams)
    if unquoted is not None:
        return f"write the name of the stream in backticks: `{unquoted}`"
    if _UNITS.fullmatch(token.text) and before.token_type == TokenType.NUMBER:
        return f"write INTERVAL {before.text} {token.text}"
    word = sql[token.start : token.end + 1]
    if word in _WORDS:
        return f"write {_WORDS[word]}"
    if token.token_type == TokenType.ON:
        return "after commas write WHERE; ON belongs to JOIN: FROM a JOIN b ON a.key = b.key"
    if word == "~":
        return f"regular expressions are not supported: use LIKE with % and _, or {_COLUMN_HINT}"
    return otherwise


def find_unquoted_stream(sql: str, token: Token, streams: Mapping[str, object]) -> str | None:
    """Return the declared stream that a token belongs to, if its name lacks the backticks that it needs."""
    for name in sorted(streams, key=len, reverse=True):
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            for match in re.finditer(re.escape(name), sql, re.IGNORECASE):
                if match.start() <= token.start < match.end() and sql[match.start() - 1 : match.start()] != "`":
                    return name
    return None
