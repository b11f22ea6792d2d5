"""Windows as other systems write them, refused with the same window in Dovetail's words.

Round or no brackets (`clicks (RANGE 1 HOUR)`), Esper's views (`clicks#time(1 hour)`), ksqlDB's WITHIN and Flink's table
functions would otherwise be syntax errors somewhere behind the point.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType

from dovetail.errors import QueryError
from dovetail.query.sql_text import refusal_at

_OPENERS = {TokenType.L_PAREN: ")", TokenType.L_BRACE: "}", TokenType.LT: ">"}
_LENGTHS = {TokenType.NUMBER, TokenType.INTERVAL, TokenType.STRING}
_VIEWS = {"TIME": "RANGE", "TIME_BATCH": "RANGE", "LENGTH": "ROWS", "LENGTH_BATCH": "ROWS"}
_TABLE_FUNCTIONS = {"TUMBLE", "HOP", "CUMULATE", "SESSION"}
_KINDS = {"RANGE", "ROWS", "WITHIN"}


def refuse_near_misses(sql: str, tokens: Sequence[Token]) -> None:
    """Raise `QueryError` at the first window that is written in another way."""
    start = next((place for place, token in enumerate(tokens) if token.token_type == TokenType.FROM), len(tokens))
    inside = False
    for place in range(start + 1, len(tokens)):
        before, token = tokens[place - 1], tokens[place]
        inside = token.token_type == TokenType.L_BRACKET or (inside and before.token_type != TokenType.R_BRACKET)
        if inside:
            continue
        word, following = token.text.upper(), tokens[place + 1].token_type if place + 1 < len(tokens) else None
        opened = before.token_type in _OPENERS
        if word == "PARTITION BY" and opened:
            raise _square(sql, before, tokens, place, _OPENERS[before.token_type])
        if word in _KINDS and following in _LENGTHS:
            first = before if opened else token
            raise _square(sql, first, tokens, place, _OPENERS.get(before.token_type, ""))
        if word in _VIEWS and before.text in ("#", ":") and following == TokenType.L_PAREN:
            inner, last = _until(sql, tokens, place + 2, ")")
            raise _refusal(sql, (before.start, last), f"[{_VIEWS[word]} {inner}]", "this window is not understood")
        if word in _TABLE_FUNCTIONS and following == TokenType.L_PAREN:
            hint = "name the stream; its window slides with every tuple: stream alias [RANGE 1 HOUR]"
            message = f"{word} and other functions that cut a stream into pieces are not supported"
            raise refusal_at(sql, token, message, hint)


def _square(sql: str, first: Token, tokens: Sequence[Token], place: int, closing: str) -> QueryError:
    word, start = tokens[place], first.start
    if closing:
        inner, last = _until(sql, tokens, place, closing)
    else:
        last = tokens[min(place + 2, len(tokens) - 1)].end + 1
        inner = sql[word.start : last]
    inner = inner.replace(sql[word.start : word.end + 1], "RANGE", 1) if word.text.upper() == "WITHIN" else inner
    return _refusal(sql, (start, last), f"[{inner}]", "a window stands in square brackets behind its stream")


def _until(sql: str, tokens: Sequence[Token], first: int, closing: str) -> tuple[str, int]:
    """The text from a token up to a mark, and where the mark ends."""
    for token in tokens[first:]:
        if token.text == closing:
            return " ".join(sql[tokens[first].start : token.start].split()), token.end + 1
    return sql[tokens[first].start :].strip(), len(sql)


def _refusal(sql: str, extent: tuple[int, int], instead: str, message: str) -> QueryError:
    return QueryError(message, f"write {instead}", sql=sql, start=extent[0], end=extent[1])
