"""Show that state on Spark stays flat: in the checkpoint over many windows, and in memory over any number of cores.

`windows`: three streams of 1,000 tuples per second, joined on one key over 10-second windows; a micro-batch is one window. After each,
the checkpoint is measured. The session is stopped and started again after 3 windows and after the last: the time from `start` to the
end of the first micro-batch must not grow.

`cores`: the same with 8 shards on local[n] for several n: how many engines were rebuilt, how many live directories there are, and what
they and the Python workers hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
import engine
import spark as throughput

FEW = 3
SHARDS = 8
console = Console()


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    """Each start runs what is there and stops; the last micro-batch of each is the one that a restart is timed by."""
    import dovetail as dt  # noqa: PLC0415
    from dovetail.spark import session  # noqa: PLC0415

    spark = session(2, memory="1g")
    sizes: list[int] = []
    restarts: dict[int, float] = {}
    results = 0
    done = 0
    for upto in (1, FEW, FEW + 1, windows, windows + 1):
        release(source, work / "in", done, upto - done)
        began = time.monotonic()
        first: list[float] = []
        running = declare(spark, work / "in", 2).start(
            {"q": dt.sinks.call(lambda *_: None)}, str(work / "checkpoint"), {"availableNow": True}
        )
        while not running.await_termination(0):
            if running.query.lastProgress and not first:
                first.append(time.monotonic() - began)
            size = folder_bytes(work / "checkpoint" / "state")
            if running.metrics()["batches"] != len(sizes) - done and running.query.lastProgress:
                sizes = sizes[: done + running.metrics()["batches"]]
                sizes += [size] * (done + running.metrics()["batches"] - len(sizes))
            time.sleep(0.05)
        first = first or [time.monotonic() - began]
        results += running.metrics()["queries"]["q"]["results"]
        sizes += [folder_bytes(work / "checkpoint" / "state")] * (upto - len(sizes))
        if upto in (FEW + 1, windows + 1):
            restarts[upto - 1] = first[0]
        done = upto
    return {"state_bytes": sizes, "restart_seconds": restarts, "results": results}


def run_cores(source: Path, work: Path, cores: int) -> dict[str, Any]:
    import dovetail as dt  # noqa: PLC0415
    from dovetail.spark import session  # noqa: PLC0415
    from dovetail.spark.live import live_root  # noqa: PLC0415

    spark = session(cores, memory="1g")
    running = declare(spark, source, SHARDS).start(
        {"q": dt.sinks.call(lambda *_: None)}, str(work / "checkpoint"), {"availableNow": True}
    )
    live, engines = 0, 0
    while not running.await_termination(1):
        home = live_root(running._run)  # noqa: SLF001
        if home.exists():
            live = max(live, folder_bytes(home))
            engines = max(
                engines, len([place for shard in home.iterdir() if shard.is_dir() for place in shard.iterdir()])
            )
    metrics = running.metrics()
    calls = metrics["batches"] * len(metrics["shards"])
    return {
        "cores": cores, "batches": metrics["batches"], "calls": calls, "rebuilt": metrics["rebuilt_shards"],
        "live_engines": engines, "live_bytes": live, "results": metrics["queries"]["q"]["results"],
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
    for windows, seconds in measured["restart_seconds"].items():
        console.print(f"restart after {windows} windows: first micro-batch done after {seconds:.1f} s")


def show_cores(measured: list[dict[str, Any]]) -> None:
    table = Table("cores", "calls of shards", "found live", "engines", "live MB", title=f"{SHARDS} shards")
    for m in measured:
        found = 1 - m["rebuilt"] / m["calls"]
        table.add_row(
            str(m["cores"]), str(m["calls"]), f"{found:.1%}", str(m["live_engines"]), f"{m['live_bytes'] / 1e6:.1f}"
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
        expected = throughput.expected_results(shown, "3-way", options.windows + 1)
        windows = child("windows", shown, options.windows)
        show_windows(windows)
        cores = [child("cores", shown, int(number)) for number in options.cores.split(",")]
        show_cores(cores)
    for measured in (windows, *cores):
        assert measured["results"] == expected, f"{measured['results']} results, DuckDB {expected}"
    engine.save("spark-state", [windows, *cores])


if __name__ == "__main__":
    main()
