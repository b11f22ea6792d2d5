"""From bound queries to named graphs: aliases become sources, conditions become texts over sources.

A source is a stream with the filters on it, in any order and spelling that binds to the same expression; aliases do not matter. A
sub-join of two queries is the same, and may be shared, if after this renaming its sources are equal and so are the equalities and
conditions between them: exactly the ones that both queries have among these inputs, those implied by a common key included.

- Of a stream that a query joins with itself, entries with equal filters are told apart by number, those that meet more other streams
  first. Only entries with the same number share, so a possible sharing may be missed, but never a wrong one made.
- A count window belongs to the source, since `[ROWS 5]` of a stream is not a part of its `[ROWS 10]` after other filters. Tuples that
  meet one wait until their time is settled, so a query with a count window has windows of its own: none of its sources is
  another query's, or part of a stored sub-join.
- Queries in different `scope`s (shards that are cut in another way) have nothing in common.
- Filters with different texts make different sources, even if one implies the other.
- Selectivities are the graph's. Where hints give one predicate two values under different aliases, the plan is still right, and its
  estimate takes one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.sharing.model.named import NamedGraph, NamedPredicate
from dovetail.plan.names import quoted, window_name
from dovetail.plan.shared_plan import PlanSource
from dovetail.query.expressions import SYMMETRIC, TURNED, Call, Column, Expression, Literal, aliases
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
"""Types of literals that go without saying: the other side of the operation has the same."""


def named_query(query: JoinQuery, graph: JoinGraph, scope: str = "", *, storable: bool = True) -> NamedGraph:
    """Name the inputs and predicates of a bound query; `graph` is its join graph over aliases (`query_graph.join_graph`).

    A query that is not `storable`, because its orders are given, has no stored sub-joins, and its join is nobody else's.
    """
    sources = sources_of(query, scope)
    names = {alias: source.name for alias, source in sources.items()}
    expressions = [condition.expression for condition in query.conditions]
    expressions += [edge.expression for edge in query.inexact_equalities]
    predicates = [
        NamedPredicate(frozenset(aliases(expression)), text_of(expression, names)) for expression in expressions
    ]
    if not storable:
        predicates.append(NamedPredicate(frozenset(query.aliases), f"by the orders of {quoted(query.name)}"))
    keys = []
    for each in query.classes:
        texts = {alias: sorted(text_of(key, names) for key in each.of(alias)) for alias in query.aliases}
        keys.append({alias: " = ".join(equal) for alias, equal in texts.items() if equal})
    unstorable = _led_to_by_many(query, graph) if storable else frozenset(query.aliases)
    return NamedGraph(graph, sources, tuple(predicates), tuple(keys), unstorable)


def text_of(expression: Expression, names: Mapping[str, str]) -> str:
    """Write an expression over the names of sources; conditions that differ only in the order of their sides look the same.

    >>> import pyarrow as pa
    >>> small, large = Column("a", "x", pa.int64()), Column("b", "x", pa.int64())
    >>> text_of(Call("gt", (large, small), pa.bool_()), {"a": "s", "b": "t"})
    's.x < t.x'
    """
    if isinstance(expression, Column):
        name, column = names[expression.alias], quoted(expression.name)
        return f"{f'[{name}]' if ' ' in name else name}.{column}" if name else column
    if not isinstance(expression, Call):
        plain = str(expression.type) in _PLAIN
        return repr(expression.value) if plain else f"{expression.type} {expression.value!r}"
    arguments, operation = expression.arguments, expression.operation
    inner = [text_of(each, names) for each in arguments]
    if operation in TURNED or operation in SYMMETRIC:
        # Each text is written once: sorting by a key that writes it again would double the work at every level.
        pairs = sorted(zip(inner, arguments, strict=True), key=lambda pair: (isinstance(pair[1], Literal), pair[0]))
        inner, arguments = [text for text, _ in pairs], tuple(each for _, each in pairs)
        operation = operation if arguments[0] is expression.arguments[0] else TURNED.get(operation, operation)
    if operation in _INFIX and len(inner) == 2:
        nested = [f"({text})" if _is_infix(each) else text for text, each in zip(inner, arguments, strict=True)]
        return f" {_INFIX[operation]} ".join(nested)
    return f"{operation}({', '.join([*inner, str(expression.type)] if operation == 'cast' else inner)})"


def _led_to_by_many(query: JoinQuery, graph: JoinGraph) -> frozenset[str]:
    """Give the inputs that probes reach along a condition over three or more."""
    wide = [condition.aliases for condition in query.conditions if len(condition.aliases) > 2]
    edges = [pair for condition in wide for pair in graph.selectivities if pair.issubset(condition)]
    return frozenset(alias for pair in edges for alias in pair)


def _is_infix(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.operation in _INFIX


def sources_of(query: JoinQuery, scope: str) -> dict[str, PlanSource]:
    """Say what each alias is; those that are the same stream with the same filters are numbered."""
    filters = {ref.alias: _filters(query, ref) for ref in query.refs}
    windows = {ref.alias: window_name(ref.stream, settled=query.has_count_window, scope=scope) for ref in query.refs}
    labels = {ref.alias: _label(ref, windows[ref.alias], filters[ref.alias]) for ref in query.refs}
    numbers: dict[str, int] = {}
    for label in dict.fromkeys(labels.values()):
        twins = [alias for alias in query.aliases if labels[alias] == label]
        if len(twins) > 1:
            twins.sort(key=lambda alias: _look(query, alias, labels))
        numbers |= {alias: number for number, alias in enumerate(twins, start=1)}
    sources = {}
    for ref in query.refs:
        number = numbers[ref.alias]
        name = labels[ref.alias] if number == 1 else f"{labels[ref.alias]} #{number}"
        storable = not query.has_count_window
        sources[ref.alias] = PlanSource(name, windows[ref.alias], filters[ref.alias], number, storable)
    return sources


def _filters(query: JoinQuery, ref: StreamRef) -> tuple[str, ...]:
    names = {ref.alias: ""}
    return tuple(sorted(text_of(each.expression, names) for each in query.filters if each.aliases == (ref.alias,)))


def _label(ref: StreamRef, window: str, filters: tuple[str, ...]) -> str:
    label = window
    if isinstance(ref.window, CountWindow):
        per = f" per {quoted(ref.window.partition_by)}" if ref.window.partition_by else ""
        label += f" [last {ref.window.rows}{per}]"
    return f"{label} where {' and '.join(filters)}" if filters else label


def _look(query: JoinQuery, alias: str, labels: Mapping[str, str]) -> tuple[int, list[str]]:
    """Say what tells an entry of a self-join from its twins: how many other streams it meets, most first, and its conditions."""
    names = {**labels, alias: "this"}
    expressions = [edge.expression for edge in query.equalities]
    expressions += [condition.expression for condition in query.conditions]
    own = [expression for expression in expressions if alias in aliases(expression)]
    met = {query.ref(other).stream for expression in own for other in aliases(expression)}
    return -len(met), sorted(text_of(expression, names) for expression in own)
