"""Tables of a TOML file whose mistakes are reported with their line, what is allowed, and a hint."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from dovetail.errors import ConfigError, DovetailError, listed, suggestion

KeyPath: TypeAlias = tuple[str, ...]
Kind: TypeAlias = tuple[str, tuple[type, ...]]
"""What a value is called in messages, and its types."""

TEXT: Kind = ("text in quotes", (str,))
NUMBER: Kind = ("a number", (int, float))
WHOLE: Kind = ("a whole number", (int,))
FLAG: Kind = ("true or false", (bool,))
DURATION: Kind = ("a duration such as '5 minutes'", (str, int, float))
TABLE: Kind = ("a table", (dict,))
SIZE: Kind = ("text in quotes or a number", (str, int))


_ABSOLUTE = re.compile(r"[A-Za-z][\w+.-]+:|/")
"""The start of a URI, or of an absolute path."""


class JobFileError(ConfigError):
    """A job file, or a query that it names, has a mistake."""


@dataclass(frozen=True)
class TomlFile:
    """A TOML file with its text."""

    path: Path
    text: str

    @cached_property
    def lines(self) -> Mapping[KeyPath, int]:
        """The line of each key and of each table's heading.

        Each statement of TOML can be parsed alone, so a statement ends with the first line with which it can.
        """
        lines, statement = dict[KeyPath, int](), list[str]()
        table: KeyPath = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            statement.append(line)
            try:
                content = tomllib.loads("\n".join(statement))
            except tomllib.TOMLDecodeError:
                continue
            first = number - len(statement) + 1
            if statement[0].lstrip().startswith("["):
                table = max(_paths(content), key=len)
                lines.setdefault(table, first)
            for path in _paths(content) if not statement[0].lstrip().startswith("[") else ():
                lines.setdefault((*table, *path), first)
            statement = []
        return lines

    def line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the innermost table around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(
        self, line: int, message: str, hint: str | None = None, carets: tuple[int, int] | None = None
    ) -> JobFileError:
        """Return the error that shows a line; `carets` underline columns from the first to before the second."""
        lines = self.text.splitlines()
        shown = f"  {line} | {lines[line - 1]}" if 0 < line <= len(lines) else ""
        if carets is not None:
            shown += f"\n  {' ' * len(str(line))} | {' ' * carets[0]}{'^' * max(1, carets[1] - carets[0])}"
        return JobFileError(f"{self.path}, line {line}: {message}\n{shown}", hint)


@dataclass(frozen=True)
class TomlTable:
    """A table of a TOML file."""

    file: TomlFile
    path: KeyPath
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> TomlTable:
        """Return the whole of a file."""
        if not path.is_file():
            near = [str(other) for other in path.parent.glob("*.toml")] if path.parent.is_dir() else []
            raise ConfigError(f"there is no job file {str(path)!r}", suggestion(str(path), near, "name a TOML file"))
        file = TomlFile(path, path.read_text(encoding="utf-8"))
        try:
            return cls(file, (), tomllib.loads(file.text))
        except tomllib.TOMLDecodeError as error:
            raise _syntax_error(file, str(error)) from None

    def check(self, kinds: Mapping[str, Kind], required: Sequence[str] = ()) -> None:
        """Refuse keys that are not in `kinds`, values of another kind, and the absence of `required` keys."""
        for key, value in self.content.items():
            if key not in kinds:
                hint = suggestion(key, kinds, "see docs/cli.md for what each key means")
                raise self.error(key, f"{self.name}there is no key {key!r}; allowed: {listed(kinds)}", hint)
            title, types = kinds[key]
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise self.error(key, f"{self.name}{key} is {_shown(value)}; allowed: {title}")
        for key in required:
            if key not in self.content:
                raise self.error(None, f"{self.name}the key {key!r} is missing", f"add {key} = ... below this line")

    def check_choice(self, key: str, allowed: Sequence[str]) -> None:
        """Refuse a text that is none of those allowed."""
        if (value := self.content.get(key)) is not None and value not in allowed:
            hint = suggestion(value, allowed, f"write {key} = {allowed[0]!r}")
            raise self.error(key, f"{self.name}{key} is {value!r}; allowed: {listed(allowed)}", hint)

    def table(self, key: str) -> TomlTable:
        """Return a table in this one; an empty one if it is missing."""
        return TomlTable(self.file, (*self.path, key), self.content.get(key, {}))

    def tables(self, key: str, example: str) -> dict[str, TomlTable]:
        """Return the named tables below a key; there must be one, as in `example`."""
        parent = self.table(key)
        if not parent.content:
            raise self.error(key if key in self.content else None, f"there is no [{key}.NAME]", f"add {example}")
        for name, value in parent.content.items():
            if not isinstance(value, dict):
                raise parent.error(name, f"{key}.{name} is {_shown(value)}; allowed: a table", f"write {example}")
        return {name: parent.table(name) for name in parent.content}

    @property
    def name(self) -> str:
        """The path of this table, to begin a message with."""
        return f"[{'.'.join(self.path)}]: " if self.path else ""

    def error(self, key: str | None, message: str, hint: str | None = None) -> JobFileError:
        """Return the error at a key, or at the heading of this table."""
        return self.file.error(self.file.line(self.path if key is None else (*self.path, key)), message, hint)

    @contextmanager
    def located(self, key: str | None = None) -> Iterator[None]:
        """Report errors of Dovetail at `key`, or else at the key that their message is about."""
        try:
            yield
        except JobFileError:
            raise
        except DovetailError as error:
            raise self.error(key or self._key_in(error.message), self.name + error.message, error.hint) from error

    def _key_in(self, message: str) -> str | None:
        """Return the key that a message shows with its value, or else its value alone, or its name."""
        shown: tuple[Callable[[str, object], bool], ...] = (
            lambda key, value: f"{key}={value!r}" in message,
            lambda _, value: isinstance(value, str) and repr(value) in message,
            lambda key, _: re.search(rf"\b{re.escape(key)}\b", message) is not None,
        )
        return next((key for is_shown in shown for key, value in self.content.items() if is_shown(key, value)), None)

    def location(self, key: str) -> str:
        """Return the path at a key; one that is relative begins at the directory of the file."""
        text: str = self.content[key]
        return text if _ABSOLUTE.match(text) else str(self.file.path.parent / text)


def _syntax_error(file: TomlFile, text: str) -> JobFileError:
    message, _, place = text.partition(" (at ")
    found = re.match(r"line (\d+), column (\d+)", place)
    line = int(found[1]) if found else len(file.text.splitlines())
    carets = (int(found[2]) - 1, int(found[2])) if found else None
    hint = None
    if "value" in message.lower():
        hint = "texts are in quotes, numbers and true or false are not"
    return file.error(line, f"this is not TOML: {message[:1].lower()}{message[1:]}", hint, carets)


def _paths(content: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the path of each key in a statement."""
    for key, value in content.items():
        yield (key,)
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict):
            yield from ((key, *path) for path in _paths(inner))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, dict) else repr(value)
