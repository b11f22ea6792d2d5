"""What the windows of a checkpoint hold, read from the logs of its shards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from expected_windows import ExpectedWindows
from pipeline import Pipeline, layout_of
from test_shards import spark_scenario

from dovetail.query.sql import parse_query
from dovetail.spark.checkpoint.stored_state import StoredState
from dovetail.spark.state.log import ShardLog
from dovetail.testing import Oracle, assert_same_rows


def stored(pipeline: Pipeline, batch: int) -> StoredState:
    plan = pipeline.plan
    logs = {shard: ShardLog(pipeline.states[shard], plan.digest, plan.catalog) for shard in plan.shard_list}
    return StoredState(pipeline.layout, plan, batch, logs)


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_random_jobs_are_those_of_the_definition(seed: int, tmp_path: Path) -> None:
    rng = random.Random(8100 + seed)
    scenario = spark_scenario(rng, pushes=6)
    pipeline = Pipeline(layout_of(scenario.streams, scenario.sql, rng.choice((1, 4, 6))), tmp_path, rng)
    oracle = Oracle(scenario.streams)
    queries = {name: parse_query(name, sql, scenario.catalog) for name, sql in scenario.sql.items()}
    for batch, push in enumerate(scenario.pushes):
        pipeline.run(push)
        oracle.push(push)
        windows = stored(pipeline, batch).windows()
        for group in pipeline.layout.placement.groups:
            readers = [queries[query.name] for query in group.queries]
            expected = ExpectedWindows(oracle, readers)
            for stream in {ref.stream for query in readers for ref in query.refs}:
                names = [
                    name for name in windows if name.startswith(stream) and (" @" not in name or group.label in name)
                ]
                content = windows[names[0]].drop_columns(["_batch"])
                assert_same_rows(content, expected.table(stream, readers), f"{names}: {scenario.sql}")
