"""Name resolution: names in SQL to streams, aliases and columns.

A name is matched exactly, then without regard to case if that leaves one candidate, as in Spark. A name that matches
nothing, or several columns, is an error that lists the candidates. Errors here carry no position; the caller adds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.errors import QueryError, listed, suggestion
from dovetail.query.expressions import Column
from dovetail.schema import StreamSchema


@dataclass(frozen=True, slots=True)
class AliasBinding:
    """One entry of the FROM list with the schema of its stream."""

    alias: str
    schema: StreamSchema


def match_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `name` refers to.

    That is `name` itself, else the only one equal to it without regard to case.
    """
    names = list(candidates)
    if name in names:
        return name
    folded = [other for other in names if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else None


def sql_name(name: str) -> str:
    """Return a name as a query writes it: in backticks unless it has letters, digits and _ only."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name.replace('`', '``')}`"


def _quoted(name: str) -> str:
    """Return a name for a hint: quoted, or as the query has to write it."""
    return repr(name) if sql_name(name) == name else sql_name(name)


def find_stream(name: str, streams: Mapping[str, StreamSchema]) -> str:
    match = match_name(name, streams)
    if match is None:
        hint = suggestion(name, streams, "declare it first: session.stream(name, ...)", _quoted)
        raise QueryError(f"there is no stream {name!r}; declared: {listed(streams)}", hint)
    return match


def find_column(name: str, binding: AliasBinding) -> Column:
    names = binding.schema.columns.names
    match = match_name(name, names)
    if match is None:
        hint = suggestion(name, names, f"write one of the columns of {binding.schema.name!r}", _quoted)
        raise QueryError(f"stream {binding.schema.name!r} has no column {name!r}; columns: {listed(names)}", hint)
    return Column(binding.alias, match, binding.schema.columns.field(match).type)


def check_column(qualifier: str, name: str, streams: Mapping[str, StreamSchema]) -> None:
    """Refuse a column that its stream lacks, or all streams where the qualifier is no stream but an alias."""
    if qualifier in streams:
        find_column(name, AliasBinding(qualifier, streams[qualifier]))
        return
    names = list(dict.fromkeys(column for stream in streams.values() for column in stream.columns.names))
    if not streams:
        raise QueryError("no stream is declared", "declare streams first: session.stream(name, ...)")
    if match_name(name, names) is None:
        hint = suggestion(name, names, "write a column of one of the streams", _quoted)
        raise QueryError(f"no stream has a column {name!r}; columns: {listed(names)}", hint)


class Scope:
    """The aliases of one query."""

    def __init__(self, bindings: Sequence[AliasBinding]) -> None:
        self.bindings = tuple(bindings)

    def binding(self, qualifier: str) -> AliasBinding:
        """Return the FROM entry that a qualifier refers to."""
        aliases = [binding.alias for binding in self.bindings]
        match = match_name(qualifier, aliases)
        if match is None:
            renamed = [b.alias for b in self.bindings if b.schema.name.casefold() == qualifier.casefold()]
            hint = f"the alias of this stream is {listed(renamed)}" if renamed else None
            raise QueryError(
                f"there is no alias {qualifier!r}; in FROM: {listed(aliases)}",
                hint or suggestion(qualifier, aliases, "qualify columns with an alias of the FROM list"),
            )
        return next(binding for binding in self.bindings if binding.alias == match)

    def columns_of(self, binding: AliasBinding) -> tuple[Column, ...]:
        return tuple(Column(binding.alias, field.name, field.type) for field in binding.schema.columns)

    def column(self, name: str, qualifier: str | None) -> Column:
        """Return the column that a reference means."""
        if qualifier is not None:
            return find_column(name, self.binding(qualifier))
        columns = [column for binding in self.bindings for column in self.columns_of(binding)]
        exact = [column for column in columns if column.name == name]
        matches = exact or [column for column in columns if column.name.casefold() == name.casefold()]
        if len(matches) > 1:
            raise QueryError(
                f"column {name!r} is ambiguous: {', '.join(map(str, matches))}",
                f"qualify it, e.g. {sql_name(matches[0].alias)}.{sql_name(matches[0].name)}",
            )
        if not matches:
            hint = suggestion(name, [column.name for column in columns], "write one of these columns", _quoted)
            raise QueryError(f"no stream in FROM has a column {name!r}; columns: {', '.join(map(str, columns))}", hint)
        return matches[0]
