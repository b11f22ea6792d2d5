"""A shard's arrays in files: another process attaches to them and continues exactly.

Run as a program, this file is that other process: `python test_mapped.py DIRECTORY SCENE FIRST STOP`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.engine.measure import measure
from dovetail.engine.persist.snapshot import ARRAYS, arena_manifest, attach
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.arena import Arena, HeapArena, MappedArena
from dovetail.errors import StateError
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import assert_same_rows, random_scenario

TS = pa.timestamp("us", tz="UTC")
Batch = Mapping[str, pa.Table]
Results = list[dict[str, pa.Table]]
CONFIG = dt.Config()


@dataclass(frozen=True)
class Scene:
    """Streams, queries and batches."""

    streams: tuple[StreamSchema, ...]
    sql: dict[str, str]
    pushes: tuple[Batch, ...]
    config: dt.Config = CONFIG

    def plan(self, *names: str, since: Mapping[str, int] | None = None) -> ExecutionPlan:
        """Return the plan of all queries or of some; `since`: first batch of each late query."""
        catalog = {schema.name: schema for schema in self.streams}
        steps = []
        for name in names or self.sql:
            plan = plan_query(parse_query(name, self.sql[name], catalog), catalog, self.config)
            steps.append(Lowering(catalog, self.config, (since or {}).get(name, 0)).individual_step(plan))
        return ExecutionPlan.of(steps)

    def start(self, arena: Arena) -> ShardEngine:
        engine = ShardEngine(self.config, arena)
        for schema in self.streams:
            engine.add_stream(schema)
        engine.adopt(self.plan())
        return engine

    def push(self, engine: ShardEngine, first: int, stop: int) -> Results:
        return [engine.push(batch) for batch in self.pushes[first:stop]]


COLUMNS = pa.schema(
    [
        ("ts", TS),
        ("k", pa.int64()),
        ("s", pa.string()),
        ("d", pa.decimal128(30, 2)),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.struct({"x": pa.int32(), "y": pa.string()}))),
    ]
)


def rows(rng: random.Random, first: int, count: int) -> pa.Table:
    """Draw tuples a millisecond apart, with a fifth of all values NULL."""

    def some(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    content = [
        {
            "ts": (first + number) * 1000,
            "k": some(rng.randint(0, 300)),
            "s": some("é" * rng.randint(0, 30) + str(rng.randint(0, 200))),
            "d": some(rng.randint(0, 99)),
            "b": some(rng.random() < 0.5),
            "l": some([{"x": number, "y": some("y" * (number % 9))}] * rng.randint(0, 2)),
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(content, COLUMNS)


def _growing(sizes: tuple[int, ...], sql: Mapping[str, str], lateness: int = 0) -> Scene:
    rng = random.Random(7)
    streams = tuple(StreamSchema(name, COLUMNS, "ts", lateness) for name in "ab")
    pushes, first = [], 0
    for size in sizes:
        pushes.append({name: rows(rng, first, size) for name in "ab"})
        first += size
    return Scene(streams, dict(sql), tuple(pushes))


TIME = "SELECT a.*, b.s AS other, b.l AS others FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k"
SCENES = {
    # The first arrays hold 1,024 rows: they grow before attaching, after it, and move without growing.
    "time windows": _growing(
        (300, 900, 800, 200, 1500, 40, 900), {"q": TIME, "text": TIME.replace("a.k = b.k", "a.s = b.s")}
    ),
    "count windows": _growing(
        (100, 500, 600, 5, 900, 300),
        {
            "rows": TIME.replace("a [RANGE 1 s]", "a [ROWS 20]"),
            "parts": TIME.replace("a [RANGE 1 s]", "a [PARTITION BY s ROWS 1]").replace("1 s", "50 ms"),
            "both": "SELECT a.s, b.l FROM a [ROWS 9], b [PARTITION BY b ROWS 9] WHERE a.d = b.d",
            "plain": TIME.replace("1 s", "100 ms"),
        },
        lateness=50_000,
    ),
    "nothing yet": _growing((0, 0, 0, 200, 200), {"q": TIME, "rows": TIME.replace("a [RANGE 1 s]", "a [ROWS 20]")}),
}


def same(found: Results, wanted: Results) -> None:
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert set(one) == set(other)
        for name in other:
            assert_same_rows(one[name], other[name], f"push {number}, query {name}")


def whole_run(scene: Scene) -> Results:
    return scene.push(scene.start(HeapArena()), 0, len(scene.pushes))


def hand_over(engine: ShardEngine, scene: Scene, directory: Path) -> ShardEngine:
    """Attach as another process would: through files and JSON alone."""
    return attach(MappedArena(directory), json.loads(json.dumps(arena_manifest(engine))), scene.plan())


def counters(engine: ShardEngine) -> dict[str, Any]:
    """Return the metrics that do not depend on the arena."""
    metrics = measure(engine).to_json()
    streams = {
        name: {k: v for k, v in stream.items() if k != "state_bytes"} for name, stream in metrics["streams"].items()
    }
    return streams | {name: query["results"] for name, query in metrics["queries"].items()}


# -- in this process --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENES)
def test_mapped_arrays_work_like_memory(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    same(scene.push(scene.start(MappedArena(tmp_path)), 0, len(scene.pushes)), whole_run(scene))


@pytest.mark.parametrize("name", SCENES)
def test_attaching_after_every_push_changes_no_results(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    uninterrupted = scene.start(HeapArena())
    engine = scene.start(MappedArena(tmp_path))
    for number in range(len(scene.pushes)):
        engine = hand_over(engine, scene, tmp_path)
        assert counters(engine) == counters(uninterrupted)
        same(scene.push(engine, number, number + 1), scene.push(uninterrupted, number, number + 1))
        assert counters(engine) == counters(uninterrupted)
    results = sum(table.num_rows for push in whole_run(scene) for table in push.values())
    assert results > (0 if name == "nothing yet" else 1000)


@pytest.mark.parametrize("seed", range(25))
def test_attaching_after_every_push_of_random_cases_changes_no_results(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.engine.storage.rows.SMALLEST_CAPACITY", 8)
    monkeypatch.setattr("dovetail.engine.storage.columns.texts._SMALLEST_HEAP", 8)
    monkeypatch.setattr("dovetail.engine.storage.columns.texts._LARGE_HEAP", 16)
    monkeypatch.setattr("dovetail.engine.storage.columns.nested._MOST_CHUNKS", 2)
    monkeypatch.setattr("dovetail.engine.storage.window._SMALLEST_REWRITE", 4)
    made = random_scenario(
        random.Random(seed), pushes=8, tuples=40, queries=2, count_windows=seed % 2 == 0, nested_payload=True
    )
    scene = Scene(made.streams, made.sql, made.pushes)
    engine, found = scene.start(MappedArena(tmp_path)), []
    for number in range(len(scene.pushes)):
        engine = hand_over(engine, scene, tmp_path)
        found += scene.push(engine, number, number + 1)
    same(found, whole_run(scene))


def test_a_query_added_after_attaching_sees_new_tuples_only(tmp_path: Path) -> None:
    scene = SCENES["time windows"]
    first, both = scene.plan("q"), scene.plan("q", "text", since={"text": 3})

    def run(*, mapped: bool) -> Results:
        engine = ShardEngine(scene.config, MappedArena(tmp_path) if mapped else HeapArena())
        for schema in scene.streams:
            engine.add_stream(schema)
        engine.adopt(first)
        results = scene.push(engine, 0, 3)
        if mapped:
            engine = attach(MappedArena(tmp_path), arena_manifest(engine), first)
        engine.adopt(both)
        results += scene.push(engine, 3, 5)
        if mapped:
            engine = attach(MappedArena(tmp_path), arena_manifest(engine), both)
        engine.adopt(ExecutionPlan.of(both.steps[1:], both))
        return results + scene.push(engine, 5, 7)

    same(run(mapped=True), run(mapped=False))


# -- in another process -----------------------------------------------------------------------------------------------------------


def elsewhere(directory: Path, name: str, first: int, stop: int) -> Results:
    """Let another process push batches `first` to `stop`."""
    source = Path(dt.__file__).resolve().parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, __file__, str(directory), name, str(first), str(stop)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    queries = SCENES[name].sql
    return [
        {
            query: pa.ipc.open_file(str(directory / f"{number}.{place}.arrow")).read_all()
            for place, query in enumerate(queries)
        }
        for number in range(first, stop)
    ]


def continue_elsewhere(directory: Path, name: str, first: int, stop: int) -> None:
    """Run as the other process: push batches `first` to `stop` and write the results."""
    scene = SCENES[name]
    stored = json.loads((directory / "manifest.json").read_text())
    engine = attach(MappedArena(directory / "arena"), stored, scene.plan())
    for number, results in enumerate(scene.push(engine, first, stop), start=first):
        for place, query in enumerate(scene.sql):
            with (
                pa.OSFile(str(directory / f"{number}.{place}.arrow"), "wb") as sink,
                pa.ipc.new_file(sink, results[query].schema) as writer,
            ):
                writer.write_table(results[query])
    (directory / "manifest.json").write_text(json.dumps(arena_manifest(engine)))


@pytest.mark.parametrize("name", ["time windows", "count windows"])
def test_another_process_continues_and_returns_the_arrays(name: str, tmp_path: Path) -> None:
    #   here        0 1                     4 5 ...
    #   elsewhere       2 3 (arrays grow)
    scene = SCENES[name]
    engine = scene.start(MappedArena(tmp_path / "arena"))
    found = scene.push(engine, 0, 2)
    (tmp_path / "manifest.json").write_text(json.dumps(arena_manifest(engine)))
    del engine
    found += elsewhere(tmp_path, name, 2, 4)
    stored = json.loads((tmp_path / "manifest.json").read_text())
    engine = attach(MappedArena(tmp_path / "arena"), stored, scene.plan())
    found += scene.push(engine, 4, len(scene.pushes))
    same(found, whole_run(scene))


# -- damaged or missing arrays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["time windows", "count windows"])
def test_a_missing_file_is_an_error_never_an_empty_window(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    engine = scene.start(MappedArena(tmp_path))
    scene.push(engine, 0, 3)
    stored, steps = arena_manifest(engine), scene.plan()
    files = sorted(tmp_path.iterdir())
    assert len(files) > 20
    for path in files:
        hidden = path.rename(path.with_name("hidden"))
        with pytest.raises(StateError, match="missing"):
            attach(MappedArena(tmp_path), stored, steps)
        hidden.rename(path)
    same(scene.push(attach(MappedArena(tmp_path), stored, steps), 3, 4), [whole_run(scene)[3]])


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    scene = SCENES["count windows"]
    engine = scene.start(MappedArena(tmp_path))
    scene.push(engine, 0, 3)
    stored, steps = arena_manifest(engine), scene.plan()
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.unlink()  # the engine above keeps its mapping
        path.write_bytes(whole[: len(whole) // 16 * 8])
        with pytest.raises(StateError):
            attach(MappedArena(tmp_path), stored, steps)
        path.write_bytes(whole)


def test_attaching_with_steps_that_did_not_run_is_an_error(tmp_path: Path) -> None:
    scene = SCENES["time windows"]
    engine = scene.start(MappedArena(tmp_path))
    engine.adopt(scene.plan("q"))
    scene.push(engine, 0, 2)
    with pytest.raises(StateError, match="'text'"):
        attach(MappedArena(tmp_path), arena_manifest(engine), scene.plan())


def test_arrays_of_another_format_are_an_error(tmp_path: Path) -> None:
    """Older arrays have chains without tags, so a newer release must rebuild them."""
    scene = SCENES["time windows"]
    engine = scene.start(MappedArena(tmp_path))
    scene.push(engine, 0, 2)
    left = arena_manifest(engine)
    for other, said in (({}, 1), ({"arrays": ARRAYS + 1}, ARRAYS + 1)):
        stored = {name: value for name, value in left.items() if name != "arrays"} | other
        with pytest.raises(
            StateError, match=f"the arrays have format {said}; this release attaches to format {ARRAYS}"
        ):
            attach(MappedArena(tmp_path), stored, scene.plan())


def test_windows_missing_from_the_manifest_are_an_error(tmp_path: Path) -> None:
    scene = SCENES["count windows"]
    engine = scene.start(MappedArena(tmp_path))
    scene.push(engine, 0, 3)
    stored = arena_manifest(engine)
    for name in stored["stores"]:
        some = {other: position for other, position in stored["stores"].items() if other != name}
        with pytest.raises(StateError, match="not listed"):
            attach(MappedArena(tmp_path), {**stored, "stores": some}, scene.plan())
    attach(MappedArena(tmp_path), stored, scene.plan())


def test_pending_nested_values_survive_attaching(tmp_path: Path) -> None:
    """An emptied window keeps the name of its next chunk reserved."""
    columns = pa.schema([("ts", TS), ("k", pa.int64()), ("l", pa.list_(pa.int64()))])
    streams = tuple(StreamSchema(name, columns, "ts") for name in "ab")

    def table(*times: int) -> pa.Table:
        return pa.table([list(times), [1] * len(times), [[time] for time in times]], schema=columns)

    sql = "SELECT b.ts, b.l FROM a [ROWS 1], b [RANGE 1 s] WHERE a.k = b.k"
    arrivals = (("a", 10), ("b", 1), ("b", 2), ("b", 20, 21), ("b", 22), ("a", 11, 99))
    pushes = tuple({name: table(*times)} for name, *times in arrivals)
    scene = Scene(streams, {"q": sql}, pushes)
    engine, found = scene.start(MappedArena(tmp_path)), []
    for number in range(len(pushes)):
        engine = hand_over(engine, scene, tmp_path)
        found += scene.push(engine, number, number + 1)
    assert sum(push["q"].num_rows for push in found) == 7
    assert all(row["l"] == [int(row["ts"].timestamp() * 1e6)] for push in found for row in push["q"].to_pylist())
    same(found, whole_run(scene))


def test_a_heap_arena_cannot_be_attached_to() -> None:
    scene = SCENES["time windows"]
    engine = scene.start(HeapArena())
    scene.push(engine, 0, 1)
    with pytest.raises(StateError, match="another process's memory"):
        attach(HeapArena(), arena_manifest(engine), scene.plan())


def _named(tmp_path: Path, *names: str) -> None:
    """Run a join on columns of these names, in files, with a hand-over."""
    columns = pa.schema([("ts", TS), *((name, pa.int64()) for name in names)])
    streams = tuple(StreamSchema(stream, columns, "ts") for stream in "ab")
    equal = " AND ".join(f"a.`{name}` = b.`{name}`" for name in names)
    table = pa.Table.from_arrays(
        [pa.array(range(50), TS), *([pa.array(range(i, i + 50)) for i in range(len(names))])], schema=columns
    )
    sql = f"SELECT * FROM a [RANGE 1 s], b [RANGE 1 s] WHERE {equal}"
    scene = Scene(streams, {"q": sql}, ({"a": table}, {"b": table}))
    engine = scene.start(MappedArena(tmp_path))
    found = scene.push(engine, 0, 1)
    found += scene.push(hand_over(engine, scene, tmp_path), 1, 2)
    assert found[1]["q"].num_rows == 50
    same(found, whole_run(scene))


def test_column_names_that_are_not_file_names(tmp_path: Path) -> None:
    _named(tmp_path, "a/b", "..", "x y", "ä", "*")


def test_column_names_that_look_escaped(tmp_path: Path) -> None:
    _named(tmp_path, "a/b", "a%2Fb")


def test_composite_keys_of_long_column_names(tmp_path: Path) -> None:
    _named(tmp_path, *(f"a rather long name of a column, number {number}" for number in range(10)))


if __name__ == "__main__":
    continue_elsewhere(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
