"""INTERVAL constants as Spark and Flink write them, in whole microseconds.

    INTERVAL 1 HOUR   INTERVAL '1' HOUR   INTERVAL '1 hour 30 minutes'   INTERVAL '01:30' HOUR TO MINUTE

A text is read completely or rejected; sqlglot would drop the parts that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from sqlglot import Token, TokenType, exp

from dovetail.errors import ConfigError, QueryError
from dovetail.query.durations import LONGEST, to_micros

_HINT = "write INTERVAL 5 MINUTES, INTERVAL '1.5' HOUR or INTERVAL '01:30' HOUR TO MINUTE"
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_ONE = re.compile(rf"\s*([+-]?)\s*({_NUMBER})\s*([^\W\d_]*)\s*")
_SEVERAL = re.compile(rf"(?:\s*[+-]?\s*{_NUMBER}\s*[^\W\d_]+\s*)+")
_FIELDS = ("DAY", "HOUR", "MINUTE", "SECOND")
_NO_UNITS = {
    TokenType.AND,
    TokenType.OR,
    TokenType.WHERE,
    TokenType.FROM,
    TokenType.ALIAS,
    TokenType.THEN,
    TokenType.ELSE,
    TokenType.END,
}
_LARGEST = {"HOUR": 23, "MINUTE": 59, "SECOND": 59}


def read_interval(node: exp.Interval) -> int:
    """Return the microseconds of an interval; raise `QueryError` if it is not a fixed length of time."""
    unit, text = node.args.get("unit"), node.this.name if isinstance(node.this, exp.Literal) else ""
    if isinstance(unit, exp.IntervalSpan):
        return _span(text, unit.this.name.upper(), unit.expression.name.upper())
    if isinstance(unit, exp.Var):
        text = f"{text} {unit.name}"
    elif unit is not None:
        text = ""
    if not _SEVERAL.fullmatch(text):
        raise QueryError("this interval is not understood", _HINT)
    return sum(_part(sign, number, name) for sign, number, name in _ONE.findall(text))


def _part(sign: str, number: str, unit: str) -> int:
    try:
        micros = to_micros(number, unit)
    except ConfigError as error:
        raise QueryError(error.message, error.hint) from None
    return -micros if sign == "-" else micros


def _span(text: str, first: str, last: str) -> int:
    """Return the microseconds of an interval such as `'1 02:03:04.5' DAY TO SECOND`."""
    if first not in _FIELDS or last not in _FIELDS or _FIELDS.index(first) >= _FIELDS.index(last):
        hint = "months and years have no fixed length; these work: DAY, HOUR, MINUTE TO HOUR, MINUTE, SECOND"
        raise QueryError(f"an interval {first} TO {last} is not supported", hint)
    fields = _FIELDS[_FIELDS.index(first) : _FIELDS.index(last) + 1]
    numbers = [rf"({_NUMBER})" if name == "SECOND" else r"(\d+)" for name in fields]
    separators = [" " if name == "DAY" else ":" for name in fields[:-1]]
    pattern = numbers[0] + "".join(map("".join, zip(separators, numbers[1:], strict=True)))
    match = re.fullmatch(rf"\s*([+-]?){pattern}\s*", text)
    if match is None or any(float(n) >= _LARGEST[f] + 1 for f, n in zip(fields[1:], match.groups()[2:], strict=True)):
        raise QueryError(f"{text!r} is not an interval {first} TO {last}", _HINT)
    micros = sum(_part("", number, name) for name, number in zip(fields, match.groups()[1:], strict=True))
    if micros > LONGEST:
        raise QueryError(f"interval {text!r} is too long", _HINT)
    return -micros if match[1] == "-" else micros


def find_partly_read(tokens: Sequence[Token]) -> Token | None:
    """Return the first text after INTERVAL that sqlglot would read only partly."""
    for token, following in pairwise(tokens):
        if token.token_type == TokenType.INTERVAL and following.token_type == TokenType.STRING:
            text = following.text
            if not (_ONE.fullmatch(text) or _SEVERAL.fullmatch(text) or re.fullmatch(r"\s*[+-]?[\d :.]+\s*", text)):
                return following
    return None


def reject_bad_intervals(sql: str, tokens: Sequence[Token]) -> None:
    """Raise `QueryError` at the unit of an interval that has no fixed length, such as a month."""
    for position, token in enumerate(tokens[:-1]):
        length = tokens[position + 1]
        if token.token_type != TokenType.INTERVAL or length.token_type not in (TokenType.NUMBER, TokenType.STRING):
            continue
        number, unit = length.text.strip(), tokens[position + 2] if position + 2 < len(tokens) else None
        parts = [(amount, name) for _, amount, name in _ONE.findall(number)] if _SEVERAL.fullmatch(number) else []
        if unit is not None and re.fullmatch(_NUMBER, number) and unit.text.isalpha():
            is_span = position + 3 < len(tokens) and tokens[position + 3].text.upper() == "TO"
            parts = [] if is_span or unit.token_type in _NO_UNITS else [(number, unit.text)]
            end = unit.end + 1
        else:
            end = length.end + 1
        for amount, name in parts:
            try:
                to_micros(amount, name)
            except ConfigError as error:
                start = length.start if end == length.end + 1 or "unit" not in error.message else end - len(name)
                raise QueryError(error.message, error.hint or _HINT, sql=sql, start=start, end=end) from None
