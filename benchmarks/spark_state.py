"""Show that state on Spark stays flat: in the checkpoint over many windows, and in memory over any number of cores.

`windows`: three streams of 1,000 tuples per second, joined on one key over 10-second windows; a micro-batch is one window. After each,
the checkpoint is measured. From copies of it, made after 3 windows and after the last, the session is started again several times, in
turns: the time from `start` to the end of the first micro-batch must not grow.

`cores`: the same with 8 shards on local[n] for several n: how many engines were rebuilt, how many live directories there are, and what
they and the Python workers hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
import engine
import spark as throughput

FEW = 3
RESTARTS = 5
PAUSE = 1.0
"""Seconds between micro-batches: Spark removes old files every few seconds."""
SHARDS = 8
console = Console(width=120)


def folder_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # shards and Spark move and remove files meanwhile
                total += (Path(place) / name).stat().st_size
    return total


def declare(spark: Any, folder: Path, shards: int) -> Any:
    import dovetail as dt  # noqa: PLC0415

    session = dt.Session(spark, shards=shards)
    own = throughput.names(3)
    for name in own:
        frame = spark.readStream.schema(throughput.DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        session.stream(name, frame, "ts", rate=float(engine.RATE))
    windows = ", ".join(f"{name} [RANGE {engine.WINDOW_SECONDS} SECONDS]" for name in own)
    session.query("q", f"SELECT s0.ts, s0.v, s1.v AS v1, s2.v AS v2 FROM {windows} WHERE s0.k = s1.k AND s1.k = s2.k")
    return session


def release(source: Path, shown: Path, first: int, count: int) -> None:
    """Show the source so many more files of each stream."""
    for stream in source.iterdir():
        (shown / stream.name).mkdir(parents=True, exist_ok=True)
        for path in sorted(stream.iterdir())[first : first + count]:
            os.link(path, shown / stream.name / path.name)


def run_windows(source: Path, work: Path, windows: int) -> dict[str, Any]:
    """Run window after window, the sink looking at the checkpoint; then start again from copies of it, in turns."""
    import dovetail as dt  # noqa: PLC0415
    from dovetail.spark import session  # noqa: PLC0415

    spark = session(2, memory="1g")
    sizes: list[int] = []
    done = results = 0

    def look(_: Any, batch_id: int) -> None:
        time.sleep(PAUSE)
        del sizes[batch_id:]
        sizes.append(folder_bytes(work / "checkpoint" / "state"))

    for upto in (FEW, windows):
        release(source, work / "in", done, upto - done)
        running = declare(spark, work / "in", 2).start(
            {"q": dt.sinks.call(look)}, str(work / "checkpoint"), {"availableNow": True}
        )
        running.await_termination()
        results += running.metrics()["queries"]["q"]["results"]
        done = upto
        shutil.copytree(work / "checkpoint", work / f"after-{upto}")
    release(source, work / "in", done, 1)
    restarts: dict[int, list[float]] = {FEW: [], windows: []}
    for turn in range(RESTARTS):
        for after, seconds in restarts.items():
            checkpoint = work / f"restart-{after}-{turn}"
            shutil.copytree(work / f"after-{after}", checkpoint)
            seconds.append(restart(spark, work / "in", checkpoint))
    return {"state_bytes": sizes, "restart_seconds": restarts, "results": results}


def restart(spark: Any, source: Path, checkpoint: Path) -> float:
    """Seconds from `start` to the end of the first micro-batch."""
    import dovetail as dt  # noqa: PLC0415

    ends: list[float] = []
    began = time.monotonic()
    running = declare(spark, source, 2).start(
        {"q": dt.sinks.call(lambda *_: ends.append(time.monotonic()))}, str(checkpoint), {"availableNow": True}
    )
    while not ends:
        running.await_termination(0.05)
    running.stop()
    return ends[0] - began


def run_cores(source: Path, work: Path, cores: int) -> dict[str, Any]:
    import dovetail as dt  # noqa: PLC0415
    from dovetail.spark import session  # noqa: PLC0415
    from dovetail.spark.state.shared_memory import shared_memory_root  # noqa: PLC0415

    spark = session(cores, memory="1g")
    running = declare(spark, source, SHARDS).start(
        {"q": dt.sinks.call(lambda *_: None)}, str(work / "checkpoint"), {"availableNow": True}
    )
    live, engines, peak = 0, 0, 0
    while not running.await_termination(1):
        peak = max(peak, throughput.tree_memory(os.getpid()))
        home = shared_memory_root(running._run_id)  # noqa: SLF001
        if home.exists():
            live = max(live, folder_bytes(home))
            engines = max(
                engines, len([place for shard in home.iterdir() if shard.is_dir() for place in shard.iterdir()])
            )
    metrics = running.metrics()
    calls = metrics["batches"] * len(metrics["shards"])
    return {
        "cores": cores, "batches": metrics["batches"], "calls": calls, "rebuilt": metrics["rebuilt_shards"],
        "live_engines": engines, "live_bytes": live, "peak_bytes": peak, "results": metrics["queries"]["q"]["results"],
    }  # fmt: skip


def child(part: str, source: Path, number: int) -> Any:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--child", part, str(source), work, str(number)]
        console.print(f"  {part} {number} ...", style="dim")
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return json.loads(output.strip().splitlines()[-1])


def show_windows(measured: dict[str, Any]) -> None:
    table = Table("window", "checkpoint state KB", title="State in the checkpoint")
    sizes = measured["state_bytes"]
    for number in sorted({1, 2, FEW, *range(5, len(sizes), 5), len(sizes)}):
        table.add_row(str(number), f"{sizes[number - 1] / 1e3:,.0f}")
    console.print(table)
    middle = len(sizes) // 2
    halves = [max(part) / 1e6 for part in (sizes[middle // 2 : middle], sizes[middle:])]
    console.print(f"most in windows {middle // 2} to {middle}: {halves[0]:.1f} MB; afterwards: {halves[1]:.1f} MB")
    for windows, seconds in measured["restart_seconds"].items():
        each = ", ".join(f"{one:.2f}" for one in seconds)
        console.print(f"restart after {windows} windows: first micro-batch done after {median(seconds):.2f} s ({each})")


def show_cores(measured: list[dict[str, Any]]) -> None:
    table = Table("cores", "calls of shards", "found live", "engines", "live MB", "all MB", title=f"{SHARDS} shards")
    for m in measured:
        found = 1 - m["rebuilt"] / m["calls"]
        table.add_row(
            str(m["cores"]),
            str(m["calls"]),
            f"{found:.1%}",
            str(m["live_engines"]),
            f"{m['live_bytes'] / 1e6:.1f}",
            f"{m['peak_bytes'] / 1e6:,.0f}",
        )
    console.print(table)


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        part, source, work, number = sys.argv[2:]
        run = {"windows": run_windows, "cores": run_cores}[part]
        print(json.dumps(run(Path(source), Path(work), int(number))))
        return
    parser = argparse.ArgumentParser(description="Show that state on Spark stays flat.")
    parser.add_argument("--windows", type=int, default=30)
    parser.add_argument("--cores", default="2,4,8")
    options = parser.parse_args()
    rows = engine.WINDOW_SECONDS * engine.RATE
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder) / "in"
        throughput.write_input(shown, 3, options.windows + 1, rows)
        expected = [throughput.expected_results(shown, "3-way", options.windows + more) for more in (0, 1)]
        windows = child("windows", shown, options.windows)
        show_windows(windows)
        cores = [child("cores", shown, int(number)) for number in options.cores.split(",")]
        show_cores(cores)
    for measured in (windows, *cores):
        counted = expected["cores" in measured]
        assert measured["results"] == counted, f"{measured['results']} results, DuckDB {counted}"
    engine.save("spark-state", [windows, *cores])


if __name__ == "__main__":
    main()
