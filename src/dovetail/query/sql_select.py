"""The select list: the columns of a result and their names.

A star gives `alias_column`. A plain column keeps its name unless two have the same; then both become `alias_column`. A
name given with AS never changes. Two result columns of the same name are rejected.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from dovetail.errors import QueryError
from dovetail.query.binder import Scope
from dovetail.query.expressions import Column, Expression
from dovetail.query.functions import check_depth
from dovetail.query.model import Output
from dovetail.query.sql_expressions import ExpressionBinder
from dovetail.query.sql_text import Extent, SqlText


@dataclass(frozen=True, slots=True)
class _Item:
    name: str
    expression: Expression
    extent: Extent
    has_as: bool = False


def bind_outputs(sql_text: SqlText, select: exp.Select, scope: Scope, binder: ExpressionBinder) -> tuple[Output, ...]:
    """Return the columns of the result in the order written."""
    extents = sql_text.select_items()
    items: list[_Item] = []
    for position, node in enumerate(select.expressions):
        extent = extents[position] if len(extents) == len(select.expressions) else (0, len(sql_text.sql))
        with sql_text.locating_errors(extent):
            items.extend(_bind_item(sql_text, node, scope, binder, extent))
    if not items:
        raise sql_text.error("the select list is empty", "write SELECT * or name columns", (0, len("SELECT")))
    return tuple(Output(item.name, item.expression) for item in _make_distinct(sql_text, items))


def _bind_item(
    sql_text: SqlText, node: exp.Expr, scope: Scope, binder: ExpressionBinder, extent: Extent
) -> list[_Item]:
    star = node.this if isinstance(node, exp.Column) else node
    if isinstance(star, exp.Star):
        if any(star.args.values()):
            raise sql_text.error("EXCEPT and REPLACE after '*' are not supported", "name the columns", extent)
        bindings = [scope.binding(node.table)] if isinstance(node, exp.Column) else scope.bindings
        columns = [column for binding in bindings for column in scope.columns_of(binding)]
        return [_Item(_qualified_name(column), column, extent) for column in columns]
    has_as = isinstance(node, exp.Alias)
    expression = check_depth(binder.bind(node.this if has_as else node))
    if pa.types.is_null(expression.type) and not isinstance(expression, Column):
        raise QueryError("this column has no type", "write CAST(NULL AS type)")
    if has_as:
        return [_Item(node.alias, expression, extent, has_as=True)]
    text = " ".join(sql_text.sql[extent[0] : extent[1]].split())
    return [_Item(expression.name if isinstance(expression, Column) else text, expression, extent)]


def _qualified_name(column: Column) -> str:
    return f"{column.alias}_{column.name}"


def _make_distinct(sql_text: SqlText, items: list[_Item]) -> list[_Item]:
    """Rename plain columns that clash; reject names that still do."""
    uses = Counter(item.name for item in items)
    fixed = {item.name for item in items if item.has_as}
    renamed = [
        replace(item, name=_qualified_name(item.expression))
        if isinstance(item.expression, Column) and uses[item.name] > 1 and item.name not in fixed
        else item
        for item in items
    ]
    seen: set[str] = set()
    for item in renamed:
        if item.name in seen:
            raise sql_text.error(f"two columns are named {item.name!r}", "rename one with AS", item.extent)
        seen.add(item.name)
    return renamed
