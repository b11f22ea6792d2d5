"""Cut and shards give the oracle's results for any query, number of shards, cut into tasks, and failed attempts."""

from __future__ import annotations

import copy
import json
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pipeline import Pipeline, Segments, layout_of
from pyspark.serializers import CloudPickleSerializer

import dovetail as dt
from dovetail.engine.join import path as probe
from dovetail.engine.persist import mapped as sealed
from dovetail.errors import ConfigError, StateError
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema, sql_type
from dovetail.spark.checkpoint.plan_log import pack, unpack
from dovetail.spark.state.log import MANIFEST, MAX_SMALL_SEGMENTS, ShardLog
from dovetail.spark.state.shared_memory import SharedMemoryShard
from dovetail.spark.wire import FRAME_BYTES, FRAME_ROWS
from dovetail.spark.worker import router as cut
from dovetail.spark.worker.callbacks import ShardProcessor, router_function
from dovetail.spark.worker.processor import ShardAttempt
from dovetail.testing import Oracle, RandomCase, assert_same_rows, random_scenario


def spark_scenario(rng: random.Random, **options: object) -> RandomCase:
    """A scenario with event times as Spark has them: microseconds."""
    scenario = random_scenario(rng, **options)

    def micros(stream: StreamSchema) -> pa.Schema:
        place = stream.columns.get_field_index(stream.event_time)
        field = stream.columns.field(place)
        return stream.columns.set(place, field.with_type(pa.timestamp("us", field.type.tz)))

    streams = tuple(replace(stream, columns=micros(stream)) for stream in scenario.streams)
    schemas = {stream.name: stream.columns for stream in streams}
    pushes = tuple({n: t.cast(schemas[n], safe=False) for n, t in push.items()} for push in scenario.pushes)
    return RandomCase(streams, scenario.sql, pushes)


def compare(
    scenario: RandomCase, shards: int, live: Path, rng: random.Random, fail: float = 0.0, lose: float = 0.0
) -> Pipeline:
    pipeline = Pipeline(layout_of(scenario.streams, scenario.sql, shards), live, rng)
    oracle = Oracle(scenario.streams)
    for name, sql in scenario.sql.items():
        oracle.add_query(parse_query(name, sql, scenario.catalog))
    found: dict[str, list[pa.Table]] = {name: [] for name in scenario.sql}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "EMIT_ROWS", rng.choice((3, 1 << 20)))
        for batch in scenario.pushes:
            if rng.random() < lose:
                pipeline.live = live / str(rng.random())  # another host, or a restart: nothing is there
            for name, tables in pipeline.run(batch, tasks=rng.randint(1, 3), fail=fail).items():
                found[name] += tables
            oracle.push(batch)
    for name in scenario.sql:
        expected = oracle.results_table(name)
        actual = pa.concat_tables(found[name]) if found[name] else expected.slice(0, 0)
        assert_same_rows(actual, expected, f"{shards} shards: {scenario.sql[name]}")
    return pipeline


@pytest.mark.parametrize("shards", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", range(24))
def test_any_query_on_any_number_of_shards(seed: int, shards: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    compare(spark_scenario(rng), shards, tmp_path, rng)


@pytest.mark.parametrize("seed", range(30))
def test_stream_options_as_in_one_process(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(6000 + seed)
    monkeypatch.setattr("dovetail.spark.worker.processor.SLICE_ROWS", rng.choice((3, 10, 1 << 16)))
    scenario = spark_scenario(rng, pushes=7)
    streams = tuple(replace(stream, **random_options(stream, rng)) for stream in scenario.streams)
    scenario = RandomCase(streams, scenario.sql, scenario.pushes)
    session = dt.LocalSession()
    for s in streams:
        options = {
            name: value and value / 1e6 for name, value in (("idle_after", s.idle_after), ("max_ahead", s.max_ahead))
        }
        session.stream(s.name, s.columns, s.event_time, s.lateness / 1e6, s.rate, progress_by=s.progress_by, **options)
    for name, sql in scenario.sql.items():
        session.query(name, sql)
    pipeline = Pipeline(layout_of(streams, scenario.sql, rng.choice((1, 2, 6))), tmp_path, rng)
    times = [
        int(t) for push in scenario.pushes for s in streams if s.name in push for t in event_times(s, push[s.name])
    ]
    clock = sorted(rng.choice(times) for _ in scenario.pushes) if times else []
    for push, now in zip(scenario.pushes, clock, strict=False):
        if rng.random() < 0.2:
            pipeline.live = tmp_path / str(rng.random())
        found = pipeline.run(push, tasks=rng.randint(1, 3), fail=0.2, now=now)
        if not any(len(table) for table in push.values()):
            continue  # Spark runs no batch without tuples
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now)
        for name, wanted in session.push(push, moment).items():
            actual = pa.concat_tables(found[name]) if found[name] else wanted.slice(0, 0)
            assert_same_rows(actual, wanted, scenario.sql[name])
    totals: dict[str, Counter[str]] = {stream.name: Counter() for stream in streams}
    for metrics in pipeline.metrics.values():
        for name, entry in metrics["streams"].items():
            totals[name].update({kind: entry[kind] for kind in ("arrivals", "ahead", "late")})
    used = {ref.stream for sql in scenario.sql.values() for ref in parse_query("q", sql, scenario.catalog).refs}
    counted: Any
    for name, counted in session.metrics()["streams"].items():
        if name in used:
            kinds = ("arrivals", "ahead", "late")
            assert {kind: totals[name][kind] for kind in kinds} == {kind: counted[kind] for kind in kinds}


def event_times(stream: StreamSchema, table: pa.Table) -> list[int]:
    times: list[int] = table.column(stream.event_time).cast(pa.int64()).to_pylist()
    return times


def random_options(stream: StreamSchema, rng: random.Random) -> dict[str, Any]:
    others = [field for field in stream.columns if field.name != stream.event_time]
    comparable = [field.name for field in others if sql_type(field.type) is not None]
    return {
        "progress_by": rng.choice([None, rng.choice(comparable)]),
        "idle_after": rng.choice([None, rng.randrange(5_000_000)]),
        "max_ahead": rng.choice([None, rng.randrange(5_000_000)]),
    }


@pytest.mark.parametrize("seed", range(24))
def test_failed_attempts_leave_no_trace(seed: int, tmp_path: Path) -> None:
    rng = random.Random(1000 + seed)
    compare(spark_scenario(rng, pushes=6), rng.choice((1, 3, 4)), tmp_path, rng, fail=0.4)


@pytest.mark.parametrize("seed", range(24))
def test_shards_are_rebuilt_from_their_log(seed: int, tmp_path: Path) -> None:
    rng = random.Random(2000 + seed)
    compare(spark_scenario(rng, pushes=6), rng.choice((1, 3, 4)), tmp_path, rng, lose=0.4)


def test_large_results_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.spark.wire.MAX_RESULT_BYTES", 500)
    monkeypatch.setattr("dovetail.spark.worker.router._LARGEST_PIECE", 500)
    monkeypatch.setattr("dovetail.spark.worker.router._PADDING_THRESHOLD_BYTES", 2000)
    monkeypatch.setattr("dovetail.spark.wire.FRAME_BYTES", 1 << 20)
    for seed in range(8):
        rng = random.Random(3000 + seed)
        compare(spark_scenario(rng), 3, tmp_path / str(seed), rng)


def test_frames_that_end_by_rows_are_not_too_large() -> None:
    """Spark closes a frame after so many rows of a shard, however large they are."""
    columns = pa.schema([("t", TIMESTAMP), ("k", pa.int64()), ("v", pa.string())])
    streams = tuple(StreamSchema(name, columns, "t") for name in ("a", "b"))
    layout = layout_of(streams, {"q": "SELECT a.v FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k"}, 2)
    few, text = 1000, "x" * 1000
    piece = pa.record_batch([pa.array(range(few), TIMESTAMP), pa.array(range(few)), [text] * few], schema=columns)
    rows = pa.Table.from_batches(
        router_function(pack([layout.for_workers("").to_json()]), 0, [0, 1], "run")(iter([piece] * 300))
    )
    for shard in (0, 1):
        sizes = pc.fill_null(pc.binary_length(rows.filter(pc.field("shard") == shard)["content"]), 0).to_numpy()
        frames = np.add.reduceat(sizes, range(0, len(sizes), FRAME_ROWS))
        assert len(frames) > 2
        assert max(frames) < FRAME_BYTES + 2 * cut._PADDING_THRESHOLD_BYTES
    assert np.count_nonzero(rows["content"].is_valid()) < len(rows) < 300 * few / 4


@pytest.mark.parametrize("seed", range(24))
def test_a_batch_may_be_joined_in_slices(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.spark.worker.processor.SLICE_ROWS", seed % 6 + 1)
    rng = random.Random(7000 + seed)
    compare(spark_scenario(rng, pushes=4), rng.choice((1, 2, 4)), tmp_path, rng, fail=0.1, lose=0.3)


def test_many_segments_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.spark.state.log.MAX_SMALL_SEGMENTS", 2)
    for seed in range(8):
        rng = random.Random(4000 + seed)
        pipeline = compare(spark_scenario(rng, pushes=6), 2, tmp_path / str(seed), rng, lose=0.5)
        for segments in pipeline.states.values():
            held = [segment["stream"] for segment in segments.manifest["segments"]]
            assert len(held) == len(segments.content) - 1
            assert all(held.count(stream) <= 3 for stream in held)


def test_a_long_window_is_not_written_again_with_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.spark.state.log.SMALL_SEGMENT_BYTES", 20_000)
    stream = StreamSchema("s", pa.schema([("ts", TIMESTAMP)]), "ts")
    log = ShardLog(Segments(), "layout")
    written = []
    for batch in range(600):
        table = pa.table({"ts": pa.array([batch] * 50, TIMESTAMP)})
        before = {segment.number for segment in log.manifest.segments}
        log.append(stream, table, batch)
        log.compact(stream, 0)
        written.append(sum(s.size for s in log.manifest.segments if s.number not in before))
    assert sum(len(tables["s"]) for _, tables in log.read_all()) == 600 * 50
    large = [segment for segment in log.manifest.segments if segment.size >= 20_000]
    assert len(large) > MAX_SMALL_SEGMENTS
    assert len(log.manifest.segments) <= len(large) + MAX_SMALL_SEGMENTS
    assert sum(size > 2 * min(written) for size in written) <= len(written) / MAX_SMALL_SEGMENTS


def test_live_shards_are_found_again(tmp_path: Path) -> None:
    pipeline = compare(spark_scenario(random.Random(5), pushes=6, aliases=3), 4, tmp_path, random.Random(5))
    assert pipeline.rebuilt == 0
    assert pipeline.calls > 2 * len(pipeline.metrics)


# -- damaged live arrays ----------------------------------------------------------------------------------------------------------


@dataclass
class Halfway:
    """A shard after some batches, what comes next, and what that must give."""

    pipeline: Pipeline
    batch: dict[str, pa.Table]
    wanted: dict[str, Counter[str]]

    @property
    def token(self) -> str:
        return str(self.pipeline.states[0].manifest["token"])

    @property
    def directory(self) -> Path:
        return self.pipeline.live / "0" / self.token

    @property
    def files(self) -> dict[str, list[int]]:
        """By file: its length, where the part that matters begins and ends, its sum."""
        stored = json.loads((self.directory / "engine.json").read_bytes()[16:])
        return dict(stored["seal"]["files"])

    def refuses(self, damage: Callable[[Path], object], here: Path) -> bool:
        """Damage a copy of the arrays; say whether an attempt refuses it."""
        shutil.copytree(self.directory, here)
        damage(here)
        plan = self.pipeline.plan
        log = ShardLog(self.pipeline.states[0], plan.digest)
        attempt = ShardAttempt(plan, 0, log, SharedMemoryShard(self.pipeline.live, 0))
        try:
            attempt._check_matches_log(sealed.read_mapped(here, self.token, plan.plan_of(0), Replanner(plan.config)))
        except StateError:
            return True
        finally:
            shutil.rmtree(here)
        return False

    def go_on(self, damage: Callable[[Path], object], here: Path) -> bool:
        """Damage a copy, run the batch on it, compare; say whether the shard was rebuilt."""
        shutil.copytree(self.pipeline.live, here)
        damage(here / "0" / self.token)
        pipeline = copy.copy(self.pipeline)
        pipeline.states, pipeline.live, pipeline.rebuilt = copy.deepcopy(self.pipeline.states), here, 0
        found = pipeline.run(self.batch)
        for name, wanted in self.wanted.items():
            assert counted(found[name]) == wanted
        shutil.rmtree(here)
        return pipeline.rebuilt == 1


def counted(tables: list[pa.Table]) -> Counter[str]:
    return Counter(str(row) for table in tables for row in table.to_pylist())


PAYLOAD = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.string()))])
TIMED = "SELECT a.s, b.l, c.k FROM a [RANGE {0} ms], b [RANGE {0} ms], c [RANGE {0} ms] WHERE a.k = b.k AND b.s = c.s"
SCENES = {
    "windows": {"q": "SELECT a.s, b.l, b.k FROM a [RANGE 60 ms], b [RANGE 60 ms] WHERE a.k = b.k AND a.s <= b.s"},
    "stored sub-joins": {"q": TIMED.format(30), "r": TIMED.format(40) + " AND a.s <> c.s"},
    "count windows": {"q": "SELECT a.l, b.s FROM a [ROWS 20], b [PARTITION BY s ROWS 3] WHERE a.k = b.k"},
}


def halfway(sql: dict[str, str], live: Path, size: int = 40) -> Halfway:
    rng = random.Random(3)
    streams = tuple(StreamSchema(name, PAYLOAD, "ts", 10_000) for name in ("abc" if " c " in str(sql) else "ab"))

    def table(first: int) -> pa.Table:
        numbers = range(first, first + size)
        texts = [rng.choice(("é", "xyz", "some longer text", None)) for _ in numbers]
        nested = [rng.choice(([], ["a", None], None)) for _ in numbers]
        return pa.table(
            [[1000 * n for n in numbers], [rng.randint(0, 19) for _ in numbers], texts, nested], schema=PAYLOAD
        )

    batches = [{stream.name: table(number * size) for stream in streams} for number in range(3)]
    pipeline = Pipeline(layout_of(streams, sql, 1, dt.Config(strategy="bjtree")), live, rng)
    oracle = Oracle(streams)
    for name, text in sql.items():
        oracle.add_query(parse_query(name, text, {stream.name: stream for stream in streams}))
    given: dict[str, list[pa.Table]] = {name: [] for name in sql}
    for number, batch in enumerate(batches):
        oracle.push(batch)
        for name, tables in pipeline.run(batch).items() if number < 2 else ():
            given[name] += tables
    results = {name: counted([oracle.results_table(name)]) for name in sql}
    wanted = {name: results[name] - counted(given[name]) for name in sql}
    assert all(counted(given[name]) and wanted[name] for name in sql)
    return Halfway(pipeline, batches[2], wanted)


def overwrite(file: str, content: bytes | None) -> Callable[[Path], object]:
    """Put other content in place of a file, or remove it."""
    return lambda path: (path / file).unlink() if content is None else (path / file).write_bytes(content)


@pytest.mark.parametrize("name", SCENES)
def test_any_damage_to_any_live_array_is_noticed(name: str, tmp_path: Path) -> None:
    scene = halfway(SCENES[name], tmp_path / "live")
    assert not scene.go_on(lambda _: None, tmp_path / "copy")
    rng, files = random.Random(1), scene.files
    contents = {file: (scene.directory / file).read_bytes() for file in files}
    noticed: Counter[str] = Counter()
    for file, (size, first, stop, _) in files.items():
        content = contents[file]
        assert len(content) == size
        others = [
            other for other in contents.values() if len(other) == size and other[first:stop] != content[first:stop]
        ]
        kinds = {"truncated": content[: size // 2], "lengthened": content + bytes(8), "empty": b""}
        if first < stop:
            place = rng.randrange(first, stop)
            kinds["a bit"] = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
            if any(content[first:stop]):
                kinds["zeroed"] = bytes(size)
            if others:
                kinds["another's"] = rng.choice(others)
        for kind, damaged in kinds.items():
            assert scene.refuses(overwrite(file, damaged), tmp_path / "copy"), kind
            noticed[kind] += 1
        assert scene.go_on(overwrite(file, kinds[rng.choice(list(kinds))]), tmp_path / "copy")
        assert scene.refuses(overwrite(file, None), tmp_path / "copy")
    assert min(noticed.values()) > 5
    assert set(noticed) == {"truncated", "lengthened", "empty", "a bit", "zeroed", "another's"}


REMOVED = object()


def listing(stored: dict[str, Any], token: str, place: tuple[Any, ...] = (), value: object = None) -> bytes:
    """`engine.json` with one thing in it changed or removed, and a digest that fits."""
    stored = copy.deepcopy(stored)
    holder: Any = stored
    for key in place[:-1]:
        holder = holder[key]
    if value is REMOVED:
        del holder[place[-1]]
    elif place:
        holder[place[-1]] = value
    content = json.dumps(stored).encode()
    return sealed._digest(content, token) + content


def damaged_listings(scene: Halfway) -> dict[str, bytes | None]:
    content = (scene.directory / "engine.json").read_bytes()
    stored, half = json.loads(content[16:]), len(content) // 2
    found: dict[str, bytes | None] = {
        "missing": None,
        "nothing": b"",
        "garbage": b"garbage" * 100,
        "cut short": content[:half],
        "a bit": content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :],
        "no digest": content[16:],
        "longer": content + b" ",
        "another state's": listing(stored, "another token"),
    }
    changes: list[tuple[tuple[Any, ...], object]] = []
    for key, value in stored.items():
        changes += [((key,), REMOVED)] + [((key,), type(value)())] * bool(value)
    changes.append((("streams", 0, "progress", "head"), 5))
    changes += [((kind, name), REMOVED) for kind in ("groups", "runs") for name in stored[kind]]
    for number, (_, _, _, consumers, _, sources) in enumerate(stored["outline"]):
        path = ("outline", number)
        changes += [(path, REMOVED), ((*path, 1), 7), ((*path, 3), consumers[1:] if consumers else ["x"])]
        changes += [((*path, 5, place, column), 1 << 20) for place in range(len(sources)) for column in (1, 2)]
        changes.append(((*path, 2), True))
    for store, position in stored["stores"].items():
        rows, columns = ("stores", store, "rows"), ("stores", store, "columns")
        changes.append((("stores", store), REMOVED))
        for number, value in ((0, -1), (1, 1 << 40), (2, 1 << 40), (3, 1000), (3, 1 << 40), (3, "x"), (2, 0.5)):
            changes.append(((*rows, number), value))
        for column, numbers in position["columns"].items():
            if numbers:
                changes.append(((*columns, column), REMOVED))
            changes += [((*columns, column, number), 1 << 40) for number in range(len(numbers))]
    for path, value in changes:
        shown = "removed" if value is REMOVED else value
        found[f"{path}: {shown}"] = listing(stored, scene.token, path, value)
    return found


@pytest.mark.parametrize("name", SCENES)
def test_a_listing_that_does_not_fit_is_never_an_engine_with_less_in_it(name: str, tmp_path: Path) -> None:
    scene = halfway(SCENES[name], tmp_path / "live")
    kinds = {kind: overwrite("engine.json", content) for kind, content in damaged_listings(scene).items()}
    assert len(kinds) > 40
    passed = {kind for kind, damage in kinds.items() if not scene.refuses(damage, tmp_path / "copy")}
    assert not passed
    for kind in random.Random(1).sample(sorted(set(kinds) - passed), 15):
        assert scene.go_on(kinds[kind], tmp_path / "copy"), kind


# -- a damaged log ----------------------------------------------------------------------------------------------------------------


def test_a_damaged_manifest_is_an_error_and_never_a_smaller_log() -> None:
    stream = StreamSchema("s", pa.schema([("ts", TIMESTAMP)]), "ts")
    segments = Segments()
    log = ShardLog(segments, "layout")
    for batch in range(3):
        log.append(stream, pa.table({"ts": pa.array([batch] * 5, TIMESTAMP)}), batch)
    log.manifest.token = uuid.uuid4().hex
    log.save()
    assert sum(len(tables["s"]) for _, tables in ShardLog(segments, "layout").read_all()) == 15
    whole, stored = segments.content[MANIFEST], segments.manifest
    damaged = [
        whole[: len(whole) // 2],
        b"",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        whole.replace(b'"newest": 2', b'"newest": 1'),
    ]
    damaged += [json.dumps({**stored, "segments": stored["segments"][1:]}).encode()]
    damaged += [
        json.dumps({**stored, key: None}).encode() for key in stored if key != "digest" and stored[key] is not None
    ]
    damaged += [json.dumps({k: v for k, v in stored.items() if k != key}).encode() for key in stored if key != "digest"]
    for content in damaged:
        segments.content[MANIFEST] = content
        with pytest.raises(StateError, match=r"damaged|version|belongs to other"):
            ShardLog(segments, "layout")
    earlier = {key: value for key, value in stored.items() if key != "digest"}  # as earlier releases wrote it
    segments.content[MANIFEST] = json.dumps(earlier).encode()
    assert sum(len(tables["s"]) for _, tables in ShardLog(segments, "layout").read_all()) == 15
    earlier["segments"][0]["rows"] = 4
    segments.content[MANIFEST] = json.dumps(earlier).encode()
    with pytest.raises(StateError, match="5 tuples"):
        list(ShardLog(segments, "layout").read_all())


def test_plans_of_many_queries_fit_a_stateful_operator() -> None:
    """Spark cannot prepare one whose function takes more than a megabyte."""
    columns = pa.schema([("t", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64())])
    streams = tuple(StreamSchema(name, columns, "t") for name in "abcd")
    windows = ", ".join(f"{name} [RANGE 9 SECONDS]" for name in "abcd")
    sql = f"SELECT a.v FROM {windows} WHERE a.k = b.k AND b.k = c.k AND c.k = d.k AND a.v < "
    text = layout_of(streams, {f"q{most}": f"{sql}{most}" for most in range(300)}, 2).for_workers("").to_json()
    assert len(text) > 1 << 20
    packed = pack([text] * 3)
    pickled: bytes = CloudPickleSerializer().dumps(ShardProcessor(packed, [0, 1], "run"))  # type: ignore[no-untyped-call]
    assert len(pickled) < 1 << 18
    plans = unpack(packed)
    assert [plan.to_json() for plan in plans] == [text] * 3
    noise = np.random.default_rng(1).bytes(1 << 20).hex()
    with pytest.raises(
        ConfigError,
        match=r"the plan for workers takes .* bytes; Spark's stateful operators take at most(.|\n)*divide the queries",
    ):
        pack([noise])
