"""Overlapping queries and random plans for them: any mixture of n-ary and materialized joins."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from dovetail.optimizer import UnitCosts
from dovetail.optimizer.graph.from_query import declared_rates, join_graph
from dovetail.optimizer.sharing.model.build import PlanBuilder
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, coalesce, mjoin, tidy
from dovetail.optimizer.sharing.model.query_set import number_queries
from dovetail.optimizer.sharing.model.translate import name_query
from dovetail.plan.shared_plan import NO_LIMITS, SharedPlan
from dovetail.query.expressions import columns
from dovetail.query.model import JoinQuery, TimeWindow, equality_classes
from dovetail.schema import StreamSchema


def overlapping(rng: random.Random, queries: Mapping[str, JoinQuery], most: int = 3) -> dict[str, JoinQuery]:
    """Return the queries and parts of them with other windows and outputs."""
    found = dict(queries)
    for query in queries.values():
        for _ in range(rng.randint(0, most)):
            name = f"q{len(found) + 1}"
            found[name] = part(rng, query, name)
    return found


def part(rng: random.Random, query: JoinQuery, name: str) -> JoinQuery:
    """Return a query over some of the aliases of another, with its own windows."""
    linked = [{edge.left.alias, edge.right.alias} for edge in query.equalities]
    linked += [set(condition.aliases) for condition in query.conditions if len(condition.aliases) == 2]
    inside = {rng.choice(query.aliases)}
    wanted = rng.randint(2, len(query.aliases))
    while len(inside) < wanted:
        near = {alias for link in linked if link & inside for alias in link - inside}
        inside = inside | {rng.choice(sorted(near))} if near else set(query.aliases)
    equalities = tuple(e for e in query.equalities if {e.left.alias, e.right.alias} <= inside)
    conditions = tuple(c for c in query.conditions if inside.issuperset(c.aliases))
    outputs = [output for output in query.outputs if inside.issuperset(c.alias for c in columns(output.expression))]
    outputs = rng.sample(outputs, rng.randint(1, len(outputs))) if outputs else []
    refs = [ref for ref in query.refs if ref.alias in inside]
    if rng.random() < 0.7:
        refs = [
            replace(ref, window=TimeWindow(ref.window.micros * rng.choice((0, 1, 1, 2, 3)) // 2))
            if isinstance(ref.window, TimeWindow)
            else ref
            for ref in refs
        ]
    return JoinQuery(
        name,
        query.sql,
        tuple(rng.sample(refs, len(refs))),
        equalities,
        conditions,
        tuple(f for f in query.filters if inside.issuperset(f.aliases)),
        tuple(outputs),
        equality_classes(equalities),
    )


def random_plan(
    rng: random.Random, queries: Mapping[str, JoinQuery], streams: Mapping[str, StreamSchema]
) -> SharedPlan:
    """Draw a random tree of joins for each query; common sub-joins may be shared."""
    graphs = {
        name: name_query(query, join_graph(query, declared_rates(query, streams), {}))
        for name, query in queries.items()
    }
    model = CostModel(number_queries(graphs), UnitCosts())
    order = list(range(len(queries)))
    rng.shuffle(order)
    draft = Draft()
    for query in order:
        draft = draft.with_query(query, _random_tree(rng, model, query, draft))
    return PlanBuilder(model, [tidy(model, draft)]).plan("random", order, NO_LIMITS)


def _random_tree(rng: random.Random, model: CostModel, query: int, draft: Draft) -> Subplan:
    subplan, query_set = mjoin(model, query), model.query_set
    numbered = query_set.queries[query]
    everyone = range(len(query_set.queries))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        parts = list(subplan.parts)
        merged = rng.sample(parts, rng.randint(2, len(parts) - 1)) if len(parts) > 2 else []
        masks = [query_set.mask(each.signature, query) for each in merged]
        if sum(masks) not in numbered.connected_sets() or sum(masks) & numbered.unmaterializable:
            continue
        among = everyone if rng.random() < 0.7 else [query]
        state = query_set.widest(query, sum(masks), among)
        # A materialized join needs windows at least as long as those of its readers.
        wide = [
            part if part.is_base else query_set.widest(query, mask, among)
            for part, mask in zip(merged, masks, strict=True)
        ]
        if wide == merged:
            subplan = coalesce(model, subplan, merged, state, draft)
    return subplan
