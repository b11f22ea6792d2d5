"""The FROM list: streams, aliases and the partition columns of windows.

Commas, JOIN, INNER JOIN and CROSS JOIN all add one alias; only the conditions connect aliases. Every other kind of join
is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import Parser, TokenType, exp

from dovetail.errors import with_imports
from dovetail.query.binder import AliasBinding, find_column, find_stream
from dovetail.query.brackets import WindowBracket
from dovetail.query.functions import with_sql_type
from dovetail.query.model import CountWindow, Window
from dovetail.query.refusals import FROM_SUBQUERY_HINT
from dovetail.query.sql_text import Extent, SqlText
from dovetail.schema import StreamSchema

_JOIN_WORDS = {TokenType.JOIN, *Parser.JOIN_METHODS, *Parser.JOIN_SIDES, *Parser.JOIN_KINDS}
_ON_HINT = "write JOIN ... ON a.key = b.key"


@dataclass(frozen=True, slots=True)
class FromEntry:
    """One entry of the FROM list as parsed, before names are resolved."""

    stream: str
    alias: str
    name_extent: Extent
    alias_extent: Extent
    on: exp.Expr | None

    @property
    def extent(self) -> Extent:
        return self.name_extent[0], max(self.name_extent[1], self.alias_extent[1])


def from_entries(sql_text: SqlText, select: exp.Select) -> tuple[FromEntry, ...]:
    """Return the FROM list in the order written, with the ON condition of each entry."""
    from_clause = select.args.get("from_")
    if from_clause is None:
        raise sql_text.error("the query has no FROM", "name two streams or more to join", (0, len(sql_text.sql)))
    entries = [*_entries(sql_text, from_clause.this, None)]
    for join in select.args.get("joins") or ():
        entries.extend(_joined(sql_text, join))
    if len(entries) == 1:
        hint = "join two streams or more; for one stream, filter its DataFrame or table"
        raise sql_text.error("the query reads one stream only", hint, entries[0].extent)
    seen: set[str] = set()
    for entry in entries:
        if entry.alias.casefold() in seen:
            hint = f"give this one another name, e.g. {entry.stream} {entry.alias}2"
            raise sql_text.error(f"alias {entry.alias!r} is used twice", hint, entry.alias_extent)
        seen.add(entry.alias.casefold())
    return tuple(entries)


def _joined(sql_text: SqlText, join: exp.Join) -> Iterator[FromEntry]:
    extent = sql_text.extent(join.this) or (0, len(sql_text.sql))
    kind = " ".join(str(join.args[part]).upper() for part in ("method", "side", "kind") if join.args.get(part))
    if kind not in ("", "INNER", "CROSS"):
        hint = _ON_HINT if kind == "NATURAL" else "only inner joins are supported"
        words = sql_text.words_before(extent[0], _JOIN_WORDS)
        raise sql_text.error(f"{kind} JOIN is not supported", hint, words)
    if join.args.get("using"):
        raise sql_text.error("USING is not supported", _ON_HINT, sql_text.keyword("USING") or extent)
    yield from _entries(sql_text, join.this, join.args.get("on"))


def _entries(sql_text: SqlText, node: exp.Expr, on: exp.Expr | None) -> Iterator[FromEntry]:
    extent = sql_text.extent(node) or sql_text.keyword("FROM") or (0, len(sql_text.sql))
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
        raise sql_text.error("parentheses in FROM are not supported", "write the joins one after another", extent)
    if isinstance(node, exp.Lateral):
        raise sql_text.error("LATERAL is not supported", FROM_SUBQUERY_HINT, extent)
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise sql_text.error("FROM allows only the names of streams", "name the streams that are declared", extent)
    alias_node = node.args.get("alias")
    unread = [
        key for key, value in node.args.items() if value and key not in ("this", "db", "catalog", "alias", "joins")
    ]
    if unread or (alias_node is not None and alias_node.args.get("columns")):
        raise sql_text.error("FROM allows only a name, an alias and a window per stream", "remove the rest", extent)
    parts = [part for part in (node.args.get("catalog"), node.args.get("db"), node.this) if part is not None]
    name_extent = _spanning(sql_text, parts) or extent
    alias_extent = (sql_text.extent(alias_node) if alias_node is not None else None) or name_extent
    yield FromEntry(
        stream=".".join(part.name for part in parts),
        alias=node.alias or node.name,
        name_extent=name_extent,
        alias_extent=alias_extent,
        on=on,
    )
    for join in node.args.get("joins") or ():
        yield from _joined(sql_text, join)


def _spanning(sql_text: SqlText, nodes: Sequence[exp.Expr]) -> Extent | None:
    extents = [extent for node in nodes if (extent := sql_text.extent(node)) is not None]
    return (extents[0][0], extents[-1][1]) if extents else None


def find_streams(
    sql_text: SqlText, entries: Sequence[FromEntry], streams: Mapping[str, StreamSchema]
) -> dict[str, StreamSchema]:
    """Return the streams of the FROM list by alias."""
    schemas: dict[str, StreamSchema] = {}
    for entry in entries:
        with sql_text.locating_errors(entry.name_extent):
            schemas[entry.alias] = streams[find_stream(entry.stream, streams)]
    _reject_mixed_times(sql_text, entries, list(schemas.values()))
    return schemas


def bind_window(sql_text: SqlText, bracket: WindowBracket, stream: AliasBinding) -> Window:
    """Return the window of a bracket with its partition column spelled as the stream declares it."""
    window = bracket.window
    if not isinstance(window, CountWindow) or window.partition_by is None or bracket.partition is None:
        return window
    with sql_text.locating_errors(bracket.partition):
        column = find_column(window.partition_by, stream)
        with_sql_type(column)
    return replace(window, partition_by=column.name)


def _reject_mixed_times(sql_text: SqlText, entries: Sequence[FromEntry], schemas: Sequence[StreamSchema]) -> None:
    kinds = {True: "timestamp", False: "timestamp_ntz"}
    first = schemas[0]
    for entry, schema in zip(entries, schemas, strict=True):
        if schema.time_zone_aware != first.time_zone_aware:
            naive = schema if first.time_zone_aware else first
            raise sql_text.error(
                f"the event time of {schema.name!r} is {kinds[schema.time_zone_aware]}, "
                f"that of {first.name!r} is {kinds[first.time_zone_aware]}",
                with_imports(
                    "timestamp is an instant, timestamp_ntz a wall-clock reading: declare both streams with one kind; for "
                    f"{naive.name!r} write F.col({naive.event_time!r}).cast('timestamp') in PySpark, "
                    f"pc.assume_timezone(table[{naive.event_time!r}], 'UTC') in Arrow"
                ),
                entry.extent,
            )
