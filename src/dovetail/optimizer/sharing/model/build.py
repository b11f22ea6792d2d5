"""Builds a `SharedPlan` from drafts: names, windows, orders, predicates, consumers and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, sort_readers_first
from dovetail.optimizer.sharing.model.query_set import SubJoin
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
        window_seconds = self._model.window_seconds(sub_join for draft in drafts for sub_join in draft.joins)
        for stream, seconds in sorted(window_seconds.items()):
            readers = {query for draft in drafts for query in draft.answers if stream in self._streams(query)}
            rate, load = self._query_set.stream_rate(stream), self._model.window(stream, seconds)
            name = self._window_names[stream] = self._name(f"window:{stream}")
            self._windows.append(WindowNode(name, stream, seconds, rate, self._named(readers), load))

    def _add(self, draft: Draft) -> None:
        """Add the operators and answers of `draft`."""
        users = self._users(draft)
        names: dict[SubJoin, str] = {}
        for sub_join in reversed(sort_readers_first(draft.joins)):
            names[sub_join] = self._operator(draft, sub_join, names, users[sub_join])
        for query, sub_join in draft.answers.items():
            self._answer(query, names[sub_join])

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

    def _operator(self, draft: Draft, sub_join: SubJoin, names: Mapping[SubJoin, str], users: set[int]) -> str:
        model, query_set, scope = self._model, self._query_set, draft.scope
        parts, is_materialized = draft.joins[sub_join], sub_join in draft.materialized
        answered = [query for query, answer in draft.answers.items() if answer == sub_join]
        sources = query_set.signatures[sub_join.signature].sources
        label = "+".join(sources) if is_materialized else query_set.names[min(answered)]
        join = self._name(f"{scope}join:{label}")
        result = self._name(f"{scope}{'state' if is_materialized else 'answer'}:{label}")
        cost = model.join(sub_join, parts)
        self._joins.append(
            JoinNode(
                join,
                tuple(self._input(part, names) for part in parts),
                tuple(path[1:] for path in cost.paths),
                self._predicates(sub_join, parts),
                query_set.window_seconds_of(sub_join),
                result,
                self._named(users),
                cost.produced,
                Load(model.cpu(sub_join, parts)),
            )
        )
        load = model.materialization(sub_join) if is_materialized else Load()
        load = load.plus(Load(sum(map(model.delivery_cost, answered))))
        indexes = (query_set.rate(sub_join), query_set.size(sub_join))
        window_seconds = query_set.window_seconds_of(sub_join)
        self._results.append(
            ResultNode(result, join, sources, window_seconds, is_materialized, *indexes, self._named(users), load)
        )
        return result

    def _input(self, part: SubJoin, names: Mapping[SubJoin, str]) -> JoinInput:
        sources = self._query_set.signatures[part.signature].sources
        if part.is_base:
            return JoinInput(self._window_names[self._query_set.sources[sources[0]].stream], sources)
        return JoinInput(names[part], sources)

    def _predicates(self, sub_join: SubJoin, parts: Sequence[SubJoin]) -> tuple[str, ...]:
        signatures = self._query_set.signatures
        below = {text for part in parts for text in signatures[part.signature].predicates}
        return tuple(text for text in signatures[sub_join.signature].predicates if text not in below)

    def _answer(self, query: int, result: str) -> None:
        numbered = self._query_set.queries[query]
        aliases = {source.name: alias for source, alias in zip(numbered.sources, numbered.graph.names, strict=True)}
        self._answers.append(QueryAnswer(numbered.name, result, aliases, self._query_set.window_seconds(query)))

    def _users(self, draft: Draft) -> dict[SubJoin, set[int]]:
        users: dict[SubJoin, set[int]] = {sub_join: set() for sub_join in draft.joins}
        for query, answer in draft.answers.items():
            users[answer].add(query)
        for sub_join in sort_readers_first(draft.joins):
            for part in draft.joins[sub_join]:
                if not part.is_base:
                    users[part] |= users[sub_join]
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
