"""A plan in the making: which operator produces what from what. Everything else about a plan follows from that.

`Draft.joins` says for each target which inputs its operator reads; a target that is an input of another is stored. A draft is never
changed: `Draft.joined` gives a new one. A `Subplan` is what one query would add to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dovetail.optimizer.sharing.model.costs import CostModel, Parts
from dovetail.optimizer.sharing.model.workload import QuerySet, Target
from dovetail.plan.shared_plan import Load, SharedPlan


@dataclass(frozen=True)
class Subplan:
    """One query's operators: its top, and the sub-joins below it that its draft does not have yet."""

    top: Target
    joins: Mapping[Target, Parts]

    @property
    def parts(self) -> Parts:
        """The inputs of the top operator: the vertices of the query's coalesced graph."""
        return self.joins[self.top]

    @property
    def states(self) -> list[Target]:
        """The sub-joins that it defines."""
        return [target for target in self.joins if target != self.top]


@dataclass(frozen=True)
class Draft:
    """Operators of the queries planned so far."""

    joins: Mapping[Target, Parts] = field(default_factory=dict)
    answers: Mapping[int, Target] = field(default_factory=dict)
    """By query."""
    scope: str = ""
    """Stands before the names of its nodes, if queries have drafts of their own."""

    @cached_property
    def stored(self) -> frozenset[Target]:
        """Targets that some operator reads."""
        return frozenset(part for parts in self.joins.values() for part in parts if not part.is_base)

    def joined(self, query: int, subplan: Subplan) -> Draft:
        """Add one more `query`. What is there already is used, not defined again."""
        joins = {**subplan.joins, **self.joins}
        answers = {**self.answers, query: subplan.top}
        return Draft(reachable(joins, answers.values()), answers, self.scope)

    def load(self, model: CostModel) -> Load:
        """Give CPU and memory of windows, operators and stored sub-joins; each of them counts once."""
        return load_of(model, [self])

    def over_windows(self, model: CostModel) -> float:
        """Give the CPU of operators that read nothing stored."""
        flat = {target: parts for target, parts in self.joins.items() if all(part.is_base for part in parts)}
        return sum(model.cpu(target, parts) for target, parts in flat.items())

    def operators(self, model: CostModel) -> Load:
        """The same without windows."""
        joining = Load(sum(model.cpu(target, parts) for target, parts in self.joins.items()))
        return Load.total((joining, *map(model.state, self.stored)))


def load_of(model: CostModel, drafts: Sequence[Draft]) -> Load:
    """Give CPU and memory of drafts that run side by side: they share windows, as all queries of an engine do, and nothing else."""
    windows = model.windows(target for draft in drafts for target in draft.joins)
    return Load.total((windows, *(draft.operators(model) for draft in drafts)))


def reachable(joins: Mapping[Target, Parts], tops: Iterable[Target]) -> dict[Target, Parts]:
    """Give the operators that some targets need, in the order in which they were defined; a target not defined is somebody else's."""
    needed, waiting = set[Target](), list(tops)
    while waiting:
        target = waiting.pop()
        if target in joins and target not in needed:
            needed.add(target)
            waiting += [part for part in joins[target] if not part.is_base]
    return {target: parts for target, parts in joins.items() if target in needed}


def draft_of(model: CostModel, plan: SharedPlan) -> Draft:
    """Give the draft of a plan that was made for queries of a workload, whatever was known of them then."""
    workload, joins, results = model.workload, dict[Target, Parts](), dict[str, Target]()
    numbers = {name: number for number, name in enumerate(workload.names)}
    for join in plan.joins:
        query = numbers[join.queries[0]]
        inputs = workload.queries[query].number
        target = workload.target(query, sum(1 << inputs[source] for source in join.sources), join.spans)
        joins[target] = model.parts(target, [results[each.node] for each in join.inputs if each.node in results])
        results[join.output] = target
    return Draft(joins, {numbers[answer.query]: results[answer.result] for answer in plan.answers})


def mjoin(model: CostModel, query: int) -> Subplan:
    """Join all inputs of `query` at once, over base windows: the least memory, for nothing is stored."""
    top = model.workload.target(query, model.workload.queries[query].all)
    return Subplan(top, {top: model.parts(top)})


def coalesced(model: CostModel, subplan: Subplan, merged: Collection[Target], state: Target, known: Draft) -> Subplan:
    """Read the stored join of some of the top operator's inputs instead of them; define it, unless the draft does."""
    top = subplan.top
    kept = [part for part in subplan.parts if part not in merged and not part.is_base]
    joins = dict(subplan.joins)
    joins[top] = model.parts(top, [*kept, state])
    if state not in known.joins:
        joins[state] = model.parts(state, [part for part in merged if not part.is_base])
    return Subplan(top, reachable(joins, [top]))


def without(model: CostModel, subplan: Subplan, state: Target) -> Subplan:
    """Drop a stored sub-join: the operators that read it read its inputs instead, in one step."""
    joins = dict(subplan.joins)
    inputs = [part for part in joins.pop(state) if not part.is_base]
    for target, parts in list(joins.items()):
        if state in parts:
            kept = [part for part in parts if part != state and not part.is_base]
            joins[target] = model.parts(target, [*kept, *inputs])
    return Subplan(subplan.top, joins)


# -- the last touches -----------------------------------------------------------------------------------------------------------------


def tidied(model: CostModel, draft: Draft) -> Draft:
    """Let queries that ask for the same have one answer, drop what nobody reads, and keep no window larger than its readers need."""
    answers = _fewest_answers(model.workload, draft)
    joins = reachable(draft.joins, answers.values())
    needed: dict[Target, list[Mapping[str, float]]] = {target: [] for target in joins}
    for query, target in answers.items():
        needed[target].append(model.workload.spans(query))
    final: dict[Target, Target] = {}
    order = readers_first(joins)
    for target in order:
        final[target] = _narrowed(model.workload, target, needed[target])
        for part in joins[target]:
            if not part.is_base:
                needed[part].append(model.workload.spans_of(final[target]))
    rebuilt = {
        final[target]: model.parts(final[target], [final[part] for part in joins[target] if not part.is_base])
        for target in reversed(order)
    }
    answers = {query: final[target] for query, target in answers.items()}
    return Draft(reachable(rebuilt, answers.values()), answers)


def _fewest_answers(workload: QuerySet, draft: Draft) -> dict[int, Target]:
    """Answer a query by a stored sub-join, or by another query's result, if that is all it asks for."""
    tops = [*draft.stored, *draft.answers.values()]
    answers = {}
    for query, own in draft.answers.items():
        serving = [target for target in tops if workload.serves(target, query)]
        answers[query] = own if own in draft.stored or not serving else max(serving, key=lambda each: each.spans)
    return answers


def readers_first(joins: Mapping[Target, Parts]) -> list[Target]:
    """Give all targets, each after those that read it; of equally large ones the first defined."""
    return sorted(joins, key=lambda target: -target.mask.bit_count())


def _narrowed(workload: QuerySet, target: Target, needs: Iterable[Mapping[str, float]]) -> Target:
    sources = workload.signatures[target.signature].sources
    spans = tuple(max(need[source] for need in needs) for source in sources)
    return Target(target.signature, spans, target.query, target.mask)
