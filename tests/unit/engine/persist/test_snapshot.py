"""Untrusted snapshots: for any bytes, `restore` returns a working session or raises `StateError`.

Run as a program, this file damages snapshots, recomputes their checksums and restores them, so that a crash is visible:
`python test_snapshot.py SEED COUNT`.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import resource
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

import dovetail as dt
from dovetail.engine.join import watch
from dovetail.engine.persist import snapshot
from dovetail.errors import StateError

TS = pa.timestamp("us", tz="UTC")
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
ROWS = 60
CHUNK = 50
"""Mutations in one process."""
MOST_MEMORY, MOST_SECONDS = 256 << 20, 20


def rows(first: int, count: int = ROWS) -> pa.Table:
    rng = random.Random(first)

    def some(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    content = [
        {
            "ts": (first + number) * 1000,
            "k": some(rng.randint(0, 20)),
            "s": some("é" * rng.randint(0, 3) + str(rng.randint(0, 9))),
            "d": some(rng.randint(0, 9)),
            "b": some(rng.random() < 0.5),
            "l": some([{"x": number, "y": some("y" * (number % 9))}] * rng.randint(0, 2)),
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(content, COLUMNS)


def of_time() -> dt.LocalSession:
    session = dt.LocalSession()
    session.stream("a", COLUMNS, "ts", lateness=0.02, rate=1000)
    session.stream("b", COLUMNS, "ts", progress_by="s", idle_after=1, max_ahead=1e6)
    session.selectivity("a.k = b.k", 0.1)
    session.query("q", "SELECT a.*, b.l AS other FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k AND a.d < b.d + 3")
    session.query("text", "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.s = b.s AND a.b = b.b")
    return session


def of_counts() -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts", lateness=0.03)
    session.query("rows", "SELECT a.s, b.l FROM a [ROWS 9], b [PARTITION BY s ROWS 3] WHERE a.d = b.d")
    session.query("plain", "SELECT a.s FROM a [RANGE 40 ms], b [RANGE 40 ms] WHERE a.k = b.k", {"a": ["b"]})
    return session


def of_shared_parts() -> dt.LocalSession:
    session = dt.LocalSession(dt.Budget(1e6, 1e12), dt.Config(strategy="bjtree"))
    for name in "abc":
        session.stream(name, COLUMNS, "ts", rate=1000)
    join = "SELECT a.s, c.d FROM a [RANGE {0} ms], b [RANGE {0} ms], c [RANGE 50 ms] WHERE a.k = b.k AND b.s = c.s"
    session.query("one", join.format(60))
    session.query("two", join.format(80) + " AND a.d < c.d")
    session.query("gone", join.format(90))
    return session


SESSIONS: dict[str, Callable[[], dt.LocalSession]] = {
    "time": of_time,
    "counts": of_counts,
    "shared": of_shared_parts,
}
NOW = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def blob_of(name: str) -> bytes:
    session = SESSIONS[name]()
    for push in range(3):
        session.push({stream: rows(push * ROWS) for stream in session._job.streams}, NOW)
    if name == "shared":
        session.drop_query("gone")
        session.query("later", "SELECT a.s FROM a [RANGE 40 ms], b [RANGE 40 ms] WHERE a.k = b.k")
        session.push({stream: rows(3 * ROWS) for stream in session._job.streams}, NOW)
    return session.snapshot()


# -- damage, signed ---------------------------------------------------------------------------------------------------------------


def parts(blob: bytes) -> tuple[bytes, bytes]:
    """Split a snapshot into JSON and tables."""
    length = snapshot._HEADER.unpack_from(blob)[3]
    start = snapshot._HEADER.size
    return blob[start : start + length], blob[start + length :]


def signed(header: bytes, body: bytes) -> bytes:
    digest = snapshot._digest(len(header), header + body)
    return snapshot._HEADER.pack(snapshot.MAGIC, snapshot.VERSION, digest, len(header)) + header + body


WORDS = (0, 1, 7, 8, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 1 << 31, 1 << 40, -(1 << 40), 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**30, 1.5, -0.5, 1e308, 5e-324,
    float("nan"), float("inf"), "", "x", "a", "joined", "\ud800", "é\x00", None, True, False, [], {}, [[]], [0], {"a": 1},
)  # fmt: skip


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Change a few bits, bytes or words."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place = rng.randrange(len(damaged))
        kind = rng.random()
        if kind < 0.4:
            damaged[place] ^= 1 << rng.randrange(8)
        elif kind < 0.6:
            damaged[place] = rng.randrange(256)
        else:
            place = min(place // 4 * 4, len(damaged) - 8)
            damaged[place : place + 8] = struct.pack("<Q", rng.choice(WORDS))
    return bytes(damaged)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found += places(value[key], (*path, key))
    return found


def mutated(content: Any, rng: random.Random) -> Any:
    """Replace, remove or repeat a JSON value, or copy one from elsewhere in the document."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 2))):
        known = places(content)
        *way, last = rng.choice(known)
        holder = content
        for key in way:
            holder = holder[key]
        value, kind = holder[last], rng.random()
        if kind < 0.15:
            del holder[last]
        elif kind < 0.25 and isinstance(value, list):
            holder[last] = rng.choice(([], value * 2, value[:1] * 100, value[::-1]))
        elif kind < 0.35 and isinstance(holder, list):
            holder.append(copy.deepcopy(value))
        elif kind < 0.5:
            *other_way, other = rng.choice(known)
            source = content
            for key in other_way:
                source = source[key] if isinstance(source, dict | list) else None
                if source is None:
                    break
            if isinstance(source, dict | list):
                holder[last] = copy.deepcopy(source[other])
        elif kind < 0.6 and isinstance(value, int) and not isinstance(value, bool):
            holder[last] = value + rng.choice((-1, 1, 1000, -1000))
        elif kind < 0.65 and isinstance(value, str) and last == "columns":
            holder[last] = base64.b64encode(flipped(base64.b64decode(value), rng)).decode()
        elif kind < 0.7 and isinstance(value, str) and value:
            place = rng.randrange(len(value))
            holder[last] = value[:place] + rng.choice("0159'(.a- ") + value[place + 1 :]
        else:
            holder[last] = copy.deepcopy(rng.choice(VALUES))
    return content


def damaged(blob: bytes, rng: random.Random) -> bytes:
    header, body = parts(blob)
    kind = rng.random()
    if kind < 0.15:
        return signed(flipped(header, rng), body)
    if kind < 0.5:
        return signed(header, flipped(body, rng))
    return signed(json.dumps(mutated(json.loads(header), rng)).encode(), body)


# -- what becomes of it -----------------------------------------------------------------------------------------------------------


def table_for(schema: pa.Schema, event_time: str) -> pa.Table:
    """Build tuples for a stream, however damaged its declaration is."""
    known, columns = rows(4 * ROWS), []
    for field in schema:
        if field.name == event_time:
            columns.append(pa.array(range(240_000, 240_000 + ROWS), pa.int64()).cast(field.type))
        elif field.name in known.column_names and known.schema.field(field.name).type == field.type:
            columns.append(known[field.name].combine_chunks())
        else:
            columns.append(pa.nulls(ROWS, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def tried(blob: bytes) -> str:
    """Return `refused`, or `works` if the restored session accepts a batch and every other call."""
    try:
        session = dt.LocalSession.restore(blob)
    except StateError:
        return "refused"
    streams = session._job.streams.values()
    results = session.push({stream.name: table_for(stream.columns, stream.event_time) for stream in streams}, NOW)
    assert set(results) == set(session._job.queries)
    session.advance({stream.name: 1 << 40 for stream in streams})
    session.explain()
    session.metrics()
    dt.LocalSession.restore(session.snapshot())
    return "works"


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), resource.RLIM_INFINITY))


def main(seed: int, count: int) -> None:
    watch.CHECK_AFTER = 50  # so that few tuples leave statistics
    blobs = [blob_of(name) for name in SESSIONS]
    outcomes = Counter(tried(blob) for blob in blobs)
    assert outcomes == {"works": len(blobs)}
    outcomes.clear()
    limit_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(seed, seed + count):
        rng = random.Random(number)
        began = perf_counter()
        sys.stderr.write(f"{number}\n")  # the last number names the case if the process dies
        sys.stderr.flush()
        outcomes[tried(damaged(rng.choice(blobs), rng))] += 1
        assert perf_counter() - began < MOST_SECONDS, "it took too long"
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        assert grown < MOST_MEMORY, f"it took {grown} bytes"
    sys.stdout.write(json.dumps(outcomes))


def elsewhere(seed: int, count: int) -> Counter[str]:
    source = Path(dt.__file__).resolve().parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-X", "faulthandler", __file__, str(seed), str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return Counter(json.loads(done.stdout))


def test_damaged_snapshots_with_valid_checksums_are_refused_or_work() -> None:
    outcomes = elsewhere(0, 400)
    assert outcomes.total() == 400
    assert outcomes["works"] > 20
    assert outcomes["refused"] > 100


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
