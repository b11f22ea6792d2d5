"""An engine loaded with the tuples of earlier batches continues like the one that joined them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from session_and_oracle import MODES

import dovetail as dt
from dovetail.engine.shard import ShardEngine
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.query.sql import parse_query
from dovetail.testing import RandomCase, assert_same_rows, random_scenario


def engine_for(scenario: RandomCase, config: dt.Config) -> ShardEngine:
    engine = ShardEngine(config)
    for stream in scenario.streams:
        engine.add_stream(stream)
    lowering, catalog = Lowering(scenario.catalog, config), scenario.catalog
    plans = [plan_query(parse_query(name, sql, catalog), catalog, config) for name, sql in scenario.sql.items()]
    engine.adopt(ExecutionPlan.of(map(lowering.individual_step, plans)))
    return engine


@pytest.mark.parametrize("seed", range(60))
def test_a_loaded_engine_continues_exactly(seed: int) -> None:
    rng = random.Random(seed)
    scenario = random_scenario(rng, pushes=5, late=False, count_windows=seed % 3 == 0)
    evaluation, expiration = rng.choice(MODES)
    config = dt.Config(evaluation=evaluation, expiration=expiration)
    lived = engine_for(scenario, config)
    cut = rng.randint(1, 4)
    for batch in scenario.pushes[:cut]:
        lived.push(batch)
    loaded = engine_for(scenario, config)
    seen = {
        stream.name: pa.concat_tables(
            [b[stream.name] for b in scenario.pushes[:cut] if stream.name in b] or [stream.columns.empty_table()]
        )
        for stream in scenario.streams
    }
    # only the tuples that the original engine still holds are needed
    kept = {
        name: table.filter(
            pa.compute.greater_equal(
                table[time].cast(pa.timestamp("us", table[time].type.tz), safe=False).cast(pa.int64()), oldest
            )
        )
        for name, table in seen.items()
        if (oldest := lived.oldest_event_time(name)) is not None
        for time in [scenario.catalog[name].event_time]
    }
    loaded.load([(0, kept)], {name: lived.progress[name].to_json() for name in seen})
    for batch in scenario.pushes[cut:]:
        before, after = lived.push(batch), loaded.push(batch)
        for name in scenario.sql:
            assert_same_rows(after[name], before[name], scenario.sql[name])
