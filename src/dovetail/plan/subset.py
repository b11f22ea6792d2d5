"""Restricts a shared plan to some of its queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dovetail.plan.shared_plan import JoinNode, ResultNode, SharedPlan, in_order


def restrict_plan(plan: SharedPlan, queries: Iterable[str]) -> SharedPlan | None:
    """Return the part of a plan that some queries need, with the windows they need; loads stay as planned.

    The part has no expressions. None if the plan has none of these queries.
    """
    selected = set(queries)
    answers = tuple(replace(answer, plan=None) for answer in plan.answers if answer.query in selected)
    if not answers:
        return None
    if len(answers) == len(plan.answers):
        return plan
    needed = {node.id for answer in answers for node in plan.below(answer.query)}
    joins = [join for join in plan.joins if join.id in needed]
    results = [result for result in plan.results if result.id in needed]
    read = {edge.node for join in joins for edge in join.inputs}

    def window_seconds(node: JoinNode | ResultNode) -> dict[str, float]:
        query_seconds = [answer.window_seconds for answer in answers if answer.query in node.queries]
        return {source: max(seconds[source] for seconds in query_seconds) for source in node.sources}

    def longest_seconds(window: str) -> float:
        """Return the largest window that a join has on a stream."""
        return max(
            window_seconds(join)[source]
            for join in joins
            for edge in join.inputs
            if edge.node == window
            for source in edge.sources
        )

    def restrict(node: Any, **changes: Any) -> Any:
        return replace(node, queries=in_order(node.queries, selected), **changes)

    return replace(
        plan,
        windows=tuple(
            restrict(node, window_seconds=longest_seconds(node.id)) for node in plan.windows if node.id in needed
        ),
        joins=tuple(restrict(join, window_seconds=window_seconds(join), expressions=None) for join in joins),
        results=tuple(
            restrict(
                result,
                window_seconds=window_seconds(result),
                is_materialized=result.is_materialized and result.id in read,
            )
            for result in results
        ),
        answers=answers,
        query_order=in_order(plan.query_order, selected),
    )
