"""Names to columns.

A name is matched exactly, then without regard to case if that leaves one candidate, as a Spark user expects. A name
that fits nothing, or several columns, is an error that lists what there is. Errors here carry no position; the caller
knows the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dovetail.errors import QueryError, listed
from dovetail.query.expressions import Column
from dovetail.schema import StreamSchema


@dataclass(frozen=True, slots=True)
class AliasBinding:
    """An alias of the FROM list and the stream behind it."""

    alias: str
    schema: StreamSchema


def match_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` means: itself, else the only one equal to it without regard to case."""
    names = list(known)
    if name in names:
        return name
    folded = [other for other in names if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else None


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint: the known name that looks most like `name`, else `otherwise`."""
    by_folded = {other.casefold(): other for other in known}
    close = get_close_matches(name.casefold(), by_folded, n=1)
    return f"did you mean {by_folded[close[0]]!r}?" if close else otherwise


def find_stream(name: str, streams: Mapping[str, StreamSchema]) -> str:
    found = match_name(name, streams)
    if found is None:
        hint = suggestion(name, streams, "declare it first: session.stream(name, ...)")
        raise QueryError(f"there is no stream {name!r}; declared: {listed(streams)}", hint)
    return found


def find_column(name: str, source: AliasBinding) -> Column:
    names = source.schema.columns.names
    found = match_name(name, names)
    if found is None:
        hint = suggestion(name, names, f"write one of the columns of {source.schema.name!r}")
        raise QueryError(f"stream {source.schema.name!r} has no column {name!r}; columns: {listed(names)}", hint)
    return Column(source.alias, found, source.schema.columns.field(found).type)


class Scope:
    """The aliases of one query."""

    def __init__(self, sources: Sequence[AliasBinding]) -> None:
        self.sources = tuple(sources)

    def source(self, name: str) -> AliasBinding:
        """The FROM entry that a qualifier means."""
        aliases = [source.alias for source in self.sources]
        found = match_name(name, aliases)
        if found is None:
            renamed = [s.alias for s in self.sources if s.schema.name.casefold() == name.casefold()]
            hint = f"the stream goes by {listed(renamed)} here" if renamed else None
            raise QueryError(
                f"there is no alias {name!r}; in FROM: {listed(aliases)}",
                hint or suggestion(name, aliases, "qualify columns with an alias of the FROM list"),
            )
        return next(source for source in self.sources if source.alias == found)

    def columns_of(self, source: AliasBinding) -> tuple[Column, ...]:
        return tuple(Column(source.alias, field.name, field.type) for field in source.schema.columns)

    def column(self, name: str, qualifier: str | None) -> Column:
        """The column that a reference means."""
        if qualifier is not None:
            return find_column(name, self.source(qualifier))
        everything = [column for source in self.sources for column in self.columns_of(source)]
        exact = [column for column in everything if column.name == name]
        found = exact or [column for column in everything if column.name.casefold() == name.casefold()]
        if len(found) > 1:
            raise QueryError(
                f"column {name!r} is ambiguous: {', '.join(map(str, found))}", f"qualify it, e.g. {found[0]}"
            )
        if not found:
            known = ", ".join(map(str, everything))
            hint = suggestion(name, [column.name for column in everything], "write one of these columns")
            raise QueryError(f"no stream in FROM has a column {name!r}; columns: {known}", hint)
        return found[0]
