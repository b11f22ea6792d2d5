"""What an error says that Spark has wrapped."""

from __future__ import annotations

import re

from dovetail import errors
from dovetail.errors import DovetailError

_OURS = re.compile(r"dovetail\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\Z)", re.DOTALL)

_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)


def raised_in_a_worker(error: BaseException) -> DovetailError | None:
    """An error of ours that a shard raised, taken out of the traces of Python, Java and Spark around its text."""
    found = _OURS.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, DovetailError):
        return None
    message, _, hint = found[2].strip().partition("\nHint: ")
    failure: DovetailError = kind(message, hint or None)
    failure.__cause__ = error
    return failure


def first_lines(error: BaseException) -> str:
    """Return what an error says and its first cause, without the Java trace that Spark appends."""
    text = str(error)
    said = text.partition("\n\tat ")[0].partition("\nJVM stacktrace")[0].strip()
    causes = _CAUSE.findall(text)
    return said if not causes or causes[-1] in said else f"{said}\ncaused by {causes[-1]}"
