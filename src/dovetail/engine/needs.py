"""What a plan asks of each alias's window: columns to gather, codes to compare, indexes to probe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dovetail.engine.keys import is_exact
from dovetail.engine.window_store import KeyId
from dovetail.plan.nodes import KeyPart, ProbeStage, QueryPlan
from dovetail.plan.steps import JoinStep
from dovetail.query.expressions import Expression, aliases, columns, map_columns, rename_alias
from dovetail.query.model import Key


def stored_name(expression: Expression) -> str:
    """The name under which a window keeps an expression's values: its text without the alias."""
    return str(rename_alias(expression, lambda _: ""))


@dataclass(slots=True)
class AliasNeeds:
    """What one alias of one query needs."""

    columns: dict[str, Expression] = field(default_factory=dict)
    parts: dict[str, Expression] = field(default_factory=dict)
    codes: set[KeyId] = field(default_factory=set)
    indexes: set[KeyId] = field(default_factory=set)

    def add_column(self, expression: Expression) -> None:
        self.columns[stored_name(expression)] = rename_alias(expression, lambda _: "")

    def add_part(self, expression: Expression) -> None:
        self.parts[stored_name(expression)] = rename_alias(expression, lambda _: "")
        self.codes.add((stored_name(expression),))
        if not is_exact(expression.type):
            self.add_column(expression)

    def update(self, other: AliasNeeds) -> None:
        self.columns.update(other.columns)
        self.parts.update(other.parts)
        self.codes |= other.codes
        self.indexes |= other.indexes


def key_id(stage: ProbeStage) -> KeyId:
    return tuple(stored_name(part.target) for part in stage.key)


def plan_needs(plan: QueryPlan) -> dict[str, AliasNeeds]:
    """What the probes of a plan need of every alias."""
    needs = {alias: AliasNeeds() for alias in plan.query.aliases}

    def gather(expression: Expression) -> None:
        for column in columns(expression):
            needs[column.alias].add_column(column)

    for path in plan.paths:
        for stage in path.stages:
            for condition in stage.conditions:
                gather(condition.expression)
            if stage.key:
                _need_key(needs, stage)
    return needs


def source_needs(step: JoinStep, inputs: dict[str, AliasNeeds], cells: Iterable[Key]) -> dict[str, AliasNeeds]:
    """The needs of every source of a step: its own as an input, those of a stored input that it is part of, and the queries' outputs.

    `cells` are keys, of sources, whose codes say which shard a result belongs to.
    """
    inside = step.stored_inputs
    needs = {ref.alias: AliasNeeds() if ref.alias not in inputs else inputs[ref.alias] for ref in step.flat.refs}
    for alias in inside:
        for expression in inputs[alias].columns.values():
            of_source = map_columns(expression, lambda column: step.columns[column.name])
            needs[aliases(of_source)[0]].add_column(of_source)
        for expression in inputs[alias].parts.values():
            of_source = map_columns(expression, lambda column: step.columns[column.name])
            needs[aliases(of_source)[0]].add_part(of_source)
    for taker in step.takers:
        for output in taker.query.outputs:
            for column in columns(output.expression):
                needs[taker.sources[column.alias]].add_column(column)
    for key in cells:
        needs[key.alias].add_part(key.expression)
    return needs


def _need_key(needs: dict[str, AliasNeeds], stage: ProbeStage) -> None:
    target = needs[stage.alias]
    for part in stage.key:
        target.add_part(part.target)
        needs[part.source.alias].add_part(part.source.expression)
    target.codes.add(key_id(stage))
    if stage.access == "hash":
        target.indexes.add(key_id(stage))


def must_verify(stage: ProbeStage) -> tuple[KeyPart, ...]:
    """The parts of a stage's key whose equality the matching codes do not prove."""
    if len(stage.key) > 1:
        return stage.key
    return tuple(part for part in stage.key if not is_exact(part.target.type))
