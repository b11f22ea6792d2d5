"""What the driver sees of streams and joins, put together from all shards: rates and selectivities as they are in the data."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pipeline import Pipeline, layout_of

from dovetail.config import Config
from dovetail.optimizer.adapt.runtime_stats import RuntimeStats, ShardGroupReport
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.driver.layout import Layout
from dovetail.stats.counters import Measurements

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.int64()), ("v", pa.int64())])
RATES = {"a": 300, "b": 600, "c": 200}
KEYS = {"k": 50, "j": 20}
STREAMS = tuple(StreamSchema(name, COLUMNS, "ts", rate=rate) for name, rate in RATES.items())
FROM = "FROM a [RANGE 4 s], b [RANGE {0} s], c [RANGE 4 s]"
QUERIES = {
    "common key": {"q": f"SELECT a.ts {FROM.format(4)} WHERE a.k = b.k AND b.k = c.k"},
    "two keys": {"q": f"SELECT a.ts {FROM.format(4)} WHERE a.k = b.k AND b.j = c.j"},
    "filtered": {
        "q": f"SELECT a.ts {FROM.format(2)} WHERE a.k = b.k AND b.k = c.k AND b.v < 5",
        "wide": "SELECT a.ts FROM a [RANGE 4 s], b [RANGE 8 s] WHERE a.k = b.k",
    },
    "shared": {
        "q": f"SELECT a.ts {FROM.format(4)} WHERE a.k = b.k AND b.j = c.j",
        "pairs": "SELECT a.ts FROM a [RANGE 4 s], b [RANGE 4 s] WHERE a.k = b.k",
    },
}
SHARES = {frozenset("ab"): 1 / 50, frozenset("bc"): 1 / 50, frozenset("ac"): 1 / 50}
TWO_KEYS = {frozenset("ab"): 1 / 50, frozenset("bc"): 1 / 20}
"""Of pairs of streams, how many match."""


def batch(rng: np.random.Generator, number: int) -> dict[str, pa.Table]:
    found = {}
    for name, rate in RATES.items():
        times = np.sort(rng.integers(1_000_000 * number, 1_000_000 * (number + 1), rate))
        columns = [*(rng.integers(0, count, rate) for count in KEYS.values()), rng.integers(0, 10, rate)]
        found[name] = pa.table([pa.array(times, TIMESTAMP), *map(pa.array, columns)], schema=COLUMNS)
    return found


def note(picture: RuntimeStats, layout: Layout, pipeline: Pipeline) -> None:
    reports = {shard: Measurements.from_json(report) for shard, report in pipeline.metrics.items()}
    groups = [({number: reports[number] for number in numbers}, steps) for numbers, steps in layout.group_steps]
    picture.update([ShardGroupReport(*group) for group in groups], layout.copies)


@pytest.mark.parametrize("shards", [1, 6])
@pytest.mark.parametrize("kind", QUERIES)
def test_rates_and_selectivities_of_all_shards_together(tmp_path: Path, kind: str, shards: int) -> None:
    config = Config(strategy="bjtree" if kind == "shared" else "mjoin")
    layout = layout_of(STREAMS, QUERIES[kind], shards, config)
    pipeline, picture, rng = Pipeline(layout, tmp_path, random.Random(1)), RuntimeStats(), np.random.default_rng(1)
    for number in range(14):
        used = {stream.name: stream.columns.names for stream in layout.streams}
        pipeline.run({name: table.select(used[name]) for name, table in batch(rng, number).items()})
        note(picture, layout, pipeline)
    plans = layout.job.plans
    known = picture.planner_stats({name: plan.query for name, plan in plans.items()}, plans)["q"]
    rates = {**RATES, "b": 300 if kind == "filtered" else 600}
    assert known.rates == pytest.approx(rates, rel=0.1)
    truth = TWO_KEYS if kind in ("two keys", "shared") else SHARES
    assert len(known.selectivities) > 1
    # A batch is a quarter of a window or more, and whose tuples go first meets fewer.
    assert known.selectivities == pytest.approx({pair: truth[pair] for pair in known.selectivities}, rel=0.3)
