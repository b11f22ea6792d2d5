"""Measure many overlapping queries on Spark: in one session, in a session each, and as Spark's own joins.

The queries are those of `dovetail.workloads.overlap`: each joins four of six streams on one key, and a predicate is in 60 % of them
on average. There are six such join graphs, so from seven queries on some are equal but for windows and outputs; `graphs` says how
many different ones a run has. `--different` instead takes 17 queries over three to six streams, of which no two have the same graph.
Input lies in Parquet files; a micro-batch reads one file of each stream and holds five seconds. Results go to Parquet files.

Runners, each in a process of its own:

- `together`: all queries in one `dovetail.Session` with a budget, so that it stores what pays;
- `unshared`: all in one session, each as an n-ary join of its own (windows are shared, joins are not);
- `separate`: a session for each query, one after another, all cores for each;
- `native`: Spark's own joins, chained by hand, for each query, one after another. It reads fewer and smaller files.

Reported: seconds per micro-batch once windows are full (for runners that take queries one after another, their sum), how much that
is of one query's, and the source's tuples per second. Result counts are compared with DuckDB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
import engine
from dovetail.workloads import overlap

if TYPE_CHECKING:
    from dovetail.config import StrategyOption

SECONDS_PER_FILE = 5
WARM = 2
"""Micro-batches before windows are full and code is compiled."""
DDL = "ts timestamp, k bigint, v bigint, note string"
console = Console(width=120)


def write_input(folder: Path, files: int, rows: int) -> None:
    for name in overlap.STREAMS:
        (folder / name).mkdir(parents=True)
        for file in range(files):
            path = folder / name / f"{file:04}.parquet"
            pq.write_table(overlap.table(name, file * rows, rows, rows / SECONDS_PER_FILE), path)
            os.utime(path, (1_600_000_000 + file, 1_600_000_000 + file))


@cache
def expected_results(folder: Path, sql: str) -> int:
    """Count the results of what follows FROM over all files: whatever lies within its window of each other."""
    import duckdb  # noqa: PLC0415

    own = [name for name in overlap.STREAMS if f"{name} [RANGE" in sql]
    seconds = int(sql.split("[RANGE ")[1].split(maxsplit=1)[0])
    read = ", ".join(f"read_parquet('{folder / name}/*.parquet') {name}" for name in own)
    times = ", ".join(f"{name}.ts" for name in own)
    near = f"greatest({times}) - least({times}) <= INTERVAL {seconds} SECONDS"
    counted = duckdb.sql(f"SELECT count(*) FROM {read} WHERE {sql.split(' WHERE ')[1]} AND {near}")
    assert counted is not None
    ((count,),) = counted.fetchall()
    return int(count)


def read_stream(spark: Any, folder: Path, name: str) -> Any:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / name))


def start_dovetail(
    spark: Any, folder: Path, queries: dict[str, str], rate: float, work: Path, strategy: StrategyOption
) -> Any:
    import dovetail as dt  # noqa: PLC0415

    budget = dt.Budget(cpu_ms_per_second=1e6) if strategy == "exchange" else None
    session = dt.Session(spark, budget, shards=2, config=dt.Config(strategy=strategy))
    for name in overlap.STREAMS:
        session.stream(name, read_stream(spark, folder, name), "ts", rate=rate)
        for other in overlap.STREAMS:
            if name < other:
                session.selectivity(f"{name}.k = {other}.k", 1 / overlap.keys(rate))
    for name, sql in queries.items():
        session.query(name, sql)
    sinks = {name: dt.sinks.parquet(str(work / name / "out")) for name in queries}
    return session.start(sinks, str(work / "-".join(queries)[:40] / "checkpoint"), {"availableNow": True})


def start_native(spark: Any, folder: Path, name: str, sql: str, work: Path) -> Any:
    """Spark's own joins of one query, chained along its predicates."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    seconds = int(sql.split("[RANGE ")[1].split(maxsplit=1)[0])
    edges = [edge for edge in overlap.TREE if f"{edge[0]}.k = {edge[1]}.k" in sql]
    joined, inside, times = None, [edges[0][0]], [f"{edges[0][0]}_ts"]

    def frame(stream: str) -> Any:
        columns = [F.col(column).alias(f"{stream}_{column}") for column in ("ts", "k", "v", "note")]
        return read_stream(spark, folder, stream).withWatermark("ts", "0 seconds").select(*columns)

    joined = frame(inside[0])
    while len(inside) < len(edges) + 1:
        old, new = next(
            (a, b) if a in inside else (b, a) for a, b in edges if (a in inside) != (b in inside)
        )  # a predicate that leads on
        at = f"{new}_ts"
        condition = F.col(f"{old}_k") == F.col(f"{new}_k")
        condition &= F.expr(
            f"{at} BETWEEN {times[0]} - INTERVAL {seconds} SECONDS AND {times[0]} + INTERVAL {seconds} SECONDS"
        )
        for other in times[1:]:
            condition &= F.abs(F.unix_micros(F.col(at)) - F.col(other)) <= seconds * 1_000_000
        # Only one column may carry event time into the next join.
        joined = joined.join(frame(new), condition).withColumn(at, F.unix_micros(F.col(at)))
        inside.append(new)
        times.append(at)
    counted = joined.observe("results", F.count(F.lit(1)).alias("rows"))
    writer = counted.writeStream.format("parquet").outputMode("append").option("path", str(work / name / "out"))
    return writer.option("checkpointLocation", str(work / name / "checkpoint")).trigger(availableNow=True).start()


def seconds_per_batch(query: Any) -> float:
    steady = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows][WARM:]
    return float(sum(steady) / len(steady) / 1000)


def queries_of(count: int, *, different: bool) -> dict[str, str]:
    return dict(list(overlap.different().items())[:count]) if different else overlap.queries(count)


def run_one(runner: str, queries: dict[str, str], folder: Path, rate: float, work: Path) -> dict[str, Any]:
    from dovetail.spark import session  # noqa: PLC0415

    spark = session(2, memory="2g")
    seconds, results = 0.0, {}
    if runner in ("together", "unshared"):
        running = start_dovetail(spark, folder, queries, rate, work, "exchange" if runner == "together" else "naive")
        running.await_termination()
        seconds = seconds_per_batch(running.query)
        results = {name: entry["results"] for name, entry in running.metrics()["queries"].items()}
    for name, sql in queries.items() if runner in ("separate", "native") else ():
        if runner == "separate":
            running = start_dovetail(spark, folder, {name: sql}, rate, work, "auto")
            running.await_termination()
            seconds += seconds_per_batch(running.query)
            results[name] = running.metrics()["queries"][name]["results"]
        else:
            query = start_native(spark, folder, name, sql, work)
            query.awaitTermination()
            seconds += seconds_per_batch(query)
            observed = [p.observedMetrics for p in query.recentProgress]
            results[name] = sum(metrics["results"]["rows"] for metrics in observed if "results" in metrics)
    return {"runner": runner, "queries": len(queries), "seconds": seconds, "results": results}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    measured = []
    for runner in options.only.split(","):
        native = runner == "native"
        rows, files = (options.native_rows, options.native_files) if native else (options.rows, options.files)
        given = {"native": options.native_counts, "separate": options.separate_counts}.get(runner, options.counts)
        counts = [1, len(overlap.different())] if options.different else [int(count) for count in given.split(",")]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "in"
            write_input(folder, files, rows)
            for count in counts:
                queries = queries_of(count, different=options.different)
                console.print(f"  {runner}: {count} queries ...", style="dim")
                work = Path(name) / f"{runner}-{count}"
                rate = rows / SECONDS_PER_FILE
                asked = json.dumps(queries)
                command = [sys.executable, __file__, "--child", runner, asked, str(folder), str(rate), str(work)]
                start = time.time()
                try:
                    output = subprocess.run(
                        command, check=True, capture_output=True, text=True, timeout=options.timeout
                    ).stdout
                except subprocess.TimeoutExpired:
                    console.print(f"  {runner}: {count} queries did not finish in {options.timeout} s")
                    break
                except subprocess.CalledProcessError as error:
                    console.print(f"  {runner}: {count} queries failed:\n{_failure(error.stderr)}", markup=False)
                    break
                row = json.loads(output.strip().splitlines()[-1])
                for query, found in row["results"].items():
                    expected = expected_results(folder, queries[query].split(" FROM ")[1])
                    assert found == expected, f"{runner}, {query}: {found} results, DuckDB {expected}"
                row |= {"rows": rows, "total_seconds": time.time() - start, "results": sum(row["results"].values())}
                row |= {"graphs": overlap.graphs(queries), "different": options.different}
                measured.append(row)
    return measured


def _failure(text: str) -> str:
    """The lines of a trace that say what went wrong; a plan of so many queries is no use."""
    return "\n".join(line[:500] for line in text.splitlines() if "Error" in line or "Exception" in line)


def show(measured: list[dict[str, Any]]) -> None:
    headers = ("runner", "queries", "join graphs", "s per micro-batch", "to one query", "thousand tuples/s", "results")
    table = Table(*headers, title="Overlapping queries on Spark, local[2]")
    one = {m["runner"]: m["seconds"] for m in measured if m["queries"] == 1}
    for m in measured:
        rate = len(overlap.STREAMS) * m["rows"] / m["seconds"] / 1000
        first = one.get(m["runner"])
        table.add_row(
            m["runner"], str(m["queries"]), str(m["graphs"]), f"{m['seconds']:.2f}",
            f"{m['seconds'] / first:.2f}" if first else "", f"{rate:,.1f}", f"{m['results']:,}",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        runner, asked, folder, rate, work = sys.argv[2:]
        print(json.dumps(run_one(runner, json.loads(asked), Path(folder), float(rate), Path(work))))
        return
    parser = argparse.ArgumentParser(description="Measure many overlapping queries on Spark.")
    parser.add_argument("--rows", type=int, default=100_000, help="tuples per stream and micro-batch")
    parser.add_argument("--files", type=int, default=6, help="micro-batches")
    parser.add_argument("--counts", default="1,2,4,8,16,32,64,256", help="numbers of queries")
    parser.add_argument("--separate-counts", default="1,2,4,8,16,32")
    parser.add_argument("--different", action="store_true", help="1 and 17 queries, no two with the same join graph")
    parser.add_argument("--native-rows", type=int, default=20_000)
    parser.add_argument("--native-files", type=int, default=4)
    parser.add_argument("--native-counts", default="1,2,4")
    parser.add_argument("--only", default="together,unshared,separate,native")
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a runner is given up")
    options = parser.parse_args()
    measured = measure(options)
    show(measured)
    engine.save("multiquery-different" if options.different else "multiquery", measured)


if __name__ == "__main__":
    main()
