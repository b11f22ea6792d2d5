"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from dovetail.errors import ConfigError, listed, suggestion

DataFiles: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]PATH...",
        help="CSV, Parquet, JSON lines or Arrow, or a directory of them; the stream is named NAME, or like the file.",
    ),
]
SqlFiles: TypeAlias = Annotated[list[Path] | None, typer.Option("--sql", help="A file with the query.")]
SqlTexts: TypeAlias = Annotated[list[str] | None, typer.Option("--query", help="The query itself.")]
EventTimes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--event-time", metavar="[NAME=]COLUMN", help="By default the only timestamp column of a file."),
]
Latenesses: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--lateness", metavar="[NAME=]TIME", help="How far rows may be out of order; 0 seconds by default."),
]
Columns: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--columns", metavar="NAME=COLUMNS", help="Types that are not to be inferred: a='id string, ts timestamp'."
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def per_stream(option: str, texts: Iterable[str] | None, streams: Sequence[str]) -> dict[str, str]:
    """Return the value of an option for each stream; one without a name is for all that have none.

    >>> per_stream("--lateness", ["1 min", "clicks=2 min"], ["clicks", "orders"])
    {'clicks': '2 min', 'orders': '1 min'}
    """
    by_stream, for_all = dict[str, str](), None
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator:
            for_all = text
        elif name in streams:
            by_stream[name] = value
        else:
            hint = suggestion(name, streams, f"write {option} {streams[0]}={value!r}")
            raise ConfigError(f"{option} {text}: there is no stream {name!r}; streams: {listed(streams)}", hint)
    return {name: by_stream.get(name, for_all) for name in streams if name in by_stream or for_all is not None}  # type: ignore[misc]


def read_queries(files: Sequence[Path] | None, texts: Sequence[str] | None) -> dict[str, str]:
    """Return queries by name: the name of the file, or `query`."""
    queries = dict[str, str]()
    for path in files or ():
        if not path.is_file():
            near = [str(other) for other in path.parent.glob("*.sql")] if path.parent.is_dir() else []
            raise ConfigError(
                f"--sql {path}: there is no such file", suggestion(str(path), near, "name a file with SQL")
            )
        if path.stem in queries:
            raise ConfigError(f"--sql {path}: there is already a query {path.stem!r}", "rename one of the files")
        queries[path.stem] = path.read_text(encoding="utf-8").strip().removesuffix(";")
    for text in texts or ():
        names = (f"query{number if number > 1 else ''}" for number in count(1))
        queries[next(name for name in names if name not in queries)] = text
    if not queries:
        raise ConfigError("there is no query", "add --sql FILE, or --query 'SELECT ...'")
    return queries
