"""Extract errors and messages from the traces that Spark wraps around them."""

from __future__ import annotations

import re

from dovetail import errors
from dovetail.errors import DovetailError

_OURS = re.compile(r"dovetail\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\Z)", re.DOTALL)

_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)


def worker_error(error: BaseException) -> DovetailError | None:
    """Return the Dovetail error that a worker raised, if any, extracted from the text of Spark's error."""
    match = _OURS.search(str(error))
    kind = getattr(errors, match[1], None) if match else None
    if match is None or not isinstance(kind, type) or not issubclass(kind, DovetailError):
        return None
    message, _, hint = match[2].strip().partition("\nHint: ")
    failure: DovetailError = kind(message, hint or None)
    failure.__cause__ = error
    return failure


def first_lines(error: BaseException) -> str:
    """Return the message of an error and its root cause, without the Java trace that Spark appends."""
    text = str(error)
    message = text.partition("\n\tat ")[0].partition("\nJVM stacktrace")[0].strip()
    causes = _CAUSE.findall(text)
    return message if not causes or causes[-1] in message else f"{message}\ncaused by {causes[-1]}"
