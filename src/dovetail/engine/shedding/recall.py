"""What was lost: results that there would have been, by those that there were.

A hash-sampled share of the keys is followed twice: as windows hold them, and as if nothing were shed. Both are counted by bucket of
the hash. The ratio of the sums is the share of results that was kept, and how much it differs from bucket to bucket says how sure that
is (random groups; Wolter, Introduction to Variance Estimation, chapter 2). What was lost follows from the ratio and from the results
of all keys.
"""

from __future__ import annotations

from math import sqrt

from dovetail.engine.join.step import JoinRun
from dovetail.engine.kernels.roster import BUCKETS, FloatArray
from dovetail.plan.sheddable import common_key
from dovetail.stats.recall import LossEstimate

_T_95 = 2.0395
"""The 97.5 % point of Student's t with one degree of freedom less than there are buckets."""
_FACTOR = BUCKETS / (BUCKETS - 1)


def lost(given: float, counted: float, kept: FloatArray, whole: FloatArray) -> LossEstimate:
    """What was lost if `given` results were given, and `counted` if tuples of one event time came one after another.

    A tuple that is shed ends before the event time of the one that it is shed for, and with it results of that time that had been
    counted: so many were lost besides. `kept` and `whole`: those of sampled keys by bucket, as they were counted and unshed.
    """
    return LossEstimate(max(0.0, counted - given)) + _lost(counted, kept, whole)


def _lost(counted: float, kept: FloatArray, whole: FloatArray) -> LossEstimate:
    total, left = float(whole.sum()), float(kept.sum())
    if left >= total:
        return LossEstimate()
    ratio = left / total
    off = _T_95 * sqrt(float(((kept - ratio * whole) ** 2).sum()) * _FACTOR) / total
    if ratio <= off:  # of the ratio only its upper end is known: count what the sampled keys have lost
        missing = whole - kept
        off = _T_95 * sqrt(float(((missing - missing.mean()) ** 2).sum()) * _FACTOR)
        return LossEstimate(total - left, off, off)
    middle, low, high = (counted / share - counted for share in (ratio, min(1.0, ratio + off), ratio - off))
    return LossEstimate(middle, middle - low, high - middle)


def why_unknown(run: JoinRun, query: str) -> str | None:
    """Why it cannot be known what a query loses that takes the results of a join; None if it can."""
    joined, step = run.plan.query, run.step
    if not common_key(joined):
        return "no column is equal in all its aliases"
    if joined.conditions:
        return f"it has a condition beside its common key, {joined.conditions[0].text}"
    if joined.inexact_equalities:
        return "it compares values of different types"
    consumer = next(each for each in step.consumers if each.query == query)
    if consumer.cell:
        return "other shards give some of the results that this one could"
    if any(consumer.spans[source] < micros for source, micros in step.windows.items()):
        return "its windows are smaller than those of the join that it takes its results from"
    return None
