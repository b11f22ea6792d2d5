"""Measure what it takes to register many overlapping queries, and to plan them: seconds and memory, here and on Spark.

The queries are those of `dovetail.workloads.overlap`, each with a filter of its own or none. Each case runs in a process of its own:
`registered` is the time of all `query` calls, `planned` that of the first `explain`, which plans all of them together, `begun` that
of the first batch (here only); `mb` is by how much the process has grown at its largest.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.table import Table

import dovetail as dt
from dovetail.workloads import overlap
from engine import console, save

RATE = 1000.0
BUDGETS = {"none": None, "wide": dt.Budget(1e9, 1e14), "tight": dt.Budget(7e6, 1e12)}
FILTERS = ("", " AND {0}.v > 10", " AND {0}.v > 20", " AND {0}.v <> 5")


def queries(count: int) -> dict[str, str]:
    """So many queries, every second one with a filter on its first stream."""
    found = {}
    for number, (name, sql) in enumerate(overlap.queries(count).items()):
        first = sql.split(" FROM ")[1].split(" ")[0]
        found[name] = sql + FILTERS[number % len(FILTERS)].format(first)
    return found


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def here(budget: dt.Budget | None) -> Any:
    session = dt.LocalSession(budget)
    for name in overlap.STREAMS:
        session.stream(name, overlap.COLUMNS, "ts", rate=RATE)
    return session


def on_spark(budget: dt.Budget | None) -> Any:
    from dovetail.spark import session as spark_session  # noqa: PLC0415 - only this case needs Spark

    spark = spark_session()
    session = dt.Session(spark, budget, shards=2)
    for name in overlap.STREAMS:
        frame = (
            spark.readStream.format("rate")
            .load()
            .selectExpr("timestamp AS ts", "value AS k", "value AS v", "'' AS note")
        )
        session.stream(name, frame, "ts", rate=RATE)
    return session


def case(kind: str, budget: str, count: int) -> dict[str, Any]:
    """One case, in this process."""
    session = (here if kind == "local" else on_spark)(BUDGETS[budget])
    texts, before = queries(count), peak_mb()
    session.query("first", next(iter(texts.values())))  # what is calibrated and loaded once
    began = time.perf_counter()
    for name, sql in texts.items():
        session.query(name, sql)
    registered = time.perf_counter()
    session.explain().to_dict()
    planned = time.perf_counter()
    found = {"registered": registered - began, "planned": planned - registered}
    if kind == "local":
        session.push({name: overlap.COLUMNS.empty_table() for name in overlap.STREAMS[:1]})
        found["begun"] = time.perf_counter() - planned
    return {"kind": kind, "budget": budget, "queries": count, **found, "mb": peak_mb() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--kinds", nargs="+", default=["local", "spark"])
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    parser.add_argument("--one", action="store_true", help="run the first of each in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(case(arguments.kinds[0], arguments.budgets[0], arguments.queries[0])))
        return
    rows = []
    table = Table(
        "session", "budget", "queries", "registered s", "planned s", "first batch s", "MB", title="Registration"
    )
    for kind in arguments.kinds:
        for budget in arguments.budgets:
            for count in arguments.queries:
                given = ["--one", "--kinds", kind, "--budgets", budget, "--queries", str(count)]
                done = subprocess.run(
                    [sys.executable, str(Path(__file__)), *given], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    console.print(f"{kind}, {budget}, {count}: {done.stderr.strip().splitlines()[-1]}")
                    continue
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                row = rows[-1]
                figures = [f"{row[name]:.2f}" if name in row else "" for name in ("registered", "planned", "begun")]
                table.add_row(kind, budget, str(count), *figures, f"{row['mb']:.0f}")
    console.print(table)
    save("registration", rows)


if __name__ == "__main__":
    main()
