"""Window brackets, extracted from the token stream before sqlglot parses it.

sqlglot does not know `[RANGE 60 SECONDS]`, but its tokenizer separates brackets from comments, strings and quoted
names, so they are extracted as tokens, never as text. The remaining tokens keep their offsets: every error still points
into the user's text. A bracket is a window only after a stream of the FROM list; anywhere else it is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import Token, TokenType

from dovetail.errors import ConfigError, QueryError
from dovetail.query.durations import to_micros
from dovetail.query.model import CountWindow, TimeWindow, Window
from dovetail.query.sql_text import error_at

_EXAMPLES = "write [RANGE 10 MINUTES], [ROWS 100] or [PARTITION BY column ROWS 100]"
_LARGEST_COUNT = 2**60
_ENDS = {
    TokenType.ON,
    TokenType.USING,
    TokenType.WHERE,
    TokenType.GROUP_BY,
    TokenType.HAVING,
    TokenType.ORDER_BY,
    TokenType.LIMIT,
    TokenType.QUALIFY,
    TokenType.WINDOW,
    TokenType.UNION,
    TokenType.INTERSECT,
    TokenType.EXCEPT,
    TokenType.SEMICOLON,
}
_AFTER_STREAM = {TokenType.COMMA, TokenType.FROM, TokenType.JOIN, *_ENDS}
_NUMBER_AND_UNIT = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([^\W\d_]*)")


@dataclass(frozen=True, slots=True)
class BracketToken:
    """A token of a bracket, with its text and offsets in the query."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WindowBracket:
    """A window and its offsets in the query.

    The partition column is as written; `partition` has its offsets.
    """

    window: Window
    start: int
    end: int
    partition: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FromExtent:
    """One entry of the FROM list in the text.

    It has its offsets, bracket included, and the bracket if there is one.
    """

    start: int
    end: int
    bracket: WindowBracket | None = None


def extract_brackets(sql: str, tokens: Sequence[Token]) -> tuple[list[Token], tuple[FromExtent, ...]]:
    """Return the tokens without brackets, and the FROM entries with their brackets."""
    plain: list[Token] = []
    entries: list[FromExtent] = []
    depth = position = 0
    expecting_stream = in_from = False
    while position < len(tokens):
        token = tokens[position]
        if token.token_type == TokenType.L_BRACKET:
            closing = _closing(sql, tokens, position)
            if in_from and depth > 0:
                hint = "write the joins one after another"
                raise error_at(sql, tokens[position], "a window cannot be inside parentheses", hint)
            _attach(sql, tokens[position : closing + 1], entries if in_from else [], expecting_stream=expecting_stream)
            position = closing + 1
            continue
        if token.token_type == TokenType.R_BRACKET:
            raise error_at(sql, token, "this ']' has no '[' before it", _EXAMPLES)
        if depth == 0 and expecting_stream and token.token_type in _AFTER_STREAM:
            raise error_at(
                sql, token, "the name of a stream is missing here", "write FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR]"
            )
        if depth == 0 and _opens_entry(token, plain, in_list=bool(entries)):
            expecting_stream = in_from = True
        elif depth == 0 and token.token_type in _ENDS:
            in_from = False
        elif in_from and expecting_stream:
            entries.append(FromExtent(token.start, token.end + 1))
            expecting_stream = False
        elif in_from:
            entries[-1] = replace(entries[-1], end=token.end + 1)
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        plain.append(token)
        position += 1
    return plain, tuple(entries)


def own_bracket(entries: Sequence[FromExtent], position: int) -> WindowBracket | None:
    """Return the bracket written on the FROM entry at `position`."""
    return next((entry.bracket for entry in entries if entry.end > position), None)


def applicable_bracket(entries: Sequence[FromExtent], position: int) -> WindowBracket | None:
    """Return the bracket that applies to the FROM entry at `position`.

    That is its own, else the next one to its right.
    """
    return next((entry.bracket for entry in entries if entry.end > position and entry.bracket is not None), None)


def _opens_entry(token: Token, before: Sequence[Token], *, in_list: bool) -> bool:
    if token.token_type == TokenType.FROM:
        return not (before and before[-1].token_type == TokenType.DISTINCT)
    return token.token_type == TokenType.JOIN or (in_list and token.token_type == TokenType.COMMA)


def _closing(sql: str, tokens: Sequence[Token], opening: int) -> int:
    for position in range(opening + 1, len(tokens)):
        if tokens[position].token_type == TokenType.R_BRACKET:
            return position
        if tokens[position].token_type == TokenType.L_BRACKET:
            break
    raise error_at(sql, tokens[opening], "this '[' is not closed", _EXAMPLES)


def _attach(sql: str, bracket: Sequence[Token], entries: list[FromExtent], *, expecting_stream: bool) -> None:
    start, end = bracket[0].start, bracket[-1].end + 1
    if not entries and not expecting_stream:
        hint = "windows belong to FROM: stream alias [RANGE 10 MINUTES]; array elements are not supported"
        raise QueryError("a bracket is not allowed here", hint, sql=sql, start=start, end=end)
    if expecting_stream:
        hint = "write stream alias [RANGE 10 MINUTES]"
        raise QueryError("this window has no stream before it", hint, sql=sql, start=start, end=end)
    if entries[-1].bracket is not None:
        hint = "keep one; join the stream with itself under two aliases to use two windows"
        raise QueryError("the stream already has a window", hint, sql=sql, start=start, end=end)
    entries[-1] = replace(entries[-1], end=end, bracket=read_bracket(sql, bracket))


def read_bracket(sql: str, tokens: Sequence[Token]) -> WindowBracket:
    """Parse the tokens from `[` to `]` as a window."""
    start, end = tokens[0].start, tokens[-1].end + 1
    # A number with a type suffix, such as 5s, is three tokens with the same offsets.
    extents = dict.fromkeys((token.start, token.end + 1) for token in tokens[1:-1])
    words = [BracketToken(sql[left:right], left, right) for left, right in extents]
    if not words:
        raise QueryError("this window is empty", _EXAMPLES, sql=sql, start=start, end=end)
    keyword = " ".join(words[0].text.upper().split())
    if keyword == "RANGE":
        return WindowBracket(_time_window(sql, words), start, end)
    if keyword == "ROWS":
        return WindowBracket(CountWindow(_count(sql, words)), start, end)
    if keyword == "PARTITION BY":
        return _partitioned(sql, words, start, end)
    is_length = words[0].text[:1].isdigit() or words[0].text.upper() == "INTERVAL"
    hint = f"write [RANGE {_text(sql, words)}]" if is_length else _EXAMPLES
    raise _error(sql, words[:1], f"{words[0].text!r} is not a kind of window", hint)


def _time_window(sql: str, words: list[BracketToken]) -> TimeWindow:
    micros, rest = 0, _plain(words)[1:]
    while not micros or (rest and rest[0].text[:1].isdigit()):  # 1 HOUR 30 MINUTES
        number, unit, rest = _number_and_unit(sql, [words[0], *rest])
        try:
            micros += to_micros(number.text, unit.text)
        except ConfigError as error:
            wrong = [unit] if "unit" in error.message else [number, unit]
            raise _error(sql, wrong, error.message, error.hint or _EXAMPLES) from None
        if not micros:
            break
    if rest:
        hint = "a window moves with every tuple: write [RANGE n UNIT] only"
        raise _error(sql, rest, f"{_text(sql, rest)!r} is not understood in a window", hint)
    return TimeWindow(micros)


def _plain(words: list[BracketToken]) -> list[BracketToken]:
    """Remove the INTERVAL and quotes of Spark and Flink: RANGE INTERVAL '1' HOUR, RANGE '1 hour'."""
    rest = words[2:] if len(words) > 1 and words[1].text.upper() == "INTERVAL" else words[1:]
    if rest and rest[0].text[:1] in ("'", '"'):
        inner = re.finditer(r"[^\s'\"]+", rest[0].text)
        rest = [BracketToken(m[0], rest[0].start + m.start(), rest[0].start + m.end()) for m in inner] + rest[1:]
    return [words[0], *rest]


def _number_and_unit(sql: str, words: list[BracketToken]) -> tuple[BracketToken, BracketToken, list[BracketToken]]:
    """Return the number, the unit and the rest.

    A sign or a unit may be attached to the number or separate.
    """
    rest = _joined_number(words[1:])
    match = _NUMBER_AND_UNIT.fullmatch(rest[0].text) if rest else None
    if match is None:
        actual = f", not {rest[0].text!r}" if rest else ""
        if rest and rest[0].text.upper() in ("UNBOUNDED", "BETWEEN"):
            hint = "a window ends at the newest tuple of a result and has a fixed length: write [RANGE 10 MINUTES]"
            raise _error(sql, rest, f"RANGE needs a number and a unit{actual}", hint)
        raise _error(sql, rest[:1] or words, f"RANGE needs a number and a unit{actual}", _EXAMPLES)
    split = rest[0].start + len(match[1])
    number = BracketToken(match[1], rest[0].start, split)
    if match[2]:
        return number, BracketToken(match[2], split, rest[0].end), rest[1:]
    if len(rest) == 1:
        raise _error(sql, [number], f"RANGE {number.text} has no unit", f"write e.g. [RANGE {number.text} SECONDS]")
    return number, rest[1], rest[2:]


def _joined_number(words: list[BracketToken]) -> list[BracketToken]:
    """Join a sign, a leading point and digits, which the tokenizer separates."""
    while len(words) > 1 and words[0].text in ("-", "+", ".", "-.", "+."):
        words = [BracketToken(words[0].text + words[1].text, words[0].start, words[1].end), *words[2:]]
    return words


def _count(sql: str, words: list[BracketToken]) -> int:
    rest = _joined_number(words[1:])
    if not rest:
        raise _error(sql, words, "ROWS needs a number", _EXAMPLES)
    if len(rest) > 1:
        hint = "a count window has no unit: write [ROWS 100]"
        raise _error(sql, rest[1:], f"{_text(sql, rest[1:])!r} is not understood in a window", hint)
    text = rest[0].text
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise _error(sql, rest, f"ROWS needs a whole number from 1, not {text!r}", _EXAMPLES)
    if int(text) > _LARGEST_COUNT:
        raise _error(sql, rest, f"ROWS takes at most {_LARGEST_COUNT:,}, not {text!r}", _EXAMPLES)
    return int(text)


def _partitioned(sql: str, words: list[BracketToken], start: int, end: int) -> WindowBracket:
    if len(words) > 2 and words[2].text.upper() == "RANGE":
        hint = "a time window holds tuples of all values: write [RANGE n UNIT], and equate the column in WHERE"
        raise _error(sql, words, "PARTITION BY goes with ROWS only", hint)
    if len(words) < 3 or words[2].text.upper() != "ROWS":
        raise _error(sql, words, "PARTITION BY needs one column and ROWS", "write [PARTITION BY column ROWS 100]")
    column = words[1]
    name = column.text[1:-1].replace("``", "`") if column.text.startswith("`") else column.text
    return WindowBracket(CountWindow(_count(sql, words[2:]), name), start, end, (column.start, column.end))


def _text(sql: str, words: list[BracketToken]) -> str:
    return sql[words[0].start : words[-1].end]


def _error(sql: str, words: list[BracketToken], message: str, hint: str | None) -> QueryError:
    return QueryError(message, hint, sql=sql, start=words[0].start, end=words[-1].end)
