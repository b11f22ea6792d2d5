"""Assumptions of the planner about streams and queries, for errors about budgets.

The planner makes them where nobody stated or measured anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.errors import BudgetError, listed
from dovetail.optimizer.graph.selectivities import PredicateIndex, assumed_pairs
from dovetail.plan.query_plan import DEFAULT_RATE, QueryPlan
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema

_MAX_NAMED = 3
"""The number of conditions that an error names."""


def with_assumptions(
    error: BudgetError, plans: Iterable[QueryPlan], streams: Mapping[str, StreamSchema], *, is_measured: bool = False
) -> BudgetError:
    """Return an error that also names what was assumed of the queries, and how to state it.

    A query is refused only if it would not fit even if nothing matched where a selectivity is unknown.
    """
    plans = list(plans)
    assumed, remedies = [], []
    unrated = [] if is_measured else _streams_without_rate([plan.query for plan in plans], streams)
    if unrated:
        assumed.append(f"{DEFAULT_RATE:g} tuple/s of {listed(unrated)}")
        remedies.append(f"stream({unrated[0]!r}, ..., rate=...)")
    conditions = [text for plan in plans for text in unknown_conditions(plan)] if error.resource == "CPU" else []
    if conditions:
        named = list(dict.fromkeys(conditions))[:_MAX_NAMED]
        assumed.append(f"no matches of {', '.join(named)}")
        remedies.append(f"selectivity({named[0]!r}, ...)")
    if not assumed:
        return error
    message = f"{error.message}; assumed, because it is not stated: {' and '.join(assumed)}"
    return BudgetError(message, f"{error.hint}; state it with {' and '.join(remedies)}", resource=error.resource)


def has_unknown_selectivities(plan: QueryPlan) -> bool:
    """Whether a selectivity of the query follows from none that was given or measured."""
    return bool(assumed_pairs(PredicateIndex.of(plan.query), plan.stats.selectivities))


def unknown_conditions(plan: QueryPlan) -> list[str]:
    """Return the conditions between two aliases with an unknown selectivity, one for each pair of aliases."""
    texts = _conditions(plan.query)
    return [
        texts[pair] for pair in assumed_pairs(PredicateIndex.of(plan.query), plan.stats.selectivities) if pair in texts
    ]


def _conditions(query: JoinQuery) -> dict[frozenset[str], str]:
    """Return a condition of the query, as written, by the pair of aliases that it is about."""
    texts: dict[frozenset[str], str] = {}
    for edge in query.equalities:
        texts.setdefault(frozenset((edge.left.alias, edge.right.alias)), edge.text)
    for condition in query.conditions:
        texts.setdefault(frozenset(condition.aliases), condition.text)
    return texts


def _streams_without_rate(queries: Iterable[JoinQuery], streams: Mapping[str, StreamSchema]) -> list[str]:
    names = dict.fromkeys(ref.stream for query in queries for ref in query.refs)
    return [name for name in names if streams[name].rate is None]
