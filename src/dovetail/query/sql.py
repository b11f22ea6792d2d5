"""The SQL front end: parses a continuous join into a `JoinQuery`, or raises a `QueryError`.

The language is Spark SQL plus window brackets. Nothing is ignored: a construct that Dovetail does not run is rejected
with its text underlined. The conditions of WHERE and ON form one conjunction; each conjunct becomes a filter (one
alias), an equality (`=` between two aliases) or a condition (anything else).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dovetail.errors import QueryError, listed
from dovetail.query import functions
from dovetail.query.binder import AliasBinding, Scope
from dovetail.query.brackets import extract_brackets
from dovetail.query.contradictions import contradiction_warnings
from dovetail.query.expressions import aliases
from dovetail.query.foreign_windows import reject_foreign_windows
from dovetail.query.model import Condition, Equality, JoinQuery, Key, StreamRef, equality_classes
from dovetail.query.refusals import AGGREGATE_HINT, FROM_SUBQUERY_HINT, is_double_quoted
from dovetail.query.reserved_words import reserved_names, with_backticks
from dovetail.query.sql_expressions import ExpressionBinder
from dovetail.query.sql_from import FromEntry, bind_window, find_streams, from_entries
from dovetail.query.sql_parse import SHAPE, parse_select, statement_tokens
from dovetail.query.sql_select import bind_outputs
from dovetail.query.sql_text import SqlText, error_at
from dovetail.query.windows import WindowResolver
from dovetail.query.zones import session_time_zone
from dovetail.schema import StreamSchema

_ENDLESS = "a continuous query never ends; apply this to its results"
_CLAUSES: dict[str, tuple[str, str]] = {
    "with_": ("WITH", FROM_SUBQUERY_HINT),
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
    "hint": ("HINT", "use session.selectivity(...) instead"),
    "into": ("INTO", "push returns the results"),
}
_EXTRA_RECURSION = 10_000
"""Added to the recursion limit: sqlglot uses 20 calls per parenthesis, so 48 of them would exceed the default limit."""
_SUPPORTED_CLAUSES = {"expressions", "from_", "joins", "where"}


def parse_query(name: str, sql: str, streams: Mapping[str, StreamSchema], time_zone: str = "UTC") -> JoinQuery:
    """Parse a query over declared streams.

    Constants without a time zone are in `time_zone`, by Spark's name.

    Raises
    ------
    QueryError
        Dovetail cannot run the query; the error underlines the text at fault.
    """
    if not isinstance(sql, str):
        raise QueryError(f"a query is text, not {type(sql).__name__}", SHAPE)
    if sql.encode(errors="replace").decode() != sql:
        raise QueryError("the query contains half of a surrogate pair, which is not a character", "write the character")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + _EXTRA_RECURSION)
    try:
        with session_time_zone(time_zone) as zone:
            try:
                query = _parse(name, sql, streams)
            except QueryError as error:
                raise _reserved_name_error(name, sql, streams) or error from None
        return replace(query, time_zone=zone.name) if zone.used else query
    except RecursionError:
        message = f"the query is nested too deeply; at most {functions.MAX_DEPTH} nested operations are allowed"
        raise QueryError(message, functions.DEPTH_HINT, sql=sql, end=len(sql)) from None
    finally:
        sys.setrecursionlimit(limit)


def _reserved_name_error(name: str, sql: str, streams: Mapping[str, StreamSchema]) -> QueryError | None:
    """Return the error for a refused query that only lacks backticks around names that are words of SQL."""
    try:
        reserved = reserved_names(statement_tokens(sql), streams)
        if not reserved:
            return None
        _parse(name, with_backticks(sql, reserved), streams)
    except QueryError:
        return None
    words = dict.fromkeys(sql[token.start : token.end + 1] for token in reserved)
    backticks = ", ".join(f"`{word}`" for word in words)
    return error_at(sql, reserved[0], f"{listed(words)} is a word of SQL", f"write the name in backticks: {backticks}")


def _parse(name: str, sql: str, streams: Mapping[str, StreamSchema]) -> JoinQuery:
    all_tokens = statement_tokens(sql)
    reject_foreign_windows(sql, all_tokens)
    tokens, extents = extract_brackets(sql, all_tokens)
    sql_text = SqlText(sql, tokens)
    select = parse_select(sql_text, streams)
    _reject_clauses(sql_text, select)
    entries = from_entries(sql_text, select)
    schemas = find_streams(sql_text, entries, streams)
    scope = Scope([AliasBinding(alias, schema) for alias, schema in schemas.items()])
    binder = ExpressionBinder(sql_text, scope)
    outputs = bind_outputs(sql_text, select, scope, binder)
    conjuncts = _Conjuncts(sql_text, binder)
    for condition in _conditions(select, entries):
        conjuncts.add(condition)
    event_time_columns = {alias: schema.event_time for alias, schema in schemas.items()}
    resolver = WindowResolver(
        sql_text, entries, extents, event_time_columns, [*conjuncts.equalities, *conjuncts.conditions]
    )
    windows = resolver.resolve(lambda entry, bracket: bind_window(sql_text, bracket, scope.binding(entry.alias)))
    _reject_unconnected(sql_text, entries, conjuncts)
    contradictions = contradiction_warnings([*conjuncts.filters, *conjuncts.conditions], conjuncts.equalities)
    warnings = [*binder.warnings, *windows.warnings, *([] if windows.never_holds else contradictions)]
    return JoinQuery(
        name=name,
        sql=sql,
        refs=tuple(StreamRef(alias, schema.name, windows.by_alias[alias]) for alias, schema in schemas.items()),
        equalities=tuple(conjuncts.equalities),
        conditions=tuple(conjuncts.conditions),
        filters=tuple(conjuncts.filters),
        outputs=outputs,
        classes=equality_classes(conjuncts.equalities),
        inferred=windows.inferred,
        warnings=tuple(f"query {name!r}: {warning}" for warning in warnings),
    )


def _reject_clauses(sql_text: SqlText, select: exp.Select) -> None:
    for argument, value in select.args.items():
        if not value or argument in _SUPPORTED_CLAUSES:
            continue
        words, hint = _CLAUSES.get(argument, (argument.rstrip("_").upper(), SHAPE))
        extent = sql_text.keyword(words.replace(" ", "_")) or (0, len(sql_text.sql))
        raise sql_text.error(f"{words} is not supported", hint, extent)


def _conditions(select: exp.Select, entries: Sequence[FromEntry]) -> Iterator[exp.Expr]:
    """Yield the conjuncts of every ON and of WHERE, in order of appearance, without enclosing parentheses."""
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
    """The conjuncts of a query, classified as equalities, conditions and filters."""

    def __init__(self, sql_text: SqlText, binder: ExpressionBinder) -> None:
        self._sql_text = sql_text
        self._binder = binder
        self.equalities: list[Equality] = []
        self.conditions: list[Condition] = []
        self.filters: list[Condition] = []

    def add(self, node: exp.Expr) -> None:
        text, extent = self._sql_text.condition_text(node)
        with self._sql_text.locating_errors(extent or (0, len(self._sql_text.sql))):
            self._classify(node, text)

    def _classify(self, node: exp.Expr, text: str) -> None:
        expression = functions.check_depth(self._binder.boolean(node, "a condition"))
        involved = aliases(expression)
        if not involved:
            if not functions.always_true(expression):
                raise QueryError("this condition refers to no stream", self._no_stream_hint(node))
        elif len(involved) == 1:
            self.filters.append(Condition(expression, text))
        elif (equality := self._equality(node, text)) is not None:
            self.equalities.append(equality)
        else:
            self.conditions.append(Condition(expression, text))

    def _no_stream_hint(self, node: exp.Expr) -> str:
        """Return the hint for a condition without columns: text in double quotes may have been meant as one."""
        for literal in node.find_all(exp.Literal):
            if is_double_quoted(literal, self._sql_text):
                name = ".".join(f"`{part}`" for part in literal.name.split("."))
                return f'"{literal.name}" is text, as in Spark; for a column write {name}'
        return "remove it, or compare columns"

    def _equality(self, node: exp.Expr, text: str) -> Equality | None:
        if not isinstance(node, exp.EQ):
            return None
        left, right = self._binder.value(node.left), self._binder.value(node.right)
        sides = (aliases(left), aliases(right))
        if sides[0] == sides[1] or [len(side) for side in sides] != [1, 1]:
            return None
        dtype = functions.comparison_type(left, right)
        return Equality(Key(sides[0][0], left), Key(sides[1][0], right), dtype, text)


def _reject_unconnected(sql_text: SqlText, entries: Sequence[FromEntry], conjuncts: _Conjuncts) -> None:
    links: list[tuple[str, ...]] = [(edge.left.alias, edge.right.alias) for edge in conjuncts.equalities]
    links.extend(condition.aliases for condition in conjuncts.conditions)
    connected = {entries[0].alias}
    for _ in entries:
        for link in links:
            if connected.intersection(link):
                connected.update(link)
    unconnected = [entry for entry in entries if entry.alias not in connected]
    if unconnected:
        subject, verb = ("alias", "is") if len(unconnected) == 1 else ("aliases", "are")
        others = [entry.alias for entry in entries if entry.alias in connected]
        raise sql_text.error(
            f"{subject} {listed(entry.alias for entry in unconnected)} {verb} not joined to {listed(others)}",
            f"add a condition between them, e.g. {entries[0].alias}.key = {unconnected[0].alias}.key",
            unconnected[0].extent,
        )
