"""What a step asks of each of its inputs and sources: columns to gather, codes to compare, indexes to probe."""

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


def stored_name(expression: Expression) -> str:
    """The name under which a window keeps an expression's values: its text without the alias."""
    return str(rename_alias(expression, lambda _: ""))


def key_id(stage: ProbeStage) -> KeyId:
    """The name of the key that a stage looks for."""
    return tuple(stored_name(part.target) for part in stage.key)


def must_verify(stage: ProbeStage) -> tuple[KeyPart, ...]:
    """The parts of a stage's key whose equality the matching codes do not prove."""
    if len(stage.key) > 1:
        return stage.key
    return tuple(part for part in stage.key if not is_exact(part.target.type))


@dataclass(frozen=True)
class Kept:
    """What a window keeps of each row, beside its time and flags."""

    columns: Mapping[str, Expression]
    """Values that are gathered, by name: over no alias, or over the sources of a stored match."""
    parts: Mapping[str, Expression]
    """Key expressions whose codes are kept, by name."""
    codes: tuple[KeyId, ...]
    """Keys of one part, then those that are mixed from several."""
    indexes: tuple[KeyId, ...]


@dataclass(slots=True)
class Needs:
    """What is needed of one window, collected; the first expression of a name stays."""

    columns: dict[str, Expression] = field(default_factory=dict)
    parts: dict[str, Expression] = field(default_factory=dict)
    codes: set[KeyId] = field(default_factory=set)
    indexes: set[KeyId] = field(default_factory=set)

    @classmethod
    def of(cls, kept: Kept) -> Needs:
        """What is kept already."""
        return cls(dict(kept.columns), dict(kept.parts), set(kept.codes), set(kept.indexes))

    def add_column(self, expression: Expression) -> None:
        self.columns.setdefault(stored_name(expression), rename_alias(expression, lambda _: ""))

    def add_part(self, expression: Expression) -> None:
        """Need the code of a key, and its value where the code does not prove equality."""
        name = stored_name(expression)
        self.parts.setdefault(name, rename_alias(expression, lambda _: ""))
        self.codes.add((name,))
        if not is_exact(expression.type):
            self.add_column(expression)

    def update(self, other: Needs) -> None:
        self.columns = other.columns | self.columns
        self.parts = other.parts | self.parts
        self.codes |= other.codes
        self.indexes |= other.indexes

    def kept(self) -> Kept:
        """The same in one order, whatever the order in which it was collected."""
        codes = tuple(sorted(self.codes, key=lambda key: (len(key), key)))
        columns, parts = (dict(sorted(named.items())) for named in (self.columns, self.parts))
        return Kept(columns, parts, codes, tuple(sorted(self.indexes)))


def input_needs(plan: QueryPlan) -> dict[str, Needs]:
    """What the probes of a plan need of every input."""
    needs = {alias: Needs() for alias in plan.query.aliases}
    for path in plan.paths:
        for stage in path.stages:
            for condition in stage.conditions:
                for column in columns(condition.expression):
                    needs[column.alias].add_column(column)
            if stage.key:
                _need_key(needs, stage)
    return needs


def _need_key(needs: Mapping[str, Needs], stage: ProbeStage) -> None:
    target = needs[stage.alias]
    for part in stage.key:
        target.add_part(part.target)
        needs[part.source.alias].add_part(part.source.expression)
    target.codes.add(key_id(stage))
    if stage.access == "hash":
        target.indexes.add(key_id(stage))


def of_sources(needs: Needs, columns_of: Mapping[str, Column]) -> Needs:
    """The needs of a stored input, its columns written as those of the sources that they come from."""

    def over_sources(named: Mapping[str, Expression]) -> dict[str, Expression]:
        return {name: map_columns(each, lambda column: columns_of[column.name]) for name, each in named.items()}

    return Needs(over_sources(needs.columns), over_sources(needs.parts), needs.codes, needs.indexes)


def source_needs(
    sources: Iterable[str],
    inputs: Mapping[str, Needs],
    stored: Iterable[Needs],
    outputs: Iterable[Output],
    keys: Iterable[Key],
) -> dict[str, Needs]:
    """The needs of every source of a step.

    `inputs`: what is needed of inputs, those that are sources among them. `stored`: what is needed of stored inputs, over their
    sources. `outputs`: what queries select, over sources. `keys`: whose codes say which shard a result belongs to.
    """
    needs = {source: Needs() for source in sources}
    for source, own in needs.items():
        if source in inputs:
            own.update(inputs[source])
    for of_state in stored:
        for expression in of_state.columns.values():
            needs[aliases(expression)[0]].add_column(expression)
        for expression in of_state.parts.values():
            needs[aliases(expression)[0]].add_part(expression)
    for output in outputs:
        for column in columns(output.expression):
            needs[column.alias].add_column(column)
    for key in keys:
        needs[key.alias].add_part(key.expression)
    return needs
