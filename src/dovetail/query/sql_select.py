"""The select list: which columns a result has, and how they are called.

A star gives `alias_column`. A plain column keeps its name unless two would be called the same; then both become
`alias_column`. A name given with AS is never changed. Two columns of one name are refused rather than told apart by
position.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from dovetail.errors import QueryError
from dovetail.query.binder import Scope
from dovetail.query.expressions import Column, Expression
from dovetail.query.functions import refuse_deep
from dovetail.query.model import Output
from dovetail.query.sql_expressions import ExpressionBinder
from dovetail.query.sql_text import Extent, SourceText


@dataclass(frozen=True, slots=True)
class _Item:
    name: str
    expression: Expression
    extent: Extent
    given: bool = False
    """Whether the name is fixed by AS."""


def bind_outputs(source: SourceText, select: exp.Select, scope: Scope, binder: ExpressionBinder) -> tuple[Output, ...]:
    """The columns of the result in the order written."""
    places = source.select_items()
    items: list[_Item] = []
    for position, node in enumerate(select.expressions):
        place = places[position] if len(places) == len(select.expressions) else (0, len(source.sql))
        with source.placing(place):
            items.extend(_bound(source, node, scope, binder, place))
    if not items:
        raise source.refusal("the select list is empty", "write SELECT * or name columns", (0, len("SELECT")))
    return tuple(Output(item.name, item.expression) for item in _distinct(source, items))


def _bound(source: SourceText, node: exp.Expr, scope: Scope, binder: ExpressionBinder, place: Extent) -> list[_Item]:
    star = node.this if isinstance(node, exp.Column) else node
    if isinstance(star, exp.Star):
        if any(star.args.values()):
            raise source.refusal("'*' takes no EXCEPT or REPLACE", "name the columns", place)
        sources = [scope.source(node.table)] if isinstance(node, exp.Column) else scope.sources
        columns = [column for item in sources for column in scope.columns_of(item)]
        return [_Item(_qualified(column), column, place) for column in columns]
    given = isinstance(node, exp.Alias)
    expression = refuse_deep(binder.bind(node.this if given else node))
    if pa.types.is_null(expression.type) and not isinstance(expression, Column):
        raise QueryError("this column has no type", "write CAST(NULL AS type)")
    if given:
        return [_Item(node.alias, expression, place, given=True)]
    text = " ".join(source.sql[place[0] : place[1]].split())
    return [_Item(expression.name if isinstance(expression, Column) else text, expression, place)]


def _qualified(column: Column) -> str:
    return f"{column.alias}_{column.name}"


def _distinct(source: SourceText, items: list[_Item]) -> list[_Item]:
    """Rename plain columns that clash; refuse what still does."""
    uses = Counter(item.name for item in items)
    fixed = {item.name for item in items if item.given}
    renamed = [
        replace(item, name=_qualified(item.expression))
        if isinstance(item.expression, Column) and uses[item.name] > 1 and item.name not in fixed
        else item
        for item in items
    ]
    seen: set[str] = set()
    for item in renamed:
        if item.name in seen:
            raise source.refusal(f"two columns are called {item.name!r}", "give one another name with AS", item.extent)
        seen.add(item.name)
    return renamed
