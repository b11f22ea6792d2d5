"""Parsing of one SELECT statement with sqlglot, and checks for what its lenient parser accepts.

sqlglot accepts a missing THEN, AND or closing parenthesis and guesses the rest. A continuous query runs for months, so the tree is
checked against the tokens and guesses are rejected.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from sqlglot import Parser, Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError

from dovetail.errors import QueryError
from dovetail.query.intervals import find_partly_read, reject_bad_intervals
from dovetail.query.refusals import FROM_SUBQUERY_HINT, subquery_error, syntax_hint
from dovetail.query.sql_text import DIALECT, SqlText, error_at

SHAPE = "write SELECT columns FROM stream alias [RANGE n UNIT], ... WHERE conditions"
_QUOTED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`", re.DOTALL)
_OPENERS = {"'": "quote", '"': "quote", "`": "backtick", "/*": "comment"}
_WORDS = {TokenType.R_PAREN: ")", TokenType.THEN: "THEN", TokenType.AND: "AND"}
_NEVER_ADJACENT = {
    (TokenType.L_PAREN, TokenType.COMMA),
    (TokenType.COMMA, TokenType.COMMA),
    (TokenType.COMMA, TokenType.R_PAREN),
    (TokenType.ALIAS, TokenType.COMMA),
    (TokenType.AND, TokenType.AND),
}


def statement_tokens(sql: str) -> list[Token]:
    """Return the tokens of one SELECT statement without its final semicolon."""
    tokens = _merge_strings(sql, _tokenize(sql))
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise QueryError("the query is empty", SHAPE)
    first = tokens[0]
    if first.token_type == TokenType.WITH:
        raise error_at(sql, first, "WITH is not supported", FROM_SUBQUERY_HINT)
    if first.token_type != TokenType.SELECT:
        hint = SHAPE if len(tokens) > 1 else "write query(name, sql): the name comes first"
        raise error_at(sql, first, f"a query starts with SELECT, not {sql[first.start : first.end + 1]!r}", hint)
    for position, (token, following) in enumerate(itertools.pairwise(tokens), 1):
        if token.token_type == TokenType.SEMICOLON:
            raise error_at(sql, following, "this is more than one statement", "register each one under its own name")
        if token.token_type == TokenType.L_PAREN and following.token_type in (TokenType.SELECT, TokenType.WITH):
            raise subquery_error(sql, tokens, position)
    return tokens


def _tokenize(sql: str) -> list[Token]:
    try:
        return list(Dialect.get_or_raise(DIALECT).tokenize(sql))
    except TokenError:
        rest = _QUOTED.sub(lambda match: " " * len(match[0]), sql)
        opening = re.search(r"['\"`]|/\*", rest)
        if opening is None:
            raise QueryError("the query cannot be read", SHAPE, sql=sql, end=len(sql)) from None
        kind = _OPENERS[opening[0]]
        raise QueryError(
            f"this {kind} is not closed", f"add the closing {kind}", sql=sql, start=opening.start(), end=opening.end()
        ) from None


def _merge_strings(sql: str, tokens: list[Token]) -> list[Token]:
    """Merge strings around a doubled quote, which Spark 4 reads as a quote; sqlglot returns two strings."""
    merged: list[Token] = []
    for token in tokens:
        last = merged[-1] if merged else None
        are_strings = last is not None and last.token_type == token.token_type == TokenType.STRING
        if last is not None and are_strings and last.end + 1 == token.start and sql[last.end] == sql[token.start]:
            text = f"{last.text}{sql[token.start]}{token.text}"
            merged[-1] = Token(TokenType.STRING, text, token.line, token.col, last.start, token.end, [])
        else:
            merged.append(token)
    return merged


def parse_select(sql_text: SqlText, streams: Mapping[str, object]) -> exp.Select:
    """Parse the tokens that remain after windows are extracted; `streams` are those declared, for hints."""
    try:
        (statement,) = Dialect.get_or_raise(DIALECT).parser().parse(list(sql_text.tokens), sql_text.sql)
    except ParseError as error:
        raise _syntax_error(sql_text, error, streams) from None
    except (LookupError, TypeError, ValueError, AttributeError):
        # sqlglot's builders of some functions, such as map(x), fail on unexpected arguments.
        whole = (sql_text.tokens[0].start, sql_text.tokens[-1].end + 1)
        raise sql_text.error("a function has arguments that cannot be parsed", SHAPE, whole) from None
    if isinstance(statement, exp.Select):
        _reject_guesses(sql_text, statement)
        return statement
    token = next((token for token in sql_text.tokens if token.token_type in Parser.SET_OPERATIONS), sql_text.tokens[0])
    hint = "register each SELECT as a query of its own"
    raise error_at(sql_text.sql, token, f"{token.text.upper()} is not supported", hint)


def _syntax_error(sql_text: SqlText, error: ParseError, streams: Mapping[str, object]) -> QueryError:
    details = error.errors[0] if error.errors else {}
    position = (details.get("line"), details.get("col"))
    token = next((token for token in sql_text.tokens if (token.line, token.col) == position), sql_text.tokens[-1])
    missing = re.fullmatch(r"Expecting (\S+)", str(details.get("description", "")))
    hint = syntax_hint(sql_text.sql, sql_text.tokens, sql_text.tokens.index(token), streams, SHAPE)
    return _syntax_error_at(sql_text, token, f"a {missing[1]!r} is missing" if missing and hint is SHAPE else hint)


def _reject_guesses(sql_text: SqlText, select: exp.Select) -> None:
    """Reject a query that sqlglot accepts although words are missing or an interval is wrong."""
    reject_bad_intervals(sql_text.sql, sql_text.tokens)
    for token, following in itertools.pairwise(sql_text.tokens):
        if (token.token_type, following.token_type) in _NEVER_ADJACENT:
            raise _syntax_error_at(sql_text, following, SHAPE)
    if (partly_read := find_partly_read(sql_text.tokens)) is not None:
        hint = "write INTERVAL '1 hour 30 minutes' or INTERVAL 90 MINUTES"
        raise error_at(sql_text.sql, partly_read, f"{partly_read.text!r} is not an interval", hint)
    kinds = [token.token_type for token in sql_text.tokens]
    expected = {
        TokenType.R_PAREN: (kinds.count(TokenType.L_PAREN), TokenType.L_PAREN),
        TokenType.THEN: (kinds.count(TokenType.WHEN), TokenType.WHEN),
        TokenType.AND: (sum(1 for _ in select.find_all(exp.And, exp.Between)), TokenType.BETWEEN),
    }
    for kind, (count, opener) in expected.items():
        if kinds.count(kind) != count:
            token = next((token for token in sql_text.tokens if token.token_type == opener), sql_text.tokens[-1])
            raise _syntax_error_at(sql_text, token, f"add or remove a {_WORDS[kind]!r}")


def _syntax_error_at(sql_text: SqlText, token: Token, hint: str) -> QueryError:
    return error_at(sql_text.sql, token, f"syntax error near {sql_text.sql[token.start : token.end + 1]!r}", hint)
