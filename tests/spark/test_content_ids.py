"""Content ids of batches, which tell a replay from other results."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dovetail.spark.batch_writer import BatchWriter
from dovetail.spark.driver.job import RunningJob
from dovetail.spark.driver.reports import ResultCounts
from dovetail.spark.sinks.stage import WrittenFile


class Committed:
    """A committer that keeps the content ids of its commits."""

    def __init__(self, *, needs_content_id: bool) -> None:
        self.needs_content_id = needs_content_id
        self.content_ids: list[int] = []

    def check(self, batch_id: int, files: list[WrittenFile]) -> None:
        pass

    def commit(self, batch_id: int, files: list[WrittenFile], content_id: int) -> None:  # noqa: ARG002
        self.content_ids.append(content_id)


@pytest.mark.parametrize(
    ("needing", "reads"), [((), 0), ((0, 1), 1), ((2,), 0)], ids=["none", "two", "one without rows"]
)
def test_the_content_id_of_a_batch_is_made_once(needing: tuple[int, ...], reads: int) -> None:
    """It reads Spark's offsets: for two queries that need it not twice, and not at all if nobody does."""
    read: list[str] = []

    def read_offsets(name: str) -> str:
        read.append(name)
        return "offsets"

    log = SimpleNamespace(read=read_offsets)
    checkpoint = SimpleNamespace(directory=SimpleNamespace(within=lambda _: log))
    committers = {query: Committed(needs_content_id=query in needing) for query in range(3)}
    job: Any = SimpleNamespace(committers=committers, checkpoint=checkpoint, _layout_json="{}")
    job.queries = {query: SimpleNamespace(name=str(query)) for query in committers}
    job.content_id = lambda *arguments: RunningJob.content_id(job, *arguments)
    counts = ResultCounts(Counter({0: 1, 1: 1}), {0: [], 1: []})
    reports = SimpleNamespace(collect=lambda *_: counts, add_results=lambda *_: None)
    BatchWriter(job, cast("Any", reports), last_batch=1).write(cast("Any", None), 5, lambda _: None)
    assert read == ["5"] * reads
    assert len({*committers[0].content_ids, *committers[1].content_ids}) == 1
    assert bool(committers[0].content_ids[0]) == bool(reads)
