"""Measure a job on Spark under a burst that exceeds the cap of its windows, with two `kill -9` during the burst.

Three streams on a common key; files of a second each are written in real time, and event time is the time of day. In calm periods the
windows fit their cap; the burst has three times the rate. After every batch the benchmark records how far the job is behind, the
bytes of its windows, what it has shed, and the recall that it reports.

Afterwards another job joins the same batches without kills. Shedding depends on the input alone, so results must be the same, row by
row. Then DuckDB joins all tuples: every result of the job must be one of its results, and occur once; the fraction that is present is
the true recall; and no result may be missing whose tuples all arrived after the last shedding.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime
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
COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("n", pa.int64())])
SECOND = 1_000_000
WINDOW = 10
SQL = "SELECT a.n AS a, b.n AS b, c.n AS c FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.k = b.k AND b.k = c.k"


def write_file(folder: Path, stream: str, second: int, rows: int, keys: int) -> None:
    """Write one second of a stream; event times are distinct, so that the order of tuples is defined."""
    rng = np.random.default_rng([STREAMS.index(stream), second])
    ts = np.sort(rng.choice(SECOND, rows, replace=False)) + second * SECOND
    numbers = np.arange(rows) + second * SECOND
    table = pa.table(
        [pa.array(ts).cast(COLUMNS.field("ts").type), rng.integers(0, keys, rows), numbers], schema=COLUMNS
    )
    path = folder / stream / f"{second:06}.parquet"
    pq.write_table(table, path.with_name(f".{path.name}"))
    path.with_name(f".{path.name}").rename(path)
    os.utime(path, (1_600_000_000 + second,) * 2)  # Spark reads the oldest first


def rate_at(second: int, options: argparse.Namespace) -> int:
    burst = options.calm <= second < options.calm + options.burst
    return int(options.rate * (3 if burst else 1))


def run_job(work: Path, name: str, files: int, cap: int, *, replay: bool) -> None:
    """Join existing and new files until all are read; append a line of measurements after every batch."""
    import dovetail as dt  # noqa: PLC0415 - only the child needs it
    from dovetail.spark import session as spark_session  # noqa: PLC0415

    spark = spark_session()
    session = dt.Session(spark, shards=4, config=dt.Config(shedding=dt.Shedding("auto", max_bytes=cap)))
    for stream in STREAMS:
        reader = spark.readStream.schema("ts timestamp, k bigint, n bigint")
        reader = reader.option("maxFilesPerTrigger", 1 if replay else 5)
        session.stream(stream, reader.parquet(str(work / ("again" if replay else "in") / stream)), "ts")
    session.query("q", SQL)
    trigger = {"availableNow": True} if replay else {}
    running = session.start({"q": dt.sinks.parquet(str(work / name))}, work / f"checkpoint-{name}", trigger)
    seen = 0
    while not running.await_termination(0.05):
        metrics = running.metrics()
        if metrics["batches"] == seen or not metrics["shards"]:
            continue
        seen, streams = metrics["batches"], metrics["streams"]
        newest = _micros(metrics["streams"]["a"]["max_event_time"])
        line: dict[str, Any] = {
            "at": time.time(),
            "read": newest // SECOND + 1,
            "state_bytes": sum(stream["state_bytes"] for stream in streams.values()),
            "shed": sum(stream["shed"] for stream in streams.values()),
            "last_shed": max((_micros(stream["last_shed"]) for stream in streams.values()), default=0),
            "rebuilt": metrics["rebuilt_shards"],
            "recall": metrics["queries"]["q"]["recall"],
        }
        with (work / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if not replay and line["read"] >= files:
            running.query.processAllAvailable()
            running.stop()


def _micros(time: str | None) -> int:
    """Return an event time of `metrics()` in microseconds since 1970; 0 for None."""
    return 0 if time is None else round(1e6 * datetime.fromisoformat(time).timestamp())


class Batches(threading.Thread):
    """Records which files each batch has read, by stream; Spark keeps this for the last batches only."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(daemon=True)
        self._checkpoint = checkpoint
        self._offsets: dict[int, list[int]] = {}
        """By batch and stream: the last listing that the batch has read."""
        self._listings: list[dict[int, int]] = [{} for _ in STREAMS]
        """By stream and listing: the last file in it."""
        self.done = False

    def run(self) -> None:
        while not self.done:
            self.note()
            time.sleep(0.2)

    def note(self) -> None:
        for path in self._checkpoint.glob("offsets/[0-9]*"):
            with suppress(OSError, ValueError, KeyError):  # the file is being written
                lines = path.read_text(encoding="utf-8").splitlines()[2:]
                self._offsets[int(path.name)] = [json.loads(line)["logOffset"] for line in lines]
        for place, known in enumerate(self._listings):
            for path in self._checkpoint.glob(f"sources/{place}/[0-9]*"):
                with suppress(OSError, ValueError, KeyError):
                    for entry in map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:]):
                        second = int(Path(entry["path"]).stem)
                        known[entry["batchId"]] = max(second, known.get(entry["batchId"], 0))

    @property
    def ends(self) -> dict[int, list[int]]:
        """By batch: the number of files of each stream that had been read after it."""
        return {
            batch: [known[last] + 1 for known, last in zip(self._listings, lasts, strict=True)]
            for batch, lasts in self._offsets.items()
        }


def write_again(work: Path, ends: dict[int, list[int]]) -> None:
    """Write the same tuples again, with one file of each stream for each batch."""
    assert sorted(ends) == list(range(len(ends))), "a batch was not recorded"
    for place, stream in enumerate(STREAMS):
        (work / "again" / stream).mkdir(parents=True)
        first = 0
        for batch, files in sorted(ends.items()):
            paths = [work / "in" / stream / f"{second:06}.parquet" for second in range(first, files[place])]
            tables = [pq.read_table(path) for path in paths] or [COLUMNS.empty_table()]
            path = work / "again" / stream / f"{batch:06}.parquet"
            pq.write_table(pa.concat_tables(tables), path)
            os.utime(path, (1_600_000_000 + batch,) * 2)
            first = files[place]


def looks(work: Path, name: str) -> list[dict[str, Any]]:
    path = work / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def produce(work: Path, seconds: int, options: argparse.Namespace, began: float) -> None:
    """Write the files of each second once it has passed."""
    for second in range(seconds):
        time.sleep(max(0.0, began + second + 1 - time.time()))
        for stream in STREAMS:
            write_file(work / "in", stream, second, rate_at(second, options), options.keys)


def run_live(work: Path, seconds: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job, and kill it after one and two thirds of the burst."""
    command = [sys.executable, __file__, "--child", str(work), "live", str(seconds), str(options.cap)]
    for stream in STREAMS:
        (work / "in" / stream).mkdir(parents=True)
        write_file(work / "in", stream, 0, options.rate, options.keys)
    child = subprocess.Popen(command, start_new_session=True)
    while not looks(work, "live"):  # it has started
        time.sleep(0.1)
    began, batches = time.time(), Batches(work / "checkpoint-live")
    batches.start()
    producer = threading.Thread(target=produce, args=(work, seconds, options, began), daemon=True)
    producer.start()
    kills = [options.calm + options.burst * part // 3 for part in (1, 2)]
    restarts = []
    for kill in kills:
        time.sleep(max(0.0, began + kill - time.time()))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        before, killed = len(looks(work, "live")), time.time()
        child = subprocess.Popen(command, start_new_session=True)
        while len(looks(work, "live")) == before:
            time.sleep(0.1)
        restarts.append(time.time() - killed)
    child.wait()
    if child.returncode:
        raise SystemExit("the job failed")
    batches.done = True
    batches.note()
    write_again(work, batches.ends)
    return {"began": began, "kills": kills, "restarts": restarts}


def check(work: Path, last_shed: int) -> dict[str, int]:
    """Compare the two jobs with each other and with DuckDB."""
    db = duckdb.connect()
    for name in ("live", "replay"):
        db.execute(f"CREATE TABLE {name} AS SELECT a, b, c FROM read_parquet('{work}/{name}/batch_id=*/*.parquet')")
    near = "unnest([sec // 11 - 1, sec // 11, sec // 11 + 1])"
    for stream in STREAMS:
        source = f"SELECT *, epoch_us(ts) AS us, epoch_us(ts) // {SECOND} AS sec FROM read_parquet('{work}/in/{stream}/*.parquet')"
        slot = "sec // 11" if stream == "a" else near
        db.execute(f"CREATE TABLE {stream} AS SELECT us, k, n, {slot} AS near FROM ({source})")
    close = [f"{x}.us >= {y}.us - {WINDOW * SECOND}" for x, y in permutations(STREAMS, 2)]
    db.execute(
        "CREATE TABLE truth AS SELECT a.n AS a, b.n AS b, c.n AS c, least(a.us, b.us, c.us) AS first FROM a, b, c "
        f"WHERE a.k = b.k AND b.k = c.k AND a.near = b.near AND a.near = c.near AND {' AND '.join(close)}"
    )

    def one(text: str) -> int:
        ((found,),) = db.execute(text).fetchall()
        return int(found)

    return {
        "results": one("SELECT count(*) FROM live"),
        "exact": one("SELECT count(*) FROM truth"),
        "twice": one("SELECT count(*) - count(DISTINCT (a, b, c)) FROM live"),
        "not_results": one("SELECT count(*) FROM live ANTI JOIN truth USING (a, b, c)"),
        "otherwise_in_replay": one("SELECT count(*) FROM (SELECT * FROM live EXCEPT ALL SELECT * FROM replay)")
        + one("SELECT count(*) FROM (SELECT * FROM replay EXCEPT ALL SELECT * FROM live)"),
        "after_the_last_shedding": one(f"SELECT count(*) FROM truth WHERE first >= {last_shed}"),
        "of_these_missing": one(
            f"SELECT count(*) FROM truth ANTI JOIN live USING (a, b, c) WHERE first >= {last_shed}"
        ),
    }


def report(
    live: dict[str, Any], found: list[dict[str, Any]], checked: dict[str, int], options: argparse.Namespace
) -> None:
    behind = [look["at"] - live["began"] - look["read"] for look in found if look["at"] > live["began"]]
    last, true = found[-1]["recall"], checked["results"] / checked["exact"]
    burst = [look for look in found if options.calm <= look["read"] < options.calm + options.burst]
    table = Table("what", "", title="A burst of three times the rate, under a cap, with two kills")
    rows = {
        "seconds calm, of burst, calm again": f"{options.calm}, {options.burst}, {options.after}",
        "tuples per second, calm and in the burst": f"{3 * options.rate:,}, {9 * options.rate:,}",
        "batches": f"{len(found)}",
        "seconds behind: median, last": f"{median(behind):.1f}, {behind[-1]:.1f}",
        "restarts after kills, s": ", ".join(f"{taken:.1f}" for taken in live["restarts"]),
        "cap, most state bytes at a look": f"{options.cap:,}, {max(look['state_bytes'] for look in found):,}",
        "tuples shed": f"{found[-1]['shed']:,}",
        "recall reported at the end": f"{last['estimate']:.4f} ({last['low']:.4f} to {last['high']:.4f})",
        "recall in truth": f"{true:.4f}",
        "mean batch in the burst, s": f"{mean(b['at'] - a['at'] for a, b in pairwise(burst)):.2f}",
        "results, all that there are": f"{checked['results']:,}, {checked['exact']:,}",
        "given twice; no results at all": f"{checked['twice']}, {checked['not_results']}",
        "differences to a run without kills": f"{checked['otherwise_in_replay']}",
        "results after the last shedding, missing": f"{checked['after_the_last_shedding']:,}, {checked['of_these_missing']}",
    }
    for what, value in rows.items():
        table.add_row(what, value)
    console.print(table)
    save(
        "spark-shedding", [{"options": vars(options), "table": rows, "live": live, "checked": checked, "looks": found}]
    )
    if max(look["state_bytes"] for look in found) > options.cap or any(
        checked[name] for name in ("twice", "not_results", "otherwise_in_replay", "of_these_missing")
    ):
        raise SystemExit("something is wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calm", type=int, default=60, help="seconds before the burst")
    parser.add_argument("--burst", type=int, default=600)
    parser.add_argument("--after", type=int, default=90, help="seconds after it")
    parser.add_argument("--rate", type=int, default=1500, help="calm tuples per second and stream")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--cap", type=int, default=8 << 20, help="bytes of windows")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work, name, files, cap = options.child
        run_job(Path(work), name, int(files), int(cap), replay=name == "replay")
        return
    del options.child
    seconds = options.calm + options.burst + options.after
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        live = run_live(work, seconds, options)
        command = [sys.executable, __file__, "--child", str(work), "replay", str(seconds), str(options.cap)]
        subprocess.run(command, check=True)
        found = looks(work, "live")
        report(live, found, check(work, found[-1]["last_shed"]), options)


if __name__ == "__main__":
    main()
