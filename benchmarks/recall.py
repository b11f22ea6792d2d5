"""Check the interval of the estimated recall: `python benchmarks/recall.py [runs] [--sample TUPLES] [--only SETTING]`.

In each run a session with a cap joins random streams; another one without a cap gives the true number of results. Prints for each
setting and policy how often the truth was inside the interval, and the interval's median width. `--sample` is how many tuples a sample
may hold: by default all keys of these runs are followed, so the recall is exact; with a few hundred it is estimated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt
from dovetail._typing import Int64Array
from dovetail.config import SHEDDING
from dovetail.engine.shedding import join_sample
from engine import save

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
STREAMS, ROWS, SECONDS, BATCHES = "ab", 8_000, 60, 24
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
    "restores": Setting(zipf=1.1, restores=True),
}


def keys_of(setting: Setting, rng: np.random.Generator, count: int) -> pa.Array:
    """Draw keys; a Zipf distribution is over all integers."""
    keys = rng.zipf(setting.zipf, count) if setting.zipf else rng.integers(0, setting.keys, count)
    return pa.array(keys, pa.int64(), mask=rng.random(count) < setting.nulls)


def batches(setting: Setting, rng: np.random.Generator) -> Iterator[dict[str, pa.Table]]:
    """Yield the input; a batch has the tuples that arrive in a part of the time, or a number of rows of each stream."""
    drawn: dict[str, tuple[Int64Array, Int64Array, pa.Array]] = {}
    for stream in STREAMS:
        seconds = SECONDS / 2 if setting.by_rows and stream == "b" else SECONDS
        times = np.sort(rng.integers(0, int(seconds * SECOND), ROWS)) // setting.grain * setting.grain
        arrivals = times + (rng.random(ROWS) * setting.disorder * SECOND).astype(np.int64)
        arrivals += int(setting.lag * SECOND) * (stream == "b")
        drawn[stream] = times, arrivals, keys_of(setting, rng, ROWS)
    end = max(int(arrivals.max()) for _, arrivals, _ in drawn.values()) + 1
    for number in range(BATCHES):
        batch = {}
        for stream, (times, arrivals, keys) in drawn.items():
            position = np.arange(ROWS) / ROWS if setting.by_rows else arrivals / end
            rows = np.flatnonzero((position * BATCHES).astype(np.int64) == number)
            batch[stream] = pa.table([pa.array(times[rows]).cast(SCHEMA.field("ts").type), keys.take(rows)], SCHEMA)
        yield batch


def session(setting: Setting, shedding: dt.Shedding | None) -> dt.LocalSession:
    made = dt.LocalSession(config=dt.Config(shedding=shedding, adaptive=False))
    for stream in STREAMS:
        made.stream(stream, SCHEMA, event_time="ts", lateness=f"{setting.disorder} seconds")
    made.query("q", SQL)
    return made


def results(setting: Setting, seed: int, shedding: dt.Shedding | None) -> tuple[int, dict[str, Any]]:
    """Return the number of results of a run, and the recall."""
    joined, count = session(setting, shedding), 0
    for number, batch in enumerate(batches(setting, np.random.default_rng(seed))):
        count += joined.push(batch)["q"].num_rows
        if setting.restores and shedding is not None and number % 5 == 4:
            joined = dt.LocalSession.restore(joined.snapshot())
    recall: Any = joined.metrics()["queries"]["q"].get("recall")
    return count, recall


def measure(name: str, setting: Setting, runs: int) -> list[dict[str, Any]]:
    """Run a setting with every policy; the runs of a policy have seeds of their own."""
    rows = []
    for policy in SHEDDING:
        inside, known, widths = 0, 0, []
        for seed in range(runs):
            cap = int(np.random.default_rng(seed).integers(60, 400))
            (true, _), (given, recall) = (
                results(setting, seed, shedding) for shedding in (None, dt.Shedding(policy, max_tuples=cap, seed=seed))
            )
            if recall["estimate"] is None:
                continue
            known += 1
            inside += recall["low"] - 1e-9 <= given / true <= recall["high"] + 1e-9
            widths.append(recall["high"] - recall["low"])
        width = float(np.median(widths)) if widths else None
        row = {"setting": name, "policy": policy, "runs": runs, "known": known, "inside": inside, "width": width}
        print(f"{name:22} {policy:14} {inside:4} of {known:4} inside, {runs - known:3} not known, width {width}")
        rows.append(row)
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
