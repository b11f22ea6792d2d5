"""Names of streams and columns that are words of SQL, and need backticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import Token, TokenType

from dovetail.schema import StreamSchema

_NAME_FOLLOWS = {TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.DOT}
_PLAIN = {TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER}


def reserved_names(tokens: Sequence[Token], streams: Mapping[str, StreamSchema]) -> list[Token]:
    """Return the words of SQL that stand where a name may stand and are names of streams or columns."""
    names = {name.casefold() for stream in streams.values() for name in (stream.name, *stream.columns.names)}
    reserved = []
    for position, token in enumerate(tokens):
        before = tokens[position - 1].token_type if position else None
        after = tokens[position + 1].token_type if position + 1 < len(tokens) else None
        may_be_name = before in _NAME_FOLLOWS or after == TokenType.DOT
        if may_be_name and token.token_type not in _PLAIN and token.text.casefold() in names:
            reserved.append(token)
    return reserved


def with_backticks(sql: str, tokens: Sequence[Token]) -> str:
    """Return a query with backticks around some of its tokens."""
    for token in reversed(tokens):
        sql = f"{sql[: token.start]}`{sql[token.start : token.end + 1]}`{sql[token.end + 1 :]}"
    return sql
