"""Resident memory with and without a cap: `python benchmarks/shedding_memory.py [--tuples N] [--payload BYTES]`.

Five streams on one key, windows that hold `--tuples` tuples (a million by default) without a cap; the cap is half of that. Each
session runs in its own process, which reports the final and the peak growth of its resident memory after three windows of input.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

import dovetail as dt
from dovetail.config import SHEDDING, SheddingPolicy
from engine import save

STREAMS, WINDOW, BATCHES = "abcde", 10, 60
SQL = (
    f"SELECT a.k AS k FROM {', '.join(f'{stream} [RANGE {WINDOW} s]' for stream in STREAMS)} "
    f"WHERE {' AND '.join(f'a.k = {stream}.k' for stream in STREAMS[1:])}"
)


def resident_bytes() -> int:
    """Return the resident memory of this process (on Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(policy: str, tuples: int, payload: int) -> dict[str, Any]:
    """Push three windows of input; return the growth of resident memory in bytes."""
    fields = [("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), *([("p", pa.string())] if payload else [])]
    schema = pa.schema(fields)
    shedding = None if policy == "none" else dt.Shedding(cast("SheddingPolicy", policy), max_tuples=tuples // 2)
    session = dt.LocalSession(config=dt.Config(shedding=shedding, adaptive=False))
    for stream in STREAMS:
        session.stream(stream, schema, event_time="ts")
    payloads = "".join(f", {stream}.p AS {stream}" for stream in STREAMS) if payload else ""
    session.query("q", SQL.replace("SELECT a.k AS k", f"SELECT a.k AS k{payloads}"))
    rng, rate = np.random.default_rng(0), tuples // len(STREAMS) // WINDOW
    per_batch = 3 * WINDOW / BATCHES
    most, before, results = 0, 0, 0
    for number in range(BATCHES + 1):  # the first batch is small: it loads the kernels
        count = int(rate * per_batch) if number else 100
        batch = {}
        for stream in STREAMS:
            times = np.sort(rng.integers(int(number * per_batch * 1e6), int((number + 1) * per_batch * 1e6), count))
            columns = [
                pa.array(times).cast(schema.field("ts").type),
                pa.array(rng.integers(0, 2 * rate * WINDOW, count)),
            ]
            columns += [
                pa.array([f"{value:x}" * (payload // 8) for value in rng.integers(1 << 28, 1 << 32, count)])
            ] * (payload > 0)
            batch[stream] = pa.table(columns, schema=schema)
        results += session.push(batch)["q"].num_rows
        del batch, columns
        resident = resident_bytes()
        before, most = (resident, resident) if not number else (before, max(most, resident))
    metrics: Any = session.metrics()
    held = sum(stream["state_tuples"] for stream in metrics["streams"].values())
    state = sum(stream["state_bytes"] for stream in metrics["streams"].values())
    return {"policy": policy, "end": resident - before, "most": most - before, "held": held, "state_bytes": state}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuples", type=int, default=1_000_000)
    parser.add_argument("--payload", type=int, default=0, help="bytes of a text column")
    parser.add_argument("--only", default="", help="policies, separated by commas")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.tuples, options.payload)))
        return
    rows: list[dict[str, Any]] = []
    for policy in ("none", *(options.only.split(",") if options.only else SHEDDING)):
        command = [sys.executable, __file__, "--one", policy, "--tuples", str(options.tuples), "--payload"]
        output = subprocess.run([*command, str(options.payload)], capture_output=True, text=True, check=True).stdout
        row = json.loads(output.splitlines()[-1])
        row |= {"tuples": options.tuples, "payload": options.payload}
        row["ratio"] = row["end"] / rows[0]["end"] if rows else 1.0
        rows.append(row)
        print(
            f"{policy:14} {row['end'] / 1e6:7.1f} MB, at most {row['most'] / 1e6:7.1f} MB, {row['ratio']:5.2f} of none; "
            f"{row['held']:,} tuples held, state_bytes {row['state_bytes'] / 1e6:.1f} MB"
        )
    save("shedding-memory-1kb" if options.payload else "shedding-memory", rows)


if __name__ == "__main__":
    main()
