"""The part of a plan that is left when some of its queries are gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dovetail.plan.shared_plan import JoinNode, ResultNode, SharedPlan, in_order


def part_of(plan: SharedPlan, queries: Iterable[str]) -> SharedPlan | None:
    """Give what some of a plan's queries need, with windows as large as they need them; loads are as planned.

    None if there are no such queries.
    """
    wanted = set(queries)
    answers = tuple(answer for answer in plan.answers if answer.query in wanted)
    if not answers:
        return None
    if len(answers) == len(plan.answers):
        return plan
    needed = {node.id for answer in answers for node in plan.below(answer.query)}
    joins = [join for join in plan.joins if join.id in needed]
    results = [result for result in plan.results if result.id in needed]
    read = {each.node for join in joins for each in join.inputs}

    def spans(node: JoinNode | ResultNode) -> dict[str, float]:
        served = [answer.spans for answer in answers if answer.query in node.queries]
        return {source: max(own[source] for own in served) for source in node.sources}

    def span(window: str) -> float:
        """The largest window that a join has on a stream."""
        return max(
            spans(join)[source]
            for join in joins
            for each in join.inputs
            if each.node == window
            for source in each.sources
        )

    def left(node: Any, **changes: Any) -> Any:
        return replace(node, queries=in_order(node.queries, wanted), **changes)

    return replace(
        plan,
        windows=tuple(left(node, span=span(node.id)) for node in plan.windows if node.id in needed),
        joins=tuple(left(join, spans=spans(join)) for join in joins),
        results=tuple(
            left(result, spans=spans(result), stored=result.stored and result.id in read) for result in results
        ),
        answers=answers,
        query_order=in_order(plan.query_order, wanted),
    )
