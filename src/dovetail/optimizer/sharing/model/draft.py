"""Drafts of plans: the inputs of each operator, from which the rest of a plan follows.

`Draft.joins` maps each sub-join to the inputs of its operator; a sub-join that is an input of another is materialized. A draft is
immutable: `Draft.with_query` returns a new one. A `Subplan` is what one query would add to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dovetail.optimizer.sharing.model.costs import CostModel, Parts
from dovetail.optimizer.sharing.model.query_set import QuerySet, SubJoin
from dovetail.plan.shared_plan import Load, SharedPlan


@dataclass(frozen=True)
class Subplan:
    """One query's operators: its top, and the sub-joins below it that its draft does not contain yet."""

    top: SubJoin
    joins: Mapping[SubJoin, Parts]

    @property
    def parts(self) -> Parts:
        """The inputs of the top operator: the vertices of the query's coalesced graph."""
        return self.joins[self.top]

    @property
    def materialized(self) -> list[SubJoin]:
        """The materialized joins that it defines."""
        return [sub_join for sub_join in self.joins if sub_join != self.top]


@dataclass(frozen=True)
class Draft:
    """The operators of the queries planned so far."""

    joins: Mapping[SubJoin, Parts] = field(default_factory=dict)
    answers: Mapping[int, SubJoin] = field(default_factory=dict)
    """By query."""
    scope: str = ""
    """Prefix of the names of its nodes, if each query has its own draft."""

    @cached_property
    def materialized(self) -> frozenset[SubJoin]:
        """Sub-joins that some operator reads."""
        return frozenset(part for parts in self.joins.values() for part in parts if not part.is_base)

    def with_query(self, query: int, subplan: Subplan) -> Draft:
        """Return the draft with the operators of one more `query`; existing ones are reused."""
        joins = {**subplan.joins, **self.joins}
        answers = {**self.answers, query: subplan.top}
        return Draft(reachable_joins(joins, answers.values()), answers, self.scope)

    def load(self, model: CostModel) -> Load:
        """Return the load of windows, operators and materialized joins, each counted once."""
        return load_of(model, [self])

    def window_join_cpu(self, model: CostModel) -> float:
        """Return the CPU of operators over windows only."""
        flat = {sub_join: parts for sub_join, parts in self.joins.items() if all(part.is_base for part in parts)}
        return sum(model.cpu(sub_join, parts) for sub_join, parts in flat.items())

    def operators(self, model: CostModel) -> Load:
        """Return the load of operators and materialized joins, without windows."""
        joins = Load(sum(model.cpu(sub_join, parts) for sub_join, parts in self.joins.items()))
        return Load.total((joins, *map(model.materialization, self.materialized)))


def load_of(model: CostModel, drafts: Sequence[Draft]) -> Load:
    """Return the load of drafts in one engine: they share windows and nothing else."""
    windows = model.windows(sub_join for draft in drafts for sub_join in draft.joins)
    return Load.total((windows, *(draft.operators(model) for draft in drafts)))


def reachable_joins(joins: Mapping[SubJoin, Parts], tops: Iterable[SubJoin]) -> dict[SubJoin, Parts]:
    """Return the operators that `tops` need, in order of definition.

    Sub-joins outside `joins` belong to another draft.
    """
    needed, pending = set[SubJoin](), list(tops)
    while pending:
        sub_join = pending.pop()
        if sub_join in joins and sub_join not in needed:
            needed.add(sub_join)
            pending += [part for part in joins[sub_join] if not part.is_base]
    return {sub_join: parts for sub_join, parts in joins.items() if sub_join in needed}


def draft_of(model: CostModel, plan: SharedPlan) -> Draft:
    """Return the draft of an existing plan of queries in the model's query set."""
    query_set, joins, results = model.query_set, dict[SubJoin, Parts](), dict[str, SubJoin]()
    query_indexes = {name: index for index, name in enumerate(query_set.names)}
    for join in plan.joins:
        query = query_indexes[join.queries[0]]
        inputs = query_set.queries[query].indexes
        sub_join = query_set.sub_join(query, sum(1 << inputs[source] for source in join.sources), join.window_seconds)
        joins[sub_join] = model.parts(sub_join, [results[item.node] for item in join.inputs if item.node in results])
        results[join.output] = sub_join
    return Draft(joins, {query_indexes[answer.query]: results[answer.result] for answer in plan.answers})


def mjoin(model: CostModel, query: int) -> Subplan:
    """Join all inputs of `query` at once over base windows: least memory, for nothing is materialized."""
    top = model.query_set.sub_join(query, model.query_set.queries[query].all)
    return Subplan(top, {top: model.parts(top)})


def coalesce(model: CostModel, subplan: Subplan, merged: Collection[SubJoin], join: SubJoin, draft: Draft) -> Subplan:
    """Replace the `merged` inputs of the top operator by their materialized `join`.

    Define the join unless the draft does.
    """
    top = subplan.top
    others = [part for part in subplan.parts if part not in merged and not part.is_base]
    joins = dict(subplan.joins)
    joins[top] = model.parts(top, [*others, join])
    if join not in draft.joins:
        joins[join] = model.parts(join, [part for part in merged if not part.is_base])
    return Subplan(top, reachable_joins(joins, [top]))


def remove_join(model: CostModel, subplan: Subplan, join: SubJoin) -> Subplan:
    """Remove a materialized join: the operators that read it read its inputs instead."""
    joins = dict(subplan.joins)
    inputs = [part for part in joins.pop(join) if not part.is_base]
    for sub_join, parts in list(joins.items()):
        if join in parts:
            others = [part for part in parts if part != join and not part.is_base]
            joins[sub_join] = model.parts(sub_join, [*others, *inputs])
    return Subplan(subplan.top, joins)


# -- cleanup --------------------------------------------------------------------------------------------------------------------------


def tidy(model: CostModel, draft: Draft) -> Draft:
    """Merge answers of equal queries, drop unused joins, and shrink windows to their readers' needs."""
    answers = _fewest_answers(model.query_set, draft)
    joins = reachable_joins(draft.joins, answers.values())
    needed: dict[SubJoin, list[Mapping[str, float]]] = {sub_join: [] for sub_join in joins}
    for query, sub_join in answers.items():
        needed[sub_join].append(model.query_set.window_seconds(query))
    final: dict[SubJoin, SubJoin] = {}
    order = sort_readers_first(joins)
    for sub_join in order:
        final[sub_join] = _narrow(model.query_set, sub_join, needed[sub_join])
        for part in joins[sub_join]:
            if not part.is_base:
                needed[part].append(model.query_set.window_seconds_of(final[sub_join]))
    rebuilt = {
        final[sub_join]: model.parts(final[sub_join], [final[part] for part in joins[sub_join] if not part.is_base])
        for sub_join in reversed(order)
    }
    answers = {query: final[sub_join] for query, sub_join in answers.items()}
    return Draft(reachable_joins(rebuilt, answers.values()), answers)


def _fewest_answers(query_set: QuerySet, draft: Draft) -> dict[int, SubJoin]:
    """Answer a query by a materialized join or another query's result, if that is its whole join."""
    tops = [*draft.materialized, *draft.answers.values()]
    answers = {}
    for query, answer in draft.answers.items():
        serving = [sub_join for sub_join in tops if query_set.serves(sub_join, query)]
        keeps_answer = answer in draft.materialized or not serving
        answers[query] = answer if keeps_answer else max(serving, key=lambda sub_join: sub_join.window_seconds)
    return answers


def sort_readers_first(joins: Mapping[SubJoin, Parts]) -> list[SubJoin]:
    """Return all sub-joins, each after its readers; equally large ones in order of definition."""
    return sorted(joins, key=lambda sub_join: -sub_join.mask.bit_count())


def _narrow(query_set: QuerySet, sub_join: SubJoin, needs: Iterable[Mapping[str, float]]) -> SubJoin:
    sources = query_set.signatures[sub_join.signature].sources
    window_seconds = tuple(max(need[source] for need in needs) for source in sources)
    return SubJoin(sub_join.signature, window_seconds, sub_join.query, sub_join.mask)
