"""Text to sqlglot's tree, for one SELECT statement.

sqlglot's parser is lenient: it lets a THEN, an AND or a closing parenthesis be missing and takes the rest as meant. A continuous
query that was guessed at would run for months, so what it let pass is checked here against the tokens and refused.
"""

from __future__ import annotations

import itertools
import re

from sqlglot import Parser, Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError

from dovetail.errors import QueryError
from dovetail.query.intervals import half_read
from dovetail.query.sql_expressions import SUBQUERY_HINT
from dovetail.query.sql_text import DIALECT, SourceText, refusal_at

SHAPE = "a query reads SELECT columns FROM stream alias [RANGE n UNIT], ... WHERE conditions"
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
    """The tokens of one SELECT statement without its final semicolon."""
    tokens = _merge_strings(sql, _tokenize(sql))
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise QueryError("the query is empty", SHAPE)
    first = tokens[0]
    if first.token_type == TokenType.WITH:
        raise refusal_at(sql, first, "WITH is not supported", SUBQUERY_HINT)
    if first.token_type != TokenType.SELECT:
        raise refusal_at(sql, first, f"a query starts with SELECT, not {sql[first.start : first.end + 1]!r}", SHAPE)
    for token, following in itertools.pairwise(tokens):
        if token.token_type == TokenType.SEMICOLON:
            raise refusal_at(sql, following, "this is more than one statement", "register each one under its own name")
        if token.token_type == TokenType.L_PAREN and following.token_type in (TokenType.SELECT, TokenType.WITH):
            raise refusal_at(sql, following, "subqueries are not supported", SUBQUERY_HINT)
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
    """Read a doubled quote inside a string as a quote, as Spark 4 does; sqlglot gives two strings."""
    merged: list[Token] = []
    for token in tokens:
        last = merged[-1] if merged else None
        both = last is not None and last.token_type == token.token_type == TokenType.STRING
        if last is not None and both and last.end + 1 == token.start and sql[last.end] == sql[token.start]:
            text = f"{last.text}{sql[token.start]}{token.text}"
            merged[-1] = Token(TokenType.STRING, text, token.line, token.col, last.start, token.end, [])
        else:
            merged.append(token)
    return merged


def parse_select(source: SourceText) -> exp.Select:
    """The tree of the tokens that are left when the windows are taken out."""
    try:
        (statement,) = Dialect.get_or_raise(DIALECT).parser().parse(list(source.tokens), source.sql)
    except ParseError as error:
        raise _syntax_error(source, error) from None
    except (LookupError, TypeError, ValueError, AttributeError):
        # sqlglot's builders of some functions, such as map(x), fail on arguments they do not expect.
        whole = (source.tokens[0].start, source.tokens[-1].end + 1)
        raise source.refusal("a function has arguments that cannot be read", SHAPE, whole) from None
    if isinstance(statement, exp.Select):
        _refuse_guesses(source, statement)
        return statement
    token = next((token for token in source.tokens if token.token_type in Parser.SET_OPERATIONS), source.tokens[0])
    hint = "register each SELECT as a query of its own"
    raise refusal_at(source.sql, token, f"{token.text.upper()} is not supported", hint)


def _syntax_error(source: SourceText, error: ParseError) -> QueryError:
    place = error.errors[0] if error.errors else {}
    found = [token for token in source.tokens if (token.line, token.col) == (place.get("line"), place.get("col"))]
    token = found[0] if found else source.tokens[-1]
    missing = re.fullmatch(r"Expecting (\S+)", str(place.get("description", "")))
    hint = f"a {missing[1]!r} is missing" if missing else SHAPE
    return _syntax_error_at(source, token, hint)


def _refuse_guesses(source: SourceText, select: exp.Select) -> None:
    """Refuse what the parser reads although words are missing."""
    for token, following in itertools.pairwise(source.tokens):
        if (token.token_type, following.token_type) in _NEVER_ADJACENT:
            raise _syntax_error_at(source, following, SHAPE)
    if (token_ := half_read(source.tokens)) is not None:
        hint = "write INTERVAL '1 hour 30 minutes' or INTERVAL 90 MINUTES"
        raise refusal_at(source.sql, token_, f"{token_.text!r} is not an interval", hint)
    kinds = [token.token_type for token in source.tokens]
    expected = {
        TokenType.R_PAREN: (kinds.count(TokenType.L_PAREN), TokenType.L_PAREN),
        TokenType.THEN: (kinds.count(TokenType.WHEN), TokenType.WHEN),
        TokenType.AND: (sum(1 for _ in select.find_all(exp.And, exp.Between)), TokenType.BETWEEN),
    }
    for kind, (count, opener) in expected.items():
        if kinds.count(kind) != count:
            place = next((token for token in source.tokens if token.token_type == opener), source.tokens[-1])
            raise _syntax_error_at(source, place, f"a {_WORDS[kind]!r} is missing or too many")


def _syntax_error_at(source: SourceText, token: Token, hint: str) -> QueryError:
    return refusal_at(source.sql, token, f"syntax error near {source.sql[token.start : token.end + 1]!r}", hint)
