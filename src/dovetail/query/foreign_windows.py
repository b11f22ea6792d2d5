"""Errors for windows in the syntax of other systems, each with Dovetail's syntax as the hint.

Round or no brackets (`clicks (RANGE 1 HOUR)`), Esper's views (`clicks#time(1 hour)`), ksqlDB's WITHIN and Flink's table
functions would otherwise be syntax errors at a later token.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType

from dovetail.errors import QueryError
from dovetail.query.sql_text import error_at

_OPENERS = {TokenType.L_PAREN: ")", TokenType.L_BRACE: "}", TokenType.LT: ">"}
_LENGTHS = {TokenType.NUMBER, TokenType.INTERVAL, TokenType.STRING}
_VIEWS = {"TIME": "RANGE", "TIME_BATCH": "RANGE", "LENGTH": "ROWS", "LENGTH_BATCH": "ROWS"}
_TABLE_FUNCTIONS = {"TUMBLE", "HOP", "CUMULATE", "SESSION"}
_KINDS = {"RANGE", "ROWS", "WITHIN"}


def reject_foreign_windows(sql: str, tokens: Sequence[Token]) -> None:
    """Raise `QueryError` at the first window in another system's syntax."""
    start = next((index for index, token in enumerate(tokens) if token.token_type == TokenType.FROM), len(tokens))
    in_bracket = False
    for index in range(start + 1, len(tokens)):
        before, token = tokens[index - 1], tokens[index]
        opens = token.token_type == TokenType.L_BRACKET
        in_bracket = opens or (in_bracket and before.token_type != TokenType.R_BRACKET)
        if in_bracket:
            continue
        word, following = token.text.upper(), tokens[index + 1].token_type if index + 1 < len(tokens) else None
        in_parens = before.token_type in _OPENERS
        if word == "PARTITION BY" and in_parens:
            raise _bracket_error(sql, before, tokens, index, _OPENERS[before.token_type])
        if word in _KINDS and following in _LENGTHS:
            first = before if in_parens else token
            raise _bracket_error(sql, first, tokens, index, _OPENERS.get(before.token_type, ""))
        if word in _VIEWS and before.text in ("#", ":") and following == TokenType.L_PAREN:
            inner, last = _until(sql, tokens, index + 2, ")")
            raise _error(sql, (before.start, last), f"[{_VIEWS[word]} {inner}]", "this is not the syntax of a window")
        if word in _TABLE_FUNCTIONS and following == TokenType.L_PAREN:
            hint = "name the stream; its window slides with every tuple: stream alias [RANGE 1 HOUR]"
            raise error_at(sql, token, f"{word} and other window table functions are not supported", hint)


def _bracket_error(sql: str, first: Token, tokens: Sequence[Token], index: int, closing: str) -> QueryError:
    word = tokens[index]
    if closing:
        inner, last = _until(sql, tokens, index, closing)
    else:
        last = tokens[min(index + 2, len(tokens) - 1)].end + 1
        inner = sql[word.start : last]
    inner = inner.replace(sql[word.start : word.end + 1], "RANGE", 1) if word.text.upper() == "WITHIN" else inner
    return _error(sql, (first.start, last), f"[{inner}]", "a window is written in square brackets after its stream")


def _until(sql: str, tokens: Sequence[Token], first: int, closing: str) -> tuple[str, int]:
    """Return the text from a token to the closing token, and the offset after that token."""
    for token in tokens[first:]:
        if token.text == closing:
            return " ".join(sql[tokens[first].start : token.start].split()), token.end + 1
    return sql[tokens[first].start :].strip(), len(sql)


def _error(sql: str, extent: tuple[int, int], instead: str, message: str) -> QueryError:
    return QueryError(message, f"write {instead}", sql=sql, start=extent[0], end=extent[1])
