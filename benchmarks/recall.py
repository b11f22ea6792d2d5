"""Check the interval of the estimated recall: `python benchmarks/recall.py [runs] [--sample TUPLES] [--only SETTING]`.

In each run a session with a cap joins random streams; a batch join gives the true number of results. Prints for each setting and
policy how often the truth was inside the interval, and the interval's median width. `--sample` is how many tuples a sample may hold:
by default all keys of these runs are followed, so the recall is exact; with a few hundred it is estimated.

In settings with shards, two shards run as on Spark, without a JVM: attempts fail, arrays are lost and rebuilt from the log, and the
batches of one stream run ahead of the other's.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt
from dovetail._typing import Int64Array
from dovetail.config import SHEDDING, SheddingPolicy
from dovetail.engine.shedding import join_sample
from dovetail.schema import StreamSchema
from dovetail.stats.recall import LossEstimate, Recall
from engine import save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "spark"))

from pipeline import Pipeline, layout_of

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
STREAMS, ROWS, SECONDS, BATCHES, WINDOW = "ab", 4_000, 30, 12, 3 * SECOND
SQL = "SELECT a.k AS k FROM a [RANGE 3 s], b [RANGE 3 s] WHERE a.k = b.k"


@dataclass(frozen=True)
class Setting:
    """How the input of a run is drawn and pushed."""

    zipf: float = 0.0
    keys: int = 400
    lag: float = 0.0
    """Seconds that the second stream arrives behind the first."""
    by_rows: bool = False
    """Whether batches have equal numbers of rows of both streams, the second of which is twice as fast."""
    grain: int = 1
    disorder: float = 0.0
    nulls: float = 0.0
    restores: bool = False
    backlog: bool = False
    """Whether each stream is cut into batches of random sizes, so that one may be far ahead of the other."""
    shards: int = 0
    """Shards as on Spark, with failed attempts and lost arrays; 0: one session in one process."""


SETTINGS = {
    "even keys": Setting(),
    "Zipf 1.1": Setting(zipf=1.1),
    "Zipf 1.5": Setting(zipf=1.5),
    "Zipf 2": Setting(zipf=2.0),
    "lag of half a window": Setting(lag=1.5),
    "lag of two thirds": Setting(lag=2.0),
    "cut by rows": Setting(by_rows=True),
    "coarse times": Setting(grain=SECOND // 2),
    "disorder, NULL keys": Setting(disorder=1.0, nulls=0.1),
    "restores": Setting(restores=True),
    "restores, Zipf 1.1": Setting(zipf=1.1, restores=True),
    "shards, kills, backlog": Setting(backlog=True, shards=2),
    "the same, Zipf 1.5": Setting(zipf=1.5, backlog=True, shards=2),
}


def keys_of(setting: Setting, rng: np.random.Generator, count: int) -> pa.Array:
    """Draw keys; a Zipf distribution is over all integers."""
    keys = rng.zipf(setting.zipf, count) if setting.zipf else rng.integers(0, setting.keys, count)
    return pa.array(keys, pa.int64(), mask=rng.random(count) < setting.nulls)


Drawn = dict[str, tuple[Int64Array, Int64Array, pa.Array]]
"""By stream: event times, times of arrival, keys."""


def drawn_input(setting: Setting, rng: np.random.Generator) -> Drawn:
    """Draw the streams."""
    drawn: Drawn = {}
    for stream in STREAMS:
        seconds = SECONDS / 2 if setting.by_rows and stream == "b" else SECONDS
        times = np.sort(rng.integers(0, int(seconds * SECOND), ROWS)) // setting.grain * setting.grain
        arrivals = times + (rng.random(ROWS) * setting.disorder * SECOND).astype(np.int64)
        arrivals += int(setting.lag * SECOND) * (stream == "b")
        drawn[stream] = times, arrivals, keys_of(setting, rng, ROWS)
    return drawn


def batches(setting: Setting, rng: np.random.Generator, drawn: Drawn) -> Iterator[dict[str, pa.Table]]:
    """Yield the input; a batch has the tuples that arrive in a part of the time, or a number of rows of each stream."""
    end = max(int(arrivals.max()) for _, arrivals, _ in drawn.values()) + 1
    numbers = {}
    for stream, (_, arrivals, _) in drawn.items():
        position = np.arange(ROWS) / ROWS if setting.by_rows or setting.backlog else arrivals / end
        bounds = np.sort(rng.random(BATCHES - 1)) if setting.backlog else np.arange(1, BATCHES) / BATCHES
        numbers[stream] = np.searchsorted(bounds, position, side="right")
    for number in range(BATCHES):
        batch = {}
        for stream, (times, _, keys) in drawn.items():
            rows = np.flatnonzero(numbers[stream] == number)
            batch[stream] = pa.table([pa.array(times[rows]).cast(SCHEMA.field("ts").type), keys.take(rows)], SCHEMA)
        yield batch


def true_results(drawn: Drawn) -> int:
    """Count the results of a batch join: pairs with equal keys whose event times are at most a window apart."""
    times = np.concatenate([times[keys.is_valid()] for times, _, keys in drawn.values()])
    keys = np.concatenate([keys.drop_null().to_numpy() for _, _, keys in drawn.values()])
    places = np.unique(keys, return_inverse=True)[1] * (1 << 40) + times  # keys are far apart
    left_at, right_at = np.split(places, [ROWS - drawn["a"][2].null_count])
    right_at.sort()
    first = np.searchsorted(right_at, left_at - WINDOW, "left")
    last = np.searchsorted(right_at, left_at + WINDOW, "right")
    return int((last - first).sum())


def run_session(setting: Setting, seed: int, shedding: dt.Shedding) -> tuple[int, Recall]:
    """Return the number of results of a session under a cap, and their recall."""
    rng = np.random.default_rng(seed)
    joined, count = dt.LocalSession(config=dt.Config(shedding=shedding, adaptive=False)), 0
    for stream in STREAMS:
        joined.stream(stream, SCHEMA, event_time="ts", lateness=f"{setting.disorder} seconds")
    joined.query("q", SQL)
    for number, batch in enumerate(batches(setting, rng, drawn_input(setting, rng))):
        count += joined.push(batch)["q"].num_rows
        if setting.restores and number % 5 == 4:
            joined = dt.LocalSession.restore(joined.snapshot())
    return count, recall_of([joined.metrics()["queries"]["q"]["recall"]])


def run_shards(setting: Setting, seed: int, shedding: dt.Shedding) -> tuple[int, Recall]:
    """Return the number of results of shards, some of whose attempts and arrays are lost, and their recall."""
    rng, luck = np.random.default_rng(seed), random.Random(seed)  # noqa: S311 - no secret
    streams = tuple(StreamSchema(stream, SCHEMA, "ts", 0) for stream in STREAMS)
    layout = layout_of(streams, {"q": SQL}, setting.shards, dt.Config(shedding=shedding, adaptive=False))
    count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "arrays"
        shards = Pipeline(layout, folder, luck)
        shards.known, shards.chunk_rows = [shards.plan], 1 << 16
        for number, batch in enumerate(batches(setting, rng, drawn_input(setting, rng))):
            count += sum(table.num_rows for table in shards.run(batch, fail=0.2, batch=number)["q"])
            if luck.random() < 0.2:
                shutil.rmtree(folder, ignore_errors=True)
        return count, recall_of([metrics["queries"]["q"]["recall"] for metrics in shards.metrics.values()])


def recall_of(measured: list[Any]) -> Recall:
    """Return the recall of all shards together."""
    total = Recall.of(0, LossEstimate())
    for recall in measured:
        total += Recall.of(recall["given"], recall["why"] or LossEstimate(**recall["lost"]))
    return total


def run(setting: Setting, seed: int, policy: SheddingPolicy) -> tuple[int, Recall]:
    """Return the number of results under a random cap, and their recall."""
    cap = int(np.random.default_rng(seed).integers(60, 400))
    shedding = dt.Shedding(policy, max_tuples=cap, seed=seed)
    return (run_shards if setting.shards else run_session)(setting, seed, shedding)


def measure(name: str, setting: Setting, runs: int) -> list[dict[str, Any]]:
    """Run a setting with every policy, on the same inputs."""
    outcomes: dict[SheddingPolicy, list[tuple[bool, float]]] = {policy: [] for policy in SHEDDING}
    for seed in range(runs):
        true = true_results(drawn_input(setting, np.random.default_rng(seed)))
        for policy in SHEDDING:
            given, recall = run(setting, seed, policy)
            if recall.low is not None and recall.high is not None:
                is_inside = recall.low - 1e-9 <= given / true <= recall.high + 1e-9
                outcomes[policy].append((is_inside, recall.high - recall.low))
    rows = []
    for policy, known in outcomes.items():
        inside = sum(is_inside for is_inside, _ in known)
        width = float(np.median([width for _, width in known])) if known else None
        print(
            f"{name:22} {policy:14} {inside:4} of {len(known):4} inside, {runs - len(known):3} not known, width {width}",
            flush=True,
        )
        rows.append(
            {"setting": name, "policy": policy, "runs": runs, "known": len(known), "inside": inside, "width": width}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=30)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--only", choices=[*SETTINGS, ""], default="")
    options = parser.parse_args()
    if options.sample:
        join_sample.MIN_SAMPLE, join_sample.MIN_LOG = options.sample, options.sample // 4
    chosen = {name: setting for name, setting in SETTINGS.items() if options.only in ("", name)}
    rows = [row for name, setting in chosen.items() for row in measure(name, setting, options.runs)]
    save("recall-sampled" if options.sample else "recall", [{**row, "sample": join_sample.MIN_SAMPLE} for row in rows])


if __name__ == "__main__":
    main()
