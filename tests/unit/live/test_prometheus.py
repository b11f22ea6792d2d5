"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from dovetail.live.prometheus import prometheus_text


def test_labels_are_escaped_and_unknown_values_omitted() -> None:
    recall = {"estimate": 0.5, "low": None, "high": None}
    queries = {'a"b\\c': {"results": 1, "recall": recall}, "plain": {"results": 2, "recall": None}}
    text = prometheus_text(
        {"batches": 1, "streams": {}, "queries": queries, "budget": {"cpu": {"used": None, "limit": 5}}}
    )
    assert 'dovetail_results_total{query="a\\"b\\\\c"} 1\n' in text
    assert 'dovetail_recall_estimate{query="a\\"b\\\\c"} 0.5\n' in text
    assert "recall_low" not in text
    assert "budget_used" not in text
    assert 'dovetail_budget_limit{resource="cpu"} 5\n' in text
