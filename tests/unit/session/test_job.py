"""A job plans its queries once: what was planned while they were declared is what runs."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.optimizer.joint import JointPlanning
from dovetail.schema import StreamSchema
from dovetail.session import job as job_module
from dovetail.session.job import Job

COLUMNS = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64())])


def test_a_job_that_begins_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(dt.Config())
    for name in "ab":
        job = job.with_stream(StreamSchema(name, COLUMNS, "ts"))
    for name in ("first", "second"):
        sql = "SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
        job = job.with_query(job.plan_individually(name, sql, None))
    steps = job.steps

    def refuse(*_: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(job_module, "plan_query", refuse)
    monkeypatch.setattr(JointPlanning, "plan", refuse)
    begun = job.with_initial_plan()
    assert begun.joint_plan is begun.adopted_plan is job.joint_plan
    assert all(step is before for step, before in zip(begun.steps, steps, strict=True))
