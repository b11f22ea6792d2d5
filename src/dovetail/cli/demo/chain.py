"""Spark's own chain of stream-stream joins for the demo's query, for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.workloads.ad_funnel import FUNNEL_SECONDS

_STATE_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_NEWEST_FORMATS = ("4", "3")
"""Spark's newest layouts of join state, the newest first: measured, the fastest for these joins."""
_CHAIN = f"""
    SELECT p.site, p.ad_id, p.user_id, p.clicked - timestamp_micros(p.seen) AS clicked_after,
           o.ts - p.clicked AS bought_after, o.amount
    FROM (SELECT i.site, i.ad_id, c.user_id, unix_micros(i.ts) AS seen, c.ts AS clicked
          FROM impressions i JOIN clicks c ON c.ad_id = i.ad_id AND c.user_id = i.user_id
          AND c.ts BETWEEN i.ts AND i.ts + INTERVAL {FUNNEL_SECONDS} SECONDS) p
    JOIN orders o ON o.user_id = p.user_id
    AND o.ts BETWEEN p.clicked AND p.clicked + INTERVAL {FUNNEL_SECONDS} SECONDS
    AND unix_micros(o.ts) - p.seen <= {FUNNEL_SECONDS} * 1000000"""  # noqa: S608 - a constant is put in


def chain_of_joins(spark: Any, frames: Mapping[str, Any], lateness: str) -> Any:
    """Join impressions, clicks and orders with two of Spark's stream-stream joins.

    Only one event time may enter a further join, so that of the impressions becomes a number after the first one.
    """
    for version in _NEWEST_FORMATS:
        try:
            spark.conf.set(_STATE_FORMAT, version)
        except Exception:  # noqa: BLE001, S112 - an older Spark refuses a format that it does not know
            continue
        break
    for name, frame in frames.items():
        frame.withWatermark("ts", lateness).createOrReplaceTempView(name)
    return spark.sql(_CHAIN)
