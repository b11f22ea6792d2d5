"""Translation of bound queries to named graphs: aliases become sources, conditions texts over them.

A source is a stream with its filters, in any order and spelling that binds to the same expression; aliases do not matter. Two queries
can share a sub-join if after this renaming its sources are equal, and so are the equalities and conditions between them, those implied
by a common key included.

- In a self-join, inputs of one stream with equal filters are numbered, those joined with more other streams first. Only inputs with
  the same number are shared, so a possible sharing may be missed, but a wrong one never happens.
- A count window belongs to the source, because `[ROWS 5]` of a stream is not a part of its `[ROWS 10]` after other filters. Its tuples
  wait for the watermark, so a query with a count window has its own windows: none of its sources belongs to another query, or to a
  materialized join.
- Queries in different `scope`s (shards that are partitioned differently) have nothing in common.
- Filters with different texts make different sources, even if one implies the other.
- Selectivities are the graph's. If hints give one predicate two values under different aliases, the plan is still correct, and its
  estimate uses one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.sharing.model.named import NamedGraph, NamedPredicate
from dovetail.plan.names import quote_name, window_name
from dovetail.plan.shared_plan import PlanSource
from dovetail.query.expressions import MIRRORED, SYMMETRIC, Call, Column, Expression, Literal, aliases
from dovetail.query.model import CountWindow, JoinQuery, StreamRef

_INFIX = {
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "eq": "=",
    "ne": "<>",
    "null_safe_eq": "<=>",
    "and": "AND",
    "or": "OR",
}
_INFIX |= {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "modulo": "%"}
_PLAIN = {"int32", "int64", "double", "string", "bool"}
"""Types of literals that are not written: the other side of the operation has the same type."""


def name_query(query: JoinQuery, graph: JoinGraph, scope: str = "", *, materializable: bool = True) -> NamedGraph:
    """Name the inputs and predicates of a bound query; `graph` is its join graph over aliases.

    A query that is not `materializable`, because its orders are forced, shares no join and reads no materialized ones.
    """
    sources = sources_of(query, scope)
    names = {alias: source.name for alias, source in sources.items()}
    expressions = [condition.expression for condition in query.conditions]
    expressions += [edge.expression for edge in query.inexact_equalities]
    predicates = [
        NamedPredicate(frozenset(aliases(expression)), text_of(expression, names)) for expression in expressions
    ]
    if not materializable:
        predicates.append(NamedPredicate(frozenset(query.aliases), f"by the orders of {quote_name(query.name)}"))
    keys = []
    for group in query.classes:
        texts = {alias: sorted(text_of(key, names) for key in group.of(alias)) for alias in query.aliases}
        keys.append({alias: " = ".join(equal) for alias, equal in texts.items() if equal})
    unmaterializable = _reached_by_wide_conditions(query, graph) if materializable else frozenset(query.aliases)
    return NamedGraph(graph, sources, tuple(predicates), tuple(keys), unmaterializable)


def text_of(expression: Expression, names: Mapping[str, str]) -> str:
    """Return an expression as text over source names.

    Conditions that differ only in the order of their sides have the same text.

    >>> import pyarrow as pa
    >>> small, large = Column("a", "x", pa.int64()), Column("b", "x", pa.int64())
    >>> text_of(Call("gt", (large, small), pa.bool_()), {"a": "s", "b": "t"})
    's.x < t.x'
    """
    if isinstance(expression, Column):
        name, column = names[expression.alias], quote_name(expression.name)
        return f"{f'[{name}]' if ' ' in name else name}.{column}" if name else column
    if not isinstance(expression, Call):
        plain = str(expression.type) in _PLAIN
        return repr(expression.value) if plain else f"{expression.type} {expression.value!r}"
    arguments, operation = expression.arguments, expression.operation
    inner = [text_of(argument, names) for argument in arguments]
    if operation in MIRRORED or operation in SYMMETRIC:
        # Sort the texts themselves: a sort key that builds them again would double the work at every level.
        pairs = sorted(zip(inner, arguments, strict=True), key=lambda pair: (isinstance(pair[1], Literal), pair[0]))
        inner, arguments = [text for text, _ in pairs], tuple(argument for _, argument in pairs)
        operation = operation if arguments[0] is expression.arguments[0] else MIRRORED.get(operation, operation)
    if operation in _INFIX and len(inner) == 2:
        nested = [f"({text})" if _is_infix(item) else text for text, item in zip(inner, arguments, strict=True)]
        return f" {_INFIX[operation]} ".join(nested)
    return f"{operation}({', '.join([*inner, str(expression.type)] if operation == 'cast' else inner)})"


def _reached_by_wide_conditions(query: JoinQuery, graph: JoinGraph) -> frozenset[str]:
    """Return the inputs that a probe reaches along a condition over three or more inputs."""
    wide = [condition.aliases for condition in query.conditions if len(condition.aliases) > 2]
    edges = [pair for condition in wide for pair in graph.selectivities if pair.issubset(condition)]
    return frozenset(alias for pair in edges for alias in pair)


def _is_infix(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.operation in _INFIX


def sources_of(query: JoinQuery, scope: str) -> dict[str, PlanSource]:
    """Return the source of each alias; aliases with the same stream and filters are numbered."""
    filters = {ref.alias: _filters(query, ref) for ref in query.refs}
    windows = {ref.alias: window_name(ref.stream, settled=query.has_count_window, scope=scope) for ref in query.refs}
    labels = {ref.alias: _label(ref, windows[ref.alias], filters[ref.alias]) for ref in query.refs}
    occurrences: dict[str, int] = {}
    for label in dict.fromkeys(labels.values()):
        twins = [alias for alias in query.aliases if labels[alias] == label]
        if len(twins) > 1:
            twins.sort(key=lambda alias: _sort_key(query, alias, labels))
        occurrences |= {alias: occurrence for occurrence, alias in enumerate(twins, start=1)}
    sources = {}
    for ref in query.refs:
        occurrence = occurrences[ref.alias]
        name = labels[ref.alias] if occurrence == 1 else f"{labels[ref.alias]} #{occurrence}"
        window, source_filters = windows[ref.alias], filters[ref.alias]
        sources[ref.alias] = PlanSource(name, window, source_filters, occurrence, not query.has_count_window)
    return sources


def _filters(query: JoinQuery, ref: StreamRef) -> tuple[str, ...]:
    names = {ref.alias: ""}
    filters = [condition.expression for condition in query.filters if condition.aliases == (ref.alias,)]
    return tuple(sorted(text_of(expression, names) for expression in filters))


def _label(ref: StreamRef, window: str, filters: tuple[str, ...]) -> str:
    label = window
    if isinstance(ref.window, CountWindow):
        per = f" per {quote_name(ref.window.partition_by)}" if ref.window.partition_by else ""
        label += f" [last {ref.window.rows}{per}]"
    return f"{label} where {' and '.join(filters)}" if filters else label


def _sort_key(query: JoinQuery, alias: str, labels: Mapping[str, str]) -> tuple[int, list[str]]:
    """Return the sort key of an input of a self-join: its number of joined streams; its conditions."""
    names = {**labels, alias: "this"}
    expressions = [edge.expression for edge in query.equalities]
    expressions += [condition.expression for condition in query.conditions]
    own_expressions = [expression for expression in expressions if alias in aliases(expression)]
    streams = {query.ref(other).stream for expression in own_expressions for other in aliases(expression)}
    return -len(streams), sorted(text_of(expression, names) for expression in own_expressions)
