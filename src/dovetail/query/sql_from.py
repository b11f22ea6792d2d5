"""The FROM list: streams and aliases, and brackets as these streams read them.

Commas, JOIN, INNER JOIN and CROSS JOIN all mean the same here, one more alias; how aliases are connected is read from
the conditions alone. Every other kind of join is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import Parser, TokenType, exp

from dovetail.query.binder import AliasBinding, find_column, find_stream
from dovetail.query.brackets import WindowBracket
from dovetail.query.functions import usable
from dovetail.query.model import CountWindow, Window
from dovetail.query.sql_expressions import SUBQUERY_HINT
from dovetail.query.sql_text import Extent, SourceText
from dovetail.schema import StreamSchema

_JOIN_WORDS = {TokenType.JOIN, *Parser.JOIN_METHODS, *Parser.JOIN_SIDES, *Parser.JOIN_KINDS}
_ON_HINT = "write JOIN ... ON a.key = b.key"


@dataclass(frozen=True, slots=True)
class FromEntry:
    """A stream of the FROM list before its name is looked up."""

    stream: str
    alias: str
    name_extent: Extent
    alias_extent: Extent
    on: exp.Expr | None

    @property
    def extent(self) -> Extent:
        return self.name_extent[0], max(self.name_extent[1], self.alias_extent[1])


def from_entries(source: SourceText, select: exp.Select) -> tuple[FromEntry, ...]:
    """The FROM list in the order written, with the ON condition of each entry."""
    start = select.args.get("from_")
    if start is None:
        raise source.refusal("the query has no FROM", "name two streams or more to join", (0, len(source.sql)))
    entries = [*_entries(source, start.this, None)]
    for join in select.args.get("joins") or ():
        entries.extend(_joined(source, join))
    if len(entries) == 1:
        hint = "join two streams or more; for one stream, filter its DataFrame or table"
        raise source.refusal("the query reads one stream only", hint, entries[0].extent)
    seen: dict[str, FromEntry] = {}
    for entry in entries:
        if entry.alias.casefold() in seen:
            hint = f"give this one another name, e.g. {entry.stream} {entry.alias}2"
            raise source.refusal(f"alias {entry.alias!r} is used twice", hint, entry.alias_extent)
        seen[entry.alias.casefold()] = entry
    return tuple(entries)


def _joined(source: SourceText, join: exp.Join) -> Iterator[FromEntry]:
    extent = source.extent(join.this) or (0, len(source.sql))
    kind = " ".join(str(join.args[part]).upper() for part in ("method", "side", "kind") if join.args.get(part))
    if kind not in ("", "INNER", "CROSS"):
        hint = _ON_HINT if kind == "NATURAL" else "only inner joins run as yet"
        words = source.words_before(extent[0], _JOIN_WORDS)
        raise source.refusal(f"{kind} JOIN is not supported", hint, words)
    if join.args.get("using"):
        raise source.refusal("USING is not supported", _ON_HINT, source.keyword("USING") or extent)
    yield from _entries(source, join.this, join.args.get("on"))


def _entries(source: SourceText, node: exp.Expr, on: exp.Expr | None) -> Iterator[FromEntry]:
    extent = source.extent(node) or source.keyword("FROM") or (0, len(source.sql))
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
        raise source.refusal("parentheses in FROM are not supported", "write the joins one after another", extent)
    if isinstance(node, exp.Lateral):
        raise source.refusal("LATERAL is not supported", SUBQUERY_HINT, extent)
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise source.refusal("FROM takes the names of streams only", "declare a stream for this", extent)
    alias_node = node.args.get("alias")
    unread = [
        key for key, value in node.args.items() if value and key not in ("this", "db", "catalog", "alias", "joins")
    ]
    if unread or (alias_node is not None and alias_node.args.get("columns")):
        raise source.refusal("a stream takes a name, an alias and a window only", "remove the rest", extent)
    parts = [part for part in (node.args.get("catalog"), node.args.get("db"), node.this) if part is not None]
    name_extent = _spanning(source, parts) or extent
    alias_extent = (source.extent(alias_node) if alias_node is not None else None) or name_extent
    yield FromEntry(
        stream=".".join(part.name for part in parts),
        alias=node.alias or node.name,
        name_extent=name_extent,
        alias_extent=alias_extent,
        on=on,
    )
    for join in node.args.get("joins") or ():
        yield from _joined(source, join)


def _spanning(source: SourceText, nodes: Sequence[exp.Expr]) -> Extent | None:
    extents = [extent for node in nodes if (extent := source.extent(node)) is not None]
    return (extents[0][0], extents[-1][1]) if extents else None


def find_streams(
    source: SourceText, entries: Sequence[FromEntry], streams: Mapping[str, StreamSchema]
) -> dict[str, StreamSchema]:
    """Look up the streams of the FROM list, by alias."""
    found: dict[str, StreamSchema] = {}
    for entry in entries:
        with source.placing(entry.name_extent):
            found[entry.alias] = streams[find_stream(entry.stream, streams)]
    _refuse_mixed_times(source, entries, list(found.values()))
    return found


def resolved(source: SourceText, bracket: WindowBracket, stream: AliasBinding) -> Window:
    """The window with its partition column spelled as the stream declares it."""
    window = bracket.window
    if not isinstance(window, CountWindow) or window.partition_by is None or bracket.partition is None:
        return window
    with source.placing(bracket.partition):
        column = find_column(window.partition_by, stream)
        usable(column)
    return replace(window, partition_by=column.name)


def _refuse_mixed_times(source: SourceText, entries: Sequence[FromEntry], schemas: Sequence[StreamSchema]) -> None:
    kinds = {True: "timestamp", False: "timestamp_ntz"}
    first = schemas[0]
    for entry, schema in zip(entries, schemas, strict=True):
        if schema.time_zone_aware != first.time_zone_aware:
            raise source.refusal(
                f"the event time of {schema.name!r} is {kinds[schema.time_zone_aware]}, "
                f"that of {first.name!r} is {kinds[first.time_zone_aware]}",
                "timestamp is an instant, timestamp_ntz a wall-clock reading: declare both streams with one kind",
                entry.extent,
            )
