"""Every error that Dovetail raises on purpose.

Each derives from `DovetailError` and from the builtin a user would catch. A message names what is wrong, where, the value and the
values allowed; a second line starting with "Hint:" says what to type. `QueryError` also underlines the offending SQL and keeps
its position as data.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from difflib import get_close_matches


def listed(names: Iterable[object]) -> str:
    """Join names for a message, quoted: `'a', 'b'`; `none` when there are none."""
    return ", ".join(repr(name) for name in names) or "none"


def suggestion(name: object, candidates: Iterable[str], otherwise: str, quote: Callable[[str], str] = repr) -> str:
    """Return a hint that names the candidate most similar to `name`, written by `quote`, else `otherwise`."""
    by_folded = {other.casefold(): other for other in candidates}
    close = get_close_matches(str(name).casefold(), by_folded, n=1)
    return f"did you mean {quote(by_folded[close[0]])}?" if close else otherwise


_IMPORTS = {
    "F": "from pyspark.sql import functions as F",
    "pa": "import pyarrow as pa",
    "pc": "import pyarrow.compute as pc",
}
"""By name in the code of a hint, the line that imports it."""


def with_imports(hint: str) -> str:
    """Return a hint that has code with the imports of that code."""
    lines = [line for name, line in _IMPORTS.items() if re.search(rf"\b{name}\.", hint)]
    return f"{hint}; first: {'; '.join(lines)}" if lines else hint


class DovetailError(Exception):
    """Base of all errors raised by Dovetail."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}\nHint: {hint}" if hint else message)


class ConfigError(DovetailError, ValueError):
    """An option has a value that is not allowed."""

    @classmethod
    def choice(cls, option: str, value: object, allowed: Iterable[object]) -> ConfigError:
        allowed = list(allowed)
        names = [other for other in allowed if isinstance(other, str)]
        return cls(f"{option} is {value!r}; allowed: {listed(allowed)}", suggestion(value, names, "") or None)


class MissingExtraError(DovetailError, ImportError):
    """A feature needs packages that `pip install dovetail` alone does not bring."""


class SchemaError(DovetailError, ValueError):
    """A stream's declaration, or a table pushed into it, has the wrong columns, types or values."""


class QueryError(DovetailError, ValueError):
    """A query was rejected. `sql`, `start` and `end` locate the offending text (character offsets)."""

    def __init__(self, message: str, hint: str | None = None, *, sql: str = "", start: int = 0, end: int = 0) -> None:
        self.sql, self.start, self.end = sql, start, end
        before = sql[:start]
        self.line = before.count("\n") + 1
        self.column = start - (before.rfind("\n") + 1) + 1
        super().__init__(f"{message}\n{underline(sql, start, end)}" if sql else message, hint)
        self.message = message


class PlanError(DovetailError, ValueError):
    """A plan is invalid, or no plan meets the request."""


class BudgetError(PlanError):
    """No plan fits the CPU or memory budget. `resource` is what is exceeded: `CPU` or `memory`."""

    def __init__(self, message: str, hint: str | None = None, *, resource: str = "") -> None:
        self.resource = resource
        super().__init__(message, hint)


class StateError(DovetailError, RuntimeError):
    """Serialized state is missing, corrupt, or of another layout or version."""


class reading(ContextDecorator):  # noqa: N801 - a context manager: `with reading("the snapshot")`
    """Report any exception inside, except interrupts, as a `StateError`.

    The error says that `data` is corrupt or not written by Dovetail.
    """

    def __init__(self, data: str) -> None:
        self._data = data

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StateError):
            message = f"{self._data} is corrupt or was not written by Dovetail: {type(error).__name__}: {error}"
            raise StateError(message, "write it again, or use an earlier one") from error


class DovetailWarning(UserWarning):
    """A query runs, but results may be missing; the message says which and why."""


def warn(text: str) -> None:
    """Issue a `DovetailWarning` at the line of the user's code that called Dovetail."""
    level, frame = 1, sys._getframe()  # noqa: SLF001 - documented, and warnings count frames
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "dovetail":
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, DovetailWarning, stacklevel=level)


def underline(sql: str, start: int, end: int) -> str:
    """Return the line of `sql` that holds `start`, numbered, with carets under `start` to `end`."""
    line_start = sql.rfind("\n", 0, start) + 1
    line_end = sql.find("\n", start)
    line_end = len(sql) if line_end < 0 else line_end
    label = f"line {sql.count(chr(10), 0, start) + 1}: "
    carets = max(1, min(end, line_end) - start)
    return f"  {label}{sql[line_start:line_end]}\n  {' ' * (len(label) + start - line_start)}{'^' * carets}"
