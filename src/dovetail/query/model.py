"""A join query as frozen data: the input of the planner, the engine and the oracle.

Equalities between two aliases appear twice. `equalities` are the conjuncts as written, each compared in its own common type: they
define the results. `classes` are their transitive closure, each class with one type: they define the hash keys. Equality in an
edge's type implies equality in its class's type (casts are functions of the value), never the other way round, so an edge whose type
differs from its class's is checked again before a result is delivered (`inexact_equalities`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import pyarrow as pa

from dovetail._display import html_text
from dovetail.query.expressions import Call, Expression, aliases, cast
from dovetail.schema import common_type


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """`[RANGE n UNIT]`: a tuple can match until `micros` after its event time, inclusive."""

    micros: int


@dataclass(frozen=True, slots=True)
class CountWindow:
    """`[ROWS n]` or `[PARTITION BY c ROWS n]`.

    A tuple can match while it is among the last `rows` (of its partition).
    """

    rows: int
    partition_by: str | None = None


@dataclass(frozen=True, slots=True)
class MaterializedWindow:
    """A materialized join as an input.

    A match is in the window while each of its tuples is in its own window.
    """

    spans: tuple[tuple[str, int], ...]
    """For each source of the materialized join, its window in microseconds."""
    seconds: float
    """Expected seconds that a match stays in the window, for the cost model."""


Window: TypeAlias = TimeWindow | CountWindow | MaterializedWindow


@dataclass(frozen=True, slots=True)
class StreamRef:
    """One entry of the FROM list with its window."""

    alias: str
    stream: str
    window: Window


@dataclass(frozen=True, slots=True)
class Key:
    """An expression over one alias that an equality compares with another alias."""

    alias: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Equality:
    """`left = right` between two aliases, compared in `type`; the keys are as written, not yet cast."""

    left: Key
    right: Key
    type: pa.DataType
    text: str

    @property
    def expression(self) -> Expression:
        sides = (cast(self.left.expression, self.type), cast(self.right.expression, self.type))
        return Call("eq", sides, pa.bool_())


@dataclass(frozen=True, slots=True)
class Condition:
    """A boolean expression and its SQL text: a filter (one alias) or a theta condition (two or more)."""

    expression: Expression
    text: str

    @property
    def aliases(self) -> tuple[str, ...]:
        return aliases(self.expression)


@dataclass(frozen=True, slots=True)
class EqualityClass:
    """Keys that are all equal in every result, compared in one type."""

    keys: tuple[Key, ...]
    type: pa.DataType

    def of(self, alias: str) -> tuple[Expression, ...]:
        """Return the keys of one alias, cast to the class's type."""
        return tuple(cast(key.expression, self.type) for key in self.keys if key.alias == alias)


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the result."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """A continuous join of two or more windows."""

    name: str
    sql: str
    refs: tuple[StreamRef, ...]
    equalities: tuple[Equality, ...]
    conditions: tuple[Condition, ...]
    """Conjuncts over two or more aliases that are not in `equalities`."""
    filters: tuple[Condition, ...]
    """Conjuncts over one alias."""
    outputs: tuple[Output, ...]
    classes: tuple[EqualityClass, ...]
    inferred: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Aliases whose window is inferred from conditions, with the texts of these conditions."""
    warnings: tuple[str, ...] = ()
    """Warnings to show when the query is registered."""
    time_zone: str = "UTC"
    """Time zone of its constants; UTC if none depends on it."""

    def __repr__(self) -> str:
        names = ", ".join(output.name for output in self.outputs)
        return f"<JoinQuery {self.name!r}: {names} from {', '.join(self.aliases)}>"

    def _repr_html_(self) -> str:
        return html_text(f"{self!r}\n{self.sql}")

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(ref.alias for ref in self.refs)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return pa.schema([pa.field(output.name, output.expression.type) for output in self.outputs])

    @property
    def has_count_window(self) -> bool:
        return any(isinstance(ref.window, CountWindow) for ref in self.refs)

    def ref(self, alias: str) -> StreamRef:
        return next(ref for ref in self.refs if ref.alias == alias)

    @property
    def inexact_equalities(self) -> tuple[Equality, ...]:
        """Equalities in another type than their class, which equal codes do not imply."""
        types = {key: group.type for group in self.classes for key in group.keys}
        return tuple(edge for edge in self.equalities if edge.type != types[edge.left])


def equality_classes(equalities: Sequence[Equality]) -> tuple[EqualityClass, ...]:
    """Return the transitive closure of equalities; classes and keys in order of first appearance."""
    group_of: dict[Key, list[Key]] = {}
    for edge in equalities:
        left = group_of.setdefault(edge.left, [edge.left])
        right = group_of.setdefault(edge.right, [edge.right])
        if left is not right:
            left.extend(right)
            for key in right:
                group_of[key] = left
    groups = {id(group): group for group in group_of.values()}
    types: dict[int, list[pa.DataType]] = {group_id: [] for group_id in groups}
    for edge in equalities:
        types[id(group_of[edge.left])].append(edge.type)
    return tuple(EqualityClass(tuple(group), _widest(types[group_id])) for group_id, group in groups.items())


def _widest(types: Iterable[pa.DataType]) -> pa.DataType:
    return reduce(lambda left, right: common_type(left, right) or left, types)
