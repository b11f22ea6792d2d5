"""Measure a job on Spark whose queries come and go while data flows: throughput over time, pauses, and whether results are right.

Three streams in Parquet files, one file of each per micro-batch. A job starts with three queries; while it runs, queries are added
(every fourth sees what the windows hold) and dropped, evenly over the run. In the middle the driver is killed with `kill -9` and
started again with the queries that its checkpoint knows. Afterwards DuckDB joins, for each query, the files of the batches that it
was there for, and what was held before; counts and checksums must be equal.

Reported: tuples per second by batch, from the times at which Spark committed them; the longest pause between two commits, with and
without a change in it, against the mean; how long each change took.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise, permutations
from pathlib import Path
from statistics import mean, median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from engine import console, save

STREAMS = ("a", "b", "c")
COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("j", pa.int64()), ("v", pa.int64())])
SECOND = 1_000_000
KEYS = 20_000
FAR = 9
"""Files, of a second each, that a window can span."""


def write_input(folder: Path, files: int, rows: int) -> None:
    """One second of event time per file and stream."""
    for number, name in enumerate(STREAMS):
        (folder / name).mkdir(parents=True)
        for file in range(files):
            rng = np.random.default_rng([number, file])
            ts = np.sort(rng.integers(0, SECOND, rows)) + file * SECOND
            values = [rng.integers(0, KEYS, rows), rng.integers(0, KEYS, rows), rng.integers(0, 100, rows)]
            path = folder / name / f"{file:05}.parquet"
            pq.write_table(pa.table([pa.array(ts, COLUMNS.field("ts").type), *values], schema=COLUMNS), path)
            os.utime(path, (1_600_000_000 + file,) * 2)  # Spark reads the oldest first


def query(number: int) -> tuple[list[str], str, dict[str, int], int]:
    """A query's streams, key, windows in seconds, and the least `v` of its first stream."""
    rng = random.Random(number)  # noqa: S311 - replayable
    names = ["a", "b", "c"] if number % 3 == 0 else sorted(rng.sample(STREAMS, 2))
    return (
        names,
        "j" if number % 5 == 4 else "k",
        {name: rng.choice((2, 4, 8)) for name in names},
        rng.choice((0, 50, 80)),
    )


def sql_of(number: int) -> str:
    names, key, windows, least = query(number)
    outputs = ", ".join(f"{name}.ts AS {name}_ts, {name}.v AS {name}_v" for name in names)
    inputs = ", ".join(f"{name} [RANGE {windows[name]} SECONDS]" for name in names)
    where = [f"{one}.{key} = {other}.{key}" for one, other in pairwise(names)] + [f"{names[0]}.v >= {least}"]
    return f"SELECT {outputs} FROM {inputs} WHERE {' AND '.join(where)}"


# -- the job ------------------------------------------------------------------------------------------------------------------------


def contracts(checkpoint: Path) -> list[tuple[int, dict[str, Any]]]:
    """What ran from which batch on, as the checkpoint has it."""
    folder = checkpoint / "dovetail" / "_plans"
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [(entry["first"], json.loads(entry["contract"])) for entry in found]


def run_job(work: Path, changes: int, drops: int, files: int) -> None:
    """Start, or go on, and change queries until all changes are made and all files are read."""
    import dovetail as dt  # noqa: PLC0415 - only the child needs it
    from dovetail.spark import session as spark_session  # noqa: PLC0415

    spark = spark_session()
    known = contracts(work / "checkpoint")
    active = [int(name[1:]) for name, _ in known[-1][1]["queries"]] if known else [0, 1, 2]
    log = work / "changes.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    session = dt.Session(spark, shards=4)
    for name in STREAMS:
        frame = spark.readStream.schema("ts timestamp, k bigint, j bigint, v bigint").option("maxFilesPerTrigger", 1)
        session.stream(name, frame.parquet(str(work / "in" / name)), "ts")
    for number in active:
        session.query(f"q{number}", sql_of(number))
    sinks = {f"q{number}": dt.sinks.parquet(str(work / "out" / f"q{number}")) for number in active}
    running = session.start(sinks, work / "checkpoint")
    plan: list[tuple[str, int]] = [("add", 3 + number) for number in range(changes)]
    for number in range(drops):
        plan.insert(2 * (number + 1) + number, ("drop", number))
    made = {(entry["what"], entry["number"]) for entry in done} | {("add", number) for number in active}
    made |= {("drop", number) for number in range(drops) if known and number not in active}
    every = files * 0.9 / len(plan)
    for place, (what, number) in enumerate(plan):
        if (what, number) in made:
            continue
        while files_read(work / "checkpoint", last_batch(work / "checkpoint")) < place * every + 3:
            time.sleep(0.02)
        began = time.time()
        if what == "add":
            sink = dt.sinks.parquet(str(work / "out" / f"q{number}"))
            seconds = running.add_query(f"q{number}", sql_of(number), sink, backfill=number % 4 == 3)
        else:
            seconds = running.drop_query(f"q{number}")
        with log.open("a") as file:
            file.write(json.dumps({"what": what, "number": number, "began": began, "seconds": seconds}) + "\n")
    while files_read(work / "checkpoint", last_batch(work / "checkpoint")) < files:
        time.sleep(0.2)
    running.stop()
    print("done", flush=True)


def last_batch(checkpoint: Path) -> int:
    folder = checkpoint / "commits"
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1) if folder.exists() else -1


def files_read(checkpoint: Path, batch: int) -> int:
    """How many files of each stream were read up to a batch, at least."""
    return min(ends(checkpoint, batch).values(), default=0)


def ends(checkpoint: Path, batch: int) -> dict[str, int]:
    """By stream, how many files were read up to a batch; one that was stopped before it began may leave two to the next."""
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2:]
    except OSError:
        return {}
    return {name: json.loads(line)["logOffset"] + 1 for name, line in zip(STREAMS, lines, strict=True)}


# -- what it should have given --------------------------------------------------------------------------------------------------------


def expected(
    number: int, work: Path, since: dict[str, int], until: dict[str, int], held: dict[str, int] | None
) -> tuple[int, int]:
    """Count and checksum of the results of a query that was there for files from `since` to before `until`, by stream."""
    names, key, windows, least = query(number)
    parts = []
    for name in names:
        first = 0 if held is not None else since[name]
        files = [str(work / "in" / name / f"{file:05}.parquet") for file in range(first, until[name])]
        lower = f" AND (file >= {since[name]} OR epoch_us(ts) >= {held.get(name, 1 << 60)})" if held is not None else ""
        numbered = "CAST(regexp_extract(filename, '(\\d+).parquet', 1) AS INT) AS file"
        source = f"(SELECT *, {numbered} FROM read_parquet({files}, filename=true))"
        # Tuples that meet are of files at most FAR apart: parts of time are joined with those beside them, or all would meet.
        near = (
            f"file // {FAR}" if name == names[0] else f"unnest([file // {FAR} - 1, file // {FAR}, file // {FAR} + 1])"
        )
        parts.append(f"{name} AS (SELECT *, {near} AS near FROM {source} WHERE {key} IS NOT NULL{lower})")
    latest = f"greatest({', '.join(f'epoch_us({name}.ts)' for name in names)})"
    where = [f"{one}.{key} = {other}.{key}" for one, other in pairwise(names)] + [f"{names[0]}.v >= {least}"]
    where += [f"{names[0]}.near = {name}.near" for name in names[1:]]
    where += [f"epoch_us({name}.ts) >= {latest} - {windows[name] * SECOND}" for name in names]
    for one, other in permutations(names, 2):  # which follows, and is checked sooner
        where.append(f"epoch_us({one}.ts) >= epoch_us({other}.ts) - {windows[one] * SECOND}")
    where.append(f"({' OR '.join(f'{name}.file >= {since[name]}' for name in names)})")
    figures = " + ".join(f"epoch_us({name}.ts) * {3 + 2 * place} + {name}.v" for place, name in enumerate(names))
    inputs, conditions = ", ".join(names), " AND ".join(where)
    text = f"WITH {', '.join(parts)} SELECT count(*), CAST(sum(({figures}) % 1000003) AS BIGINT) FROM {inputs} WHERE {conditions}"
    return figures_of(text)


def figures_of(text: str) -> tuple[int, int]:
    ((count, total),) = duckdb.connect().execute(text).fetchall()
    return int(count), int(total or 0)


def given(number: int, work: Path) -> tuple[int, int]:
    names = query(number)[0]
    files = str(work / "out" / f"q{number}" / "batch_id=*" / "*.parquet")
    if not list((work / "out" / f"q{number}").glob("batch_id=*/*.parquet")):
        return 0, 0
    figures = " + ".join(f"epoch_us({name}_ts) * {3 + 2 * place} + {name}_v" for place, name in enumerate(names))
    text = f"SELECT count(*), CAST(sum(({figures}) % 1000003) AS BIGINT) FROM read_parquet('{files}')"
    return figures_of(text)


def kept_from(
    work: Path, number: int, since: int, history: list[tuple[int, dict[str, Any]]], read: dict[int, dict[str, int]]
) -> dict[str, int]:
    """From which event time on the log of a query's shards held tuples when it came, by what ran before."""
    heads: dict[str, list[int]] = {}
    for name in STREAMS:
        lasts = [read[batch][name] - 1 for batch in range(since)]
        tables = [pq.read_table(work / "in" / name / f"{file:05}.parquet", columns=["ts"]) for file in lasts]
        heads[name] = [int(table["ts"].cast(pa.int64()).to_numpy().max()) for table in tables]
    kept: dict[str, int] = {}
    seat = next(
        content["firsts"][f"q{number}"]
        for first, content in history
        if first == since and f"q{number}" in content["firsts"]
    )
    for batch in range(since):
        content = [content for first, content in history if first <= batch][-1]
        firsts = content.get("firsts") or history[1][1]["firsts"]
        bounds: dict[str, int] = {}
        for name, _ in content["queries"]:
            if firsts.get(name, seat if name in ("q0", "q1", "q2") else None) != seat:
                continue
            names, _, windows, _ = query(int(name[1:]))
            for own in names:
                mark = min(heads[other][batch] for other in names if other != own) - windows[own] * SECOND
                bounds[own] = min(mark, bounds.get(own, mark))
        for name in [name for name in kept if name not in bounds]:
            del kept[name]
        for name, bound in bounds.items():
            kept[name] = max(bound, kept.get(name, bound))
    return kept


def check(work: Path, read: dict[int, dict[str, int]]) -> tuple[int, list[str]]:
    """Compare all queries; give how many results there were, and what is wrong. `read`: files read by batch."""
    batches = max(read) + 1
    read = {-1: dict.fromkeys(STREAMS, 0), **read}
    history, wrong, total = contracts(work / "checkpoint"), list[str](), 0
    came: dict[int, int] = {}
    gone: dict[int, int] = {}
    backfilled: set[int] = set()
    for first, content in history:
        names = {int(name[1:]) for name, _ in content["queries"]}
        for number in names - came.keys():
            came[number] = first
        for number in came.keys() - names - gone.keys():
            gone[number] = first
        backfilled |= {int(name[1:]) for name, entry in content.get("came", {}).items() if entry["backfill"]}
    for number, since in sorted(came.items()):
        held = kept_from(work, number, since, history, read) if number in backfilled else None
        found, until = given(number, work), gone.get(number, batches)
        # A dropped query may still give the results of the batch at hand.
        lasts = [read[last - 1] for last in {until, min(until + 1, batches)}]
        wanted = [expected(number, work, read[since - 1], last, held) for last in lasts]
        total += found[0]
        if found not in wanted:
            wrong.append(f"q{number} from batch {since} to {until}: {found}, expected {wanted}, held {held}")
    return total, wrong


# -- the run ------------------------------------------------------------------------------------------------------------------------


def draw(path: Path, picture: Path) -> None:
    """Draw a run that was kept: tuples per second by batch, and where something changed."""
    import matplotlib as mpl  # noqa: PLC0415 - only for this

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    (run,) = json.loads(path.read_text())["runs"]
    batches = run["batches"]
    rates = [each["tuples"] / each["seconds"] / 1000 for each in batches]
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    axes.step([each["batch"] for each in batches], rates, where="mid", color="0.2", linewidth=1.2)
    changed = [(each["batch"], rate) for each, rate in zip(batches, rates, strict=True) if each["changed"]]
    axes.plot(
        *zip(*changed, strict=True),
        "o",
        color="0.2",
        markerfacecolor="white",
        markersize=5,
        label="a query came or went",
    )
    axes.axvline(run["killed_after"] + 0.5, color="0.2", linestyle=":", label="kill -9")
    axes.set(xlabel="micro-batch", ylabel="thousand tuples per second", ylim=(0, 1.25 * max(rates)))
    axes.legend(frameon=False, ncols=2, loc="upper right")
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--draw", nargs=2, type=Path, metavar=("RUN", "PNG"), help="draw a run that was kept, and do nothing else"
    )
    parser.add_argument("--files", type=int, default=150)
    parser.add_argument("--rows", type=int, default=20_000, help="tuples per stream and micro-batch")
    parser.add_argument("--adds", type=int, default=20)
    parser.add_argument("--drops", type=int, default=10)
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    if options.draw:
        draw(*options.draw)
        return
    if options.child:
        run_job(options.child, options.adds, options.drops, options.files)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_input(work / "in", options.files, options.rows)
        command = [sys.executable, __file__, "--child", str(work)]
        command += [f"--{name}={getattr(options, name)}" for name in ("files", "rows", "adds", "drops")]
        times: dict[int, float] = {}
        read: dict[int, dict[str, int]] = {}
        child = subprocess.Popen(command, start_new_session=True)
        watch(child, work / "checkpoint", times, read, options.files // 2)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        killed = last_batch(work / "checkpoint")
        console.print(f"killed after batch {killed}")
        child = subprocess.Popen(command, start_new_session=True)
        watch(child, work / "checkpoint", times, read, options.files)
        child.wait()
        results, wrong = check(work, read)
        report(work, options, killed, times, results, wrong)
        if wrong:
            raise SystemExit("\n".join(wrong))


def watch(
    child: subprocess.Popen[bytes],
    checkpoint: Path,
    times: dict[int, float],
    read: dict[int, dict[str, int]],
    files: int,
) -> None:
    """Note when batches are committed, and what they had read, until so many files were; Spark keeps the logs of a few only."""
    while True:
        batch = last_batch(checkpoint)
        times.setdefault(batch, time.time())
        for earlier in range(max(read, default=-1) + 1, batch + 1):
            if found := ends(checkpoint, earlier):
                read[earlier] = found
        if batch in read and min(read[batch].values()) >= files:
            return
        if child.poll() is not None:
            raise SystemExit("the job ended early")
        time.sleep(0.01)


def report(
    work: Path, options: argparse.Namespace, killed: int, times: dict[int, float], results: int, wrong: list[str]
) -> None:
    commits = sorted((batch, at) for batch, at in times.items() if batch >= 0)
    steps = {batch: after - before for (_, before), (batch, after) in pairwise(commits)}
    restart = min(batch for batch in steps if batch > killed)
    changes = [json.loads(line) for line in (work / "changes.jsonl").read_text().splitlines()]
    changed = {
        min((batch for batch, at in times.items() if at > entry["began"]), default=options.files - 1)
        for entry in changes
    }
    after = {batch: steps[batch] for batch in steps if batch in changed and batch != restart}
    calm = [taken for batch, taken in steps.items() if batch not in changed and batch != restart]
    tuples = len(STREAMS) * options.rows
    table = Table("what", "", title="Queries that come and go")
    table.add_row("batches, tuples each", f"{len(commits)}, {tuples:,}")
    table.add_row(
        "added, dropped", f"{sum(e['what'] == 'add' for e in changes)}, {sum(e['what'] == 'drop' for e in changes)}"
    )
    table.add_row("results, wrong queries", f"{results:,}, {len(wrong)}")
    table.add_row("mean batch without a change, s", f"{mean(calm):.2f}")
    table.add_row("longest of these", f"{max(calm):.2f}")
    table.add_row(
        "batch with a change, median and longest, s", f"{median(after.values()):.2f}, {max(after.values()):.2f}"
    )
    table.add_row(
        "a change, median and longest, s",
        f"{median(e['seconds'] for e in changes):.2f}, {max(e['seconds'] for e in changes):.2f}",
    )
    table.add_row("restart after the kill, s", f"{steps[restart]:.1f}")
    table.add_row(
        "thousand tuples/s, all of it", f"{tuples * (len(commits) - 1) / (commits[-1][1] - commits[0][1]) / 1000:.0f}"
    )
    console.print(table)
    runs = [
        {"batch": batch, "seconds": taken, "tuples": tuples, "changed": batch in changed}
        for batch, taken in steps.items()
    ]
    save(
        "spark-changes",
        [{"killed_after": killed, "results": results, "wrong": wrong, "changes": changes, "batches": runs}],
    )


if __name__ == "__main__":
    main()
