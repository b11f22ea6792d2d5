"""The SQL of continuous joins: text in, a `JoinQuery` or a `QueryError` out.

The text is Spark SQL plus window brackets. What comes out is exact: a construct that Dovetail does not run is refused
here, with its words underlined, and is never ignored. Conditions of WHERE and ON are one conjunction; each conjunct
becomes a filter (one alias), an equality (`=` between two aliases) or a condition (anything else).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dovetail.errors import QueryError, listed
from dovetail.query import functions
from dovetail.query.binder import AliasBinding, Scope
from dovetail.query.brackets import take_brackets
from dovetail.query.expressions import aliases
from dovetail.query.model import Condition, Equality, JoinQuery, Key, StreamRef, equality_classes
from dovetail.query.near_misses import refuse_near_misses
from dovetail.query.sql_expressions import AGGREGATE_HINT, SUBQUERY_HINT, ExpressionBinder
from dovetail.query.sql_from import FromEntry, find_streams, from_entries, resolved
from dovetail.query.sql_parse import SHAPE, parse_select, statement_tokens
from dovetail.query.sql_select import bind_outputs
from dovetail.query.sql_text import SourceText
from dovetail.query.windows import WindowFinder
from dovetail.query.zones import reading_in
from dovetail.schema import StreamSchema

_ENDLESS = "a continuous query has no end; do this to its result"
_CLAUSES: dict[str, tuple[str, str]] = {
    "with_": ("WITH", SUBQUERY_HINT),
    "distinct": ("DISTINCT", _ENDLESS),
    "laterals": ("LATERAL", "explode the column before the stream enters the join"),
    "group": ("GROUP BY", AGGREGATE_HINT),
    "having": ("HAVING", AGGREGATE_HINT),
    "qualify": ("QUALIFY", AGGREGATE_HINT),
    "windows": ("WINDOW", AGGREGATE_HINT),
    "order": ("ORDER BY", _ENDLESS),
    "sort": ("SORT BY", _ENDLESS),
    "cluster": ("CLUSTER BY", _ENDLESS),
    "distribute": ("DISTRIBUTE BY", _ENDLESS),
    "limit": ("LIMIT", _ENDLESS),
    "offset": ("OFFSET", _ENDLESS),
    "hint": ("HINT", "Dovetail's planner takes session.selectivity(...) instead"),
    "into": ("INTO", "results are what push returns"),
}
_ROOM = 10_000
"""Calls inside each other, beyond what is usual: sqlglot takes 20 for each parenthesis, and so 48 of them would be too many."""
_READ = {"expressions", "from_", "joins", "where"}


def parse_query(name: str, sql: str, streams: Mapping[str, StreamSchema], time_zone: str = "UTC") -> JoinQuery:
    """Read a query over declared streams; constants without a time zone are in `time_zone`, as Spark names it.

    Raises
    ------
    QueryError
        The text is not a join that Dovetail runs; the error underlines the words at fault.
    """
    if not isinstance(sql, str):
        raise QueryError(f"a query is text, not {type(sql).__name__}", SHAPE)
    if sql.encode(errors="replace").decode() != sql:
        raise QueryError(
            "the query holds half of a surrogate pair, which is no character", "write the character itself"
        )
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + _ROOM)
    try:
        with reading_in(time_zone) as zone:
            query = _read(name, sql, streams)
        return replace(query, time_zone=zone.name) if zone.used else query
    except RecursionError:
        message = f"the query is nested too deeply; at most {functions.DEEPEST} operations may be inside each other"
        raise QueryError(message, functions.DEEP_HINT, sql=sql, end=len(sql)) from None
    finally:
        sys.setrecursionlimit(limit)


def _read(name: str, sql: str, streams: Mapping[str, StreamSchema]) -> JoinQuery:
    written = statement_tokens(sql)
    refuse_near_misses(sql, written)
    tokens, items = take_brackets(sql, written)
    source = SourceText(sql, tokens)
    select = parse_select(source)
    _refuse_clauses(source, select)
    entries = from_entries(source, select)
    schemas = find_streams(source, entries, streams)
    scope = Scope([AliasBinding(alias, schema) for alias, schema in schemas.items()])
    binder = ExpressionBinder(source, scope)
    outputs = bind_outputs(source, select, scope, binder)
    found = _Conjuncts(source, binder)
    for condition in _conditions(select, entries):
        found.add(condition)
    times = {alias: schema.event_time for alias, schema in schemas.items()}
    finder = WindowFinder(source, entries, items, times, [*found.equalities, *found.conditions])
    windows = finder.find(lambda entry, bracket: resolved(source, bracket, scope.source(entry.alias)))
    _refuse_unconnected(source, entries, found)
    return JoinQuery(
        name=name,
        sql=sql,
        refs=tuple(StreamRef(alias, schema.name, windows.of[alias]) for alias, schema in schemas.items()),
        equalities=tuple(found.equalities),
        conditions=tuple(found.conditions),
        filters=tuple(found.filters),
        outputs=outputs,
        classes=equality_classes(found.equalities),
        inferred=windows.inferred,
        warnings=tuple(f"query {name!r}: {warning}" for warning in windows.warnings),
    )


def _refuse_clauses(source: SourceText, select: exp.Select) -> None:
    for argument, value in select.args.items():
        if not value or argument in _READ:
            continue
        words, hint = _CLAUSES.get(argument, (argument.rstrip("_").upper(), SHAPE))
        extent = source.keyword(words.replace(" ", "_")) or (0, len(source.sql))
        raise source.refusal(f"{words} is not supported", hint, extent)


def _conditions(select: exp.Select, entries: Sequence[FromEntry]) -> Iterator[exp.Expr]:
    """The conjuncts of every ON and of WHERE, in order of appearance, without parentheses around them."""
    roots = [entry.on for entry in entries if entry.on is not None]
    where = select.args.get("where")
    for root in [*roots, *([where.this] if where else [])]:
        yield from _flattened(root)


def _flattened(node: exp.Expr) -> Iterator[exp.Expr]:
    node = node.unnest()
    if isinstance(node, exp.And):
        for part in node.flatten():
            yield from _flattened(part)
    else:
        yield node


class _Conjuncts:
    """Conjuncts sorted by what they are for."""

    def __init__(self, source: SourceText, binder: ExpressionBinder) -> None:
        self._source = source
        self._binder = binder
        self.equalities: list[Equality] = []
        self.conditions: list[Condition] = []
        self.filters: list[Condition] = []

    def add(self, node: exp.Expr) -> None:
        text, extent = self._source.condition_text(node)
        with self._source.placing(extent or (0, len(self._source.sql))):
            self._sort(node, text)

    def _sort(self, node: exp.Expr, text: str) -> None:
        expression = functions.refuse_deep(self._binder.truth(node, "a condition"))
        involved = aliases(expression)
        if not involved:
            if not functions.always_true(expression):
                raise QueryError("this condition refers to no stream", "remove it, or compare columns")
        elif len(involved) == 1:
            self.filters.append(Condition(expression, text))
        elif (equality := self._equality(node, text)) is not None:
            self.equalities.append(equality)
        else:
            self.conditions.append(Condition(expression, text))

    def _equality(self, node: exp.Expr, text: str) -> Equality | None:
        if not isinstance(node, exp.EQ):
            return None
        left, right = self._binder.value(node.left), self._binder.value(node.right)
        sides = (aliases(left), aliases(right))
        if sides[0] == sides[1] or [len(side) for side in sides] != [1, 1]:
            return None
        dtype = functions.comparison_type(left, right)
        return Equality(Key(sides[0][0], left), Key(sides[1][0], right), dtype, text)


def _refuse_unconnected(source: SourceText, entries: Sequence[FromEntry], found: _Conjuncts) -> None:
    links: list[tuple[str, ...]] = [(edge.left.alias, edge.right.alias) for edge in found.equalities]
    links.extend(condition.aliases for condition in found.conditions)
    reached = {entries[0].alias}
    for _ in entries:
        for link in links:
            if reached.intersection(link):
                reached.update(link)
    apart = [entry for entry in entries if entry.alias not in reached]
    together = [entry.alias for entry in entries if entry.alias in reached]
    if apart:
        what = "alias" if len(apart) == 1 else "aliases"
        verb = "is" if len(apart) == 1 else "are"
        raise source.refusal(
            f"{what} {listed(entry.alias for entry in apart)} {verb} not joined to {listed(together)}",
            f"add a condition between them, e.g. {entries[0].alias}.key = {apart[0].alias}.key",
            apart[0].extent,
        )
