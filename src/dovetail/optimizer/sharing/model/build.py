"""Builds a `SharedPlan` from drafts: names, spans, orders, predicates, consumers and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, sort_readers_first
from dovetail.optimizer.sharing.model.query_set import Target
from dovetail.plan.shared_plan import (
    JoinInput,
    JoinNode,
    Load,
    QueryAnswer,
    ResultNode,
    SharedPlan,
    WindowNode,
    in_order,
)


class PlanBuilder:
    """Collects the nodes of one or more drafts; different drafts share only windows, as in the engine."""

    def __init__(self, model: CostModel, drafts: Sequence[Draft]) -> None:
        self._model = model
        self._query_set = model.query_set
        self._windows: list[WindowNode] = []
        self._joins: list[JoinNode] = []
        self._results: list[ResultNode] = []
        self._answers: list[QueryAnswer] = []
        # No node has the name of a query or of a source, because all of them are looked up in one namespace.
        self._names = {*model.query_set.names, *model.query_set.sources}
        self._names |= {source.stream for source in model.query_set.sources.values()}
        self._window_names: dict[str, str] = {}
        self._add_windows(drafts)
        for draft in drafts:
            self._add(draft)

    def _add_windows(self, drafts: Sequence[Draft]) -> None:
        spans = self._model.spans(target for draft in drafts for target in draft.joins)
        for stream, span in sorted(spans.items()):
            readers = {query for draft in drafts for query in draft.answers if stream in self._streams(query)}
            rate, load = self._query_set.stream_rate(stream), self._model.window(stream, span)
            name = self._window_names[stream] = self._name(f"window:{stream}")
            self._windows.append(WindowNode(name, stream, span, rate, self._named(readers), load))

    def _add(self, draft: Draft) -> None:
        """Add the operators and answers of `draft`."""
        users = self._users(draft)
        names: dict[Target, str] = {}
        for target in reversed(sort_readers_first(draft.joins)):
            names[target] = self._operator(draft, target, names, users[target])
        for query, target in draft.answers.items():
            self._answer(query, names[target])

    def plan(self, strategy: str, order: Sequence[int], limits: Load) -> SharedPlan:
        """Return the plan; its constructor validates it."""
        indexes = {name: index for index, name in enumerate(self._query_set.names)}
        answers = tuple(sorted(self._answers, key=lambda answer: indexes[answer.query]))
        sources = {name: self._query_set.sources[name] for name in sorted(self._query_set.sources)}
        order_names = tuple(self._query_set.names[query] for query in order)
        return SharedPlan(
            tuple(self._windows),
            tuple(self._joins),
            tuple(self._results),
            answers,
            sources,
            strategy,
            order_names,
            limits,
        )

    def _operator(self, draft: Draft, target: Target, names: Mapping[Target, str], users: set[int]) -> str:
        model, query_set, scope = self._model, self._query_set, draft.scope
        parts, is_materialized = draft.joins[target], target in draft.materialized
        answered = [query for query, answer in draft.answers.items() if answer == target]
        sources = query_set.signatures[target.signature].sources
        label = "+".join(sources) if is_materialized else query_set.names[min(answered)]
        join = self._name(f"{scope}join:{label}")
        result = self._name(f"{scope}{'state' if is_materialized else 'answer'}:{label}")
        cost = model.join(target, parts)
        self._joins.append(
            JoinNode(
                join,
                tuple(self._input(part, names) for part in parts),
                tuple(path[1:] for path in cost.paths),
                self._predicates(target, parts),
                query_set.spans_of(target),
                result,
                self._named(users),
                cost.produced,
                Load(model.cpu(target, parts)),
            )
        )
        load = model.materialization(target) if is_materialized else Load()
        load = load.plus(Load(sum(map(model.delivery_cost, answered))))
        indexes = (query_set.rate(target), query_set.size(target))
        spans = query_set.spans_of(target)
        self._results.append(
            ResultNode(result, join, sources, spans, is_materialized, *indexes, self._named(users), load)
        )
        return result

    def _input(self, part: Target, names: Mapping[Target, str]) -> JoinInput:
        sources = self._query_set.signatures[part.signature].sources
        if part.is_base:
            return JoinInput(self._window_names[self._query_set.sources[sources[0]].stream], sources)
        return JoinInput(names[part], sources)

    def _predicates(self, target: Target, parts: Sequence[Target]) -> tuple[str, ...]:
        signatures = self._query_set.signatures
        below = {text for part in parts for text in signatures[part.signature].predicates}
        return tuple(text for text in signatures[target.signature].predicates if text not in below)

    def _answer(self, query: int, result: str) -> None:
        numbered = self._query_set.queries[query]
        aliases = {source.name: alias for source, alias in zip(numbered.sources, numbered.graph.names, strict=True)}
        self._answers.append(QueryAnswer(numbered.name, result, aliases, self._query_set.spans(query)))

    def _users(self, draft: Draft) -> dict[Target, set[int]]:
        users: dict[Target, set[int]] = {target: set() for target in draft.joins}
        for query, answer in draft.answers.items():
            users[answer].add(query)
        for target in sort_readers_first(draft.joins):
            for part in draft.joins[target]:
                if not part.is_base:
                    users[part] |= users[target]
        return users

    def _streams(self, query: int) -> set[str]:
        return {source.stream for source in self._query_set.queries[query].sources}

    def _named(self, queries: set[int]) -> tuple[str, ...]:
        return in_order(self._query_set.names, {self._query_set.names[query] for query in queries})

    def _name(self, label: str) -> str:
        """Return a unique name: nodes with equal labels may differ in windows or predicates."""
        name, index = label, 2
        while name in self._names:
            name, index = f"{label}#{index}", index + 1
        self._names.add(name)
        return name
