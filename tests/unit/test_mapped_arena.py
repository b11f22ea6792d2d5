"""A shard's arrays in files: another process attaches to them and goes on as if nothing had happened.

Run as a program, this file is that other process: `python test_mapped_arena.py DIRECTORY SCENE FIRST STOP`.
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

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.engine.measure import measure
from dovetail.engine.persist.snapshot import ARRAYS, attach, left_in_arena
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import Arena, HeapArena, MappedArena
from dovetail.engine.storage.window import WindowStore
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
        """The plan of all queries, or of some; `since`: those that came later."""
        catalog = {schema.name: schema for schema in self.streams}
        steps = []
        for name in names or self.sql:
            plan = plan_query(parse_query(name, self.sql[name], catalog), catalog, self.config)
            steps.append(Lowering(catalog, self.config, (since or {}).get(name, 0)).own(plan))
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
    """Tuples a millisecond apart, a fifth of all values NULL."""

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
    # 1,024 rows fit the first arrays: they grow before the hand-over, after it, and move without growing.
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
    return attach(MappedArena(directory), json.loads(json.dumps(left_in_arena(engine))), scene.plan())


def counters(engine: ShardEngine) -> dict[str, Any]:
    """What does not depend on where arrays are kept."""
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
def test_hand_over_after_every_push(name: str, tmp_path: Path) -> None:
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
def test_hand_over_of_random_scenes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            engine = attach(MappedArena(tmp_path), left_in_arena(engine), first)
        engine.adopt(both)
        results += scene.push(engine, 3, 5)
        if mapped:
            engine = attach(MappedArena(tmp_path), left_in_arena(engine), both)
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
    """The other process."""
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
    (directory / "manifest.json").write_text(json.dumps(left_in_arena(engine)))


@pytest.mark.parametrize("name", ["time windows", "count windows"])
def test_another_process_goes_on_and_gives_back(name: str, tmp_path: Path) -> None:
    #   here        0 1                     4 5 ...
    #   elsewhere       2 3 (arrays grow)
    scene = SCENES[name]
    engine = scene.start(MappedArena(tmp_path / "arena"))
    found = scene.push(engine, 0, 2)
    (tmp_path / "manifest.json").write_text(json.dumps(left_in_arena(engine)))
    del engine
    found += elsewhere(tmp_path, name, 2, 4)
    stored = json.loads((tmp_path / "manifest.json").read_text())
    engine = attach(MappedArena(tmp_path / "arena"), stored, scene.plan())
    found += scene.push(engine, 4, len(scene.pushes))
    same(found, whole_run(scene))


# -- what may go wrong ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["time windows", "count windows"])
def test_a_missing_file_is_an_error_never_an_empty_window(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    engine = scene.start(MappedArena(tmp_path))
    scene.push(engine, 0, 3)
    stored, steps = left_in_arena(engine), scene.plan()
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
    stored, steps = left_in_arena(engine), scene.plan()
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.unlink()  # the engine above keeps its own
        path.write_bytes(whole[: len(whole) // 16 * 8])
        with pytest.raises(StateError):
            attach(MappedArena(tmp_path), stored, steps)
        path.write_bytes(whole)


def test_steps_that_did_not_run_are_an_error(tmp_path: Path) -> None:
    scene = SCENES["time windows"]
    engine = scene.start(MappedArena(tmp_path))
    engine.adopt(scene.plan("q"))
    scene.push(engine, 0, 2)
    with pytest.raises(StateError, match="'text'"):
        attach(MappedArena(tmp_path), left_in_arena(engine), scene.plan())


def test_arrays_of_another_format_are_an_error(tmp_path: Path) -> None:
    """Chains without tags would lead nowhere: a release that finds an older one's arrays has to rebuild them."""
    scene = SCENES["time windows"]
    engine = scene.start(MappedArena(tmp_path))
    scene.push(engine, 0, 2)
    left = left_in_arena(engine)
    for other, said in (({}, 1), ({"arrays": ARRAYS + 1}, ARRAYS + 1)):
        stored = {name: value for name, value in left.items() if name != "arrays"} | other
        with pytest.raises(
            StateError, match=f"the arrays have format {said}; this release attaches to format {ARRAYS}"
        ):
            attach(MappedArena(tmp_path), stored, scene.plan())


def test_windows_that_are_not_listed_are_an_error(tmp_path: Path) -> None:
    scene = SCENES["count windows"]
    engine = scene.start(MappedArena(tmp_path))
    scene.push(engine, 0, 3)
    stored = left_in_arena(engine)
    for name in stored["stores"]:
        some = {other: position for other, position in stored["stores"].items() if other != name}
        with pytest.raises(StateError, match="not listed"):
            attach(MappedArena(tmp_path), {**stored, "stores": some}, scene.plan())
    attach(MappedArena(tmp_path), stored, scene.plan())


def test_nested_values_that_wait_come_back_after_a_hand_over(tmp_path: Path) -> None:
    """A window that was emptied gives the name of its next chunk to nobody else."""
    columns = pa.schema([("ts", TS), ("k", pa.int64()), ("l", pa.list_(pa.int64()))])
    streams = tuple(StreamSchema(name, columns, "ts") for name in "ab")

    def table(*times: int) -> pa.Table:
        return pa.table([list(times), [1] * len(times), [[time] for time in times]], schema=columns)

    sql = "SELECT b.ts, b.l FROM a [ROWS 1], b [RANGE 1 s] WHERE a.k = b.k"
    pushes = (
        {"a": table(10)},
        {"b": table(1)},
        {"b": table(2)},
        {"b": table(20, 21)},
        {"b": table(22)},
        {"a": table(11, 99)},
    )
    scene = Scene(streams, {"q": sql}, pushes)
    engine, found = scene.start(MappedArena(tmp_path)), []
    for number in range(len(pushes)):
        engine = hand_over(engine, scene, tmp_path)
        found += scene.push(engine, number, number + 1)
    assert sum(push["q"].num_rows for push in found) == 7
    assert all(row["l"] == [int(row["ts"].timestamp() * 1e6)] for push in found for row in push["q"].to_pylist())
    same(found, whole_run(scene))


@pytest.mark.parametrize("megabytes", [1, 16])
def test_a_seal_is_whole_or_samples(megabytes: int, tmp_path: Path) -> None:
    """Up to a few megabytes any bit is noticed; of more, any stretch as long as the samples are apart, and a bit now and then."""
    content = np.random.default_rng(1).integers(0, 1 << 62, megabytes << 17, dtype=np.int64)
    noticed = 0
    for attempt in range(60):
        writer = MappedArena(tmp_path)
        array = writer.allocate("a", np.int64, len(content))
        array[:] = content
        seal = writer.seal({}, salt=attempt * 7919)
        opened(tmp_path, seal, np.int64, len(content))
        places = random.Random(attempt).sample(range(len(content)), 1 if megabytes == 1 else 8)
        array[places] ^= 1
        noticed += is_refused(tmp_path, seal, len(content))
        array[places] ^= 1
        apart = 512 * seal["stride"]
        first = random.Random(attempt).randrange(len(content) - apart) if megabytes > 1 else 0
        array[first : first + apart + 512] = 0
        assert is_refused(tmp_path, seal, len(content))
    assert noticed == 60 if megabytes == 1 else 0 < noticed < 40


def opened(directory: Path, seal: Mapping[str, Any], dtype: type, length: int) -> None:
    arena = MappedArena(directory, seal)
    arena.opening = True
    assert len(arena.allocate("a", dtype, length)) == length


def is_refused(directory: Path, seal: Mapping[str, Any], length: int) -> bool:
    try:
        opened(directory, seal, np.int64, length)
    except StateError:
        return True
    return False


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4095, 4096, 4097, 20_001])
def test_every_byte_of_an_odd_length_counts(size: int, tmp_path: Path) -> None:
    writer = MappedArena(tmp_path)
    array = writer.allocate("a", np.uint8, size)
    array[:] = np.arange(size) % 251
    first = size // 3
    seal = writer.seal({"a": (first, size)}, 0)
    for place in {*range(first, min(first + 20, size)), *range(max(first, size - 20), size)}:
        array[place] ^= 64
        with pytest.raises(StateError, match="sealed"):
            opened(tmp_path, seal, np.uint8, size)
        array[place] ^= 64
    array[: first // 8 * 8] = 0  # nothing that matters
    arena = MappedArena(tmp_path, seal)
    with pytest.raises(StateError, match="does not know"):
        arena.check_complete()
    arena.opening = True
    arena.allocate("a", np.uint8, size)
    arena.check_complete()


def test_memory_cannot_be_attached_to() -> None:
    scene = SCENES["time windows"]
    engine = scene.start(HeapArena())
    scene.push(engine, 0, 1)
    with pytest.raises(StateError, match="another process's memory"):
        attach(HeapArena(), left_in_arena(engine), scene.plan())


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


def test_names_that_are_not_file_names(tmp_path: Path) -> None:
    _named(tmp_path, "a/b", "..", "x y", "ä", "*")


def test_names_that_look_escaped(tmp_path: Path) -> None:
    _named(tmp_path, "a/b", "a%2Fb")


def test_long_keys(tmp_path: Path) -> None:
    _named(tmp_path, *(f"a rather long name of a column, number {number}" for number in range(10)))


if __name__ == "__main__":
    continue_elsewhere(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))


def test_rows_are_found_by_their_numbers() -> None:
    store, empty = (WindowStore(HeapArena(), name, numbered=True) for name in ("w", "e"))
    store.append(NewRows(np.array([1, 2, 3]), {}, {}, {}, [], numbers=np.array([30, 10, 20])))
    assert store.rows_of(np.array([10, 30])).tolist() == [1, 0]
    assert store.numbers_of(np.array([1, 0])).tolist() == [10, 30]
    assert empty.rows_of(np.zeros(0, np.int64)).tolist() == []
    for window, number in ((store, 11), (store, 99), (store, 1), (empty, 3)):
        with pytest.raises(StateError, match="does not have the tuples"):
            window.rows_of(np.array([number]))
