"""Queries that share joins and materialized joins give the oracle's results under any plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import Case, sizes

from dovetail.engine.persist.snapshot import arena_manifest, attach, read_snapshot, write_snapshot
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.arena import MappedArena
from dovetail.query.model import TimeWindow
from dovetail.testing import assert_same_rows

SEEDS = st.integers(0, 2**32 - 1)


def snapshot(case: Case, engine: ShardEngine, _: Path) -> ShardEngine:
    stored = read_snapshot(write_snapshot(engine, {}))
    other = case.empty()
    stored.load_into(other, case.lowered(engine.plan.answers))
    return other


def hand_over(case: Case, engine: ShardEngine, directory: Path) -> ShardEngine:
    """Attach another engine to the same arrays."""
    stored = json.loads(json.dumps(arena_manifest(engine)))
    plan = case.lowered(engine.plan.answers, engine.plan)
    return attach(MappedArena(directory), stored, plan, replan=engine.replan)


def replay(case: Case, engine: ShardEngine, _: Path) -> ShardEngine:
    """Rebuild from the tuples that windows need, as a log keeps them; this requires input without late tuples."""
    other = case.start()
    held = {}
    for stream in case.scenario.streams:
        pushed = [batch[stream.name] for batch in case.pushed if stream.name in batch]
        oldest = engine.oldest_event_time(stream.name)
        if pushed and oldest is not None:
            table = pa.concat_tables(pushed)
            times = table["ts"].cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
            held[stream.name] = table.filter(pc.greater_equal(times, oldest))
    other.load([(0, held)], {stream.name: engine.progress[stream.name].to_json() for stream in case.scenario.streams})
    return other


Restart: TypeAlias = Callable[[Case, ShardEngine, Path], ShardEngine]
RESTARTS = (None, None, snapshot, hand_over, replay)


@settings(max_examples=5 * settings().max_examples)
@given(SEEDS, st.booleans(), st.sampled_from(RESTARTS))
def test_every_plan_gives_the_oracles_results(seed: int, tiny: bool, restart: Restart | None) -> None:  # noqa: FBT001
    with sizes(tiny=tiny) as directory:
        case = Case(seed, **({"late": False} if restart is replay else {}))
        engine = case.start(MappedArena(directory) if restart is hand_over else None)
        found: dict[str, list[pa.Table]] = {name: [] for name in case.queries}
        for batch in case.scenario.pushes:
            for name, table in engine.push(batch).items():
                found[name].append(table)
            case.pushed.append(batch)
            if restart is not None:
                engine = restart(case, engine, directory)
        case.check(found)


@settings(max_examples=2 * settings().max_examples)
@given(SEEDS, st.booleans(), st.sampled_from((None, None, snapshot, hand_over)))
def test_dropping_a_query_frees_what_only_it_needed(seed: int, tiny: bool, restart: Restart | None) -> None:  # noqa: FBT001
    with sizes(tiny=tiny) as directory:
        case = Case(seed)
        engine = case.start(MappedArena(directory) if restart is hand_over else None)
        found: dict[str, list[pa.Table]] = {name: [] for name in case.queries}
        left = list(case.queries)
        for batch in case.scenario.pushes:
            for name, table in engine.push(batch).items():
                found[name].append(table)
            if len(left) > 1:
                name = left.pop(case.rng.randrange(len(left)))
                engine.adopt(case.lowered(left, engine.plan).with_orders_of(engine.plan))
            if restart is not None:
                engine = restart(case, engine, directory)
        needed = {node.id for name in left for node in case.plan.below(name)}
        assert len(engine.joined.runs) == sum(join.id in needed for join in case.plan.joins)
        read = {each.node for join in case.plan.joins if join.id in needed for each in join.inputs}
        assert set(engine.joined.materialized) == {state.id for state in case.plan.materialized if state.id in read}
        refs = [ref for name in left for ref in case.queries[name].refs]
        assert set(engine.joined.windows) == {ref.stream for ref in refs}
        for stream, window in engine.joined.plans.items():
            assert window.longest_micros == max(
                ref.window.micros for ref in refs if ref.stream == stream and isinstance(ref.window, TimeWindow)
            )
        for name in left:
            assert_same_rows(pa.concat_tables(found[name]), case.oracle().results_table(name))
