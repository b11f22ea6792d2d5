"""The needs of a join step from its windows: columns to gather, codes to compare, indexes to probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dovetail.plan.query_plan import KeyPart, ProbeStage, QueryPlan
from dovetail.query.expressions import Column, Expression, aliases, columns, map_columns, rename_alias
from dovetail.query.model import Key, Output
from dovetail.schema import is_exact

KeyId: TypeAlias = tuple[str, ...]
"""The parts of a key, each named by its expression."""


def column_name(expression: Expression) -> str:
    """Return the name of an expression's column in a window: its text without the alias."""
    return str(rename_alias(expression, lambda _: ""))


def key_id(stage: ProbeStage) -> KeyId:
    """Return the id of the key that a stage probes with."""
    return tuple(column_name(part.target) for part in stage.key)


def parts_to_verify(stage: ProbeStage) -> tuple[KeyPart, ...]:
    """Return the key parts whose values must be compared because equal codes do not imply equal values."""
    if len(stage.key) > 1:
        return stage.key
    return tuple(part for part in stage.key if not is_exact(part.target.type))


@dataclass(frozen=True)
class WindowContents:
    """The data that a window holds for each row, besides its event time and flags."""

    columns: Mapping[str, Expression]
    """Values to gather, by name: over no alias, or over the sources of a materialized join."""
    parts: Mapping[str, Expression]
    """Key expressions with stored codes, by name."""
    codes: tuple[KeyId, ...]
    """Keys of one part, then those mixed from several."""
    indexes: tuple[KeyId, ...]


@dataclass(slots=True)
class Needs:
    """A collector of what is needed from one window; the first expression of a name is kept."""

    columns: dict[str, Expression] = field(default_factory=dict)
    parts: dict[str, Expression] = field(default_factory=dict)
    codes: set[KeyId] = field(default_factory=set)
    indexes: set[KeyId] = field(default_factory=set)

    @classmethod
    def of(cls, contents: WindowContents) -> Needs:
        """Return the needs that a window's contents meet."""
        return cls(dict(contents.columns), dict(contents.parts), set(contents.codes), set(contents.indexes))

    def add_column(self, expression: Expression) -> None:
        self.columns.setdefault(column_name(expression), rename_alias(expression, lambda _: ""))

    def add_part(self, expression: Expression) -> None:
        """Add the code of a key part, and its value where equal codes do not prove equality."""
        name = column_name(expression)
        self.parts.setdefault(name, rename_alias(expression, lambda _: ""))
        self.codes.add((name,))
        if not is_exact(expression.type):
            self.add_column(expression)

    def update(self, other: Needs) -> None:
        self.columns = other.columns | self.columns
        self.parts = other.parts | self.parts
        self.codes |= other.codes
        self.indexes |= other.indexes

    def contents(self) -> WindowContents:
        """Return the window contents that meet the needs, in an order independent of collection."""
        codes = tuple(sorted(self.codes, key=lambda key: (len(key), key)))
        columns, parts = (dict(sorted(named.items())) for named in (self.columns, self.parts))
        return WindowContents(columns, parts, codes, tuple(sorted(self.indexes)))


def input_needs(plan: QueryPlan) -> dict[str, Needs]:
    """Return the needs of the probes of a plan, by input."""
    needs = {alias: Needs() for alias in plan.query.aliases}
    for path in plan.paths:
        for stage in path.stages:
            for condition in stage.conditions:
                for column in columns(condition.expression):
                    needs[column.alias].add_column(column)
            if stage.key:
                _add_key(needs, stage)
    return needs


def _add_key(needs: Mapping[str, Needs], stage: ProbeStage) -> None:
    target = needs[stage.alias]
    for part in stage.key:
        target.add_part(part.target)
        needs[part.source.alias].add_part(part.source.expression)
    target.codes.add(key_id(stage))
    if stage.access == "hash":
        target.indexes.add(key_id(stage))


def needs_over_sources(needs: Needs, source_columns: Mapping[str, Column]) -> Needs:
    """Rewrite the needs of a materialized input over the columns of its sources."""

    def rewrite(named: Mapping[str, Expression]) -> dict[str, Expression]:
        return {name: map_columns(item, lambda column: source_columns[column.name]) for name, item in named.items()}

    return Needs(rewrite(needs.columns), rewrite(needs.parts), needs.codes, needs.indexes)


def source_needs(
    sources: Iterable[str],
    inputs: Mapping[str, Needs],
    materialized: Iterable[Needs],
    outputs: Iterable[Output],
    keys: Iterable[Key],
) -> dict[str, Needs]:
    """Return the needs of every source of a step.

    `inputs`: needs by input, some of which are sources. `materialized`: needs of materialized inputs, over their sources. `outputs`:
    selected columns, over sources. `keys`: keys whose codes determine the shard of a result.
    """
    needs = {source: Needs() for source in sources}
    for source, source_need in needs.items():
        if source in inputs:
            source_need.update(inputs[source])
    for input_need in materialized:
        for expression in input_need.columns.values():
            needs[aliases(expression)[0]].add_column(expression)
        for expression in input_need.parts.values():
            needs[aliases(expression)[0]].add_part(expression)
    for output in outputs:
        for column in columns(output.expression):
            needs[column.alias].add_column(column)
    for key in keys:
        needs[key.alias].add_part(key.expression)
    return needs
