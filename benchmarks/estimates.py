"""Compare what plans are expected to cost with what they do cost, on the workloads of the other benchmarks.

Three and five streams on one key, and a chain of three on two keys, run in one process. `explain` then holds for each stage of each
input's path the rows and microseconds per new tuple, expected and measured: estimates are those of the last time that orders were
considered, from measured selectivities and this machine's unit costs. The goal is a factor of two at every stage.

Then eight overlapping queries under a budget: CPU and bytes of each part of their plan, as planned from declared rates and hints, and
as measured. Again the goal is a factor of two, everywhere.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import dovetail as dt
from dovetail.calibrate import calibrate

sys.path.insert(0, str(Path(__file__).parent))
import engine
from dovetail.workloads import overlap

WORKLOADS = {"3-way": ["k", "k"], "5-way": ["k"] * 4, "chain": ["k", "j"]}
ROWS = 150_000
PUSH = 10_000
QUERIES, RATE, SECONDS = 8, 20_000.0, 30
console = Console(width=120)


def run(keys: list[str]) -> dt.LocalSession:
    names = [f"s{number}" for number in range(len(keys) + 1)]
    tables = {}
    session = dt.LocalSession()
    for number, name in enumerate(names):
        other = engine.generate(ROWS, number, len(names), seed=2).column("k")
        tables[name] = engine.generate(ROWS, number, len(names)).add_column(2, "j", other)
        session.stream(name, tables[name].schema, "ts", rate=float(engine.RATE))
    equal = [f"{a}.{key} = {b}.{key}" for (a, b), key in zip(pairwise(names), keys, strict=True)]
    for condition in equal:
        session.selectivity(condition, 1 / engine.KEYS)
    windows = ", ".join(f"{name} [RANGE {engine.WINDOW_SECONDS} SECONDS]" for name in names)
    session.query("q", f"SELECT * FROM {windows} WHERE {' AND '.join(equal)}")
    step = PUSH // len(names)
    for first in range(0, ROWS, step):
        session.push({name: table.slice(first, step) for name, table in tables.items()})
    return session


def stages() -> dict[str, list[float]]:
    """Show each stage; give the factors by which estimates are wrong."""
    table = Table("workload", "stage", "rows expected", "measured", "us expected", "measured", title="Per new tuple")
    factors: dict[str, list[float]] = {"rows": [], "us": []}
    for workload, keys in WORKLOADS.items():
        session = run(keys)
        explained: Any = session.explain().to_dict()
        for driver, stages in explained["queries"]["q"]["paths"].items():
            for stage in stages[1:]:
                figures = []
                for kind, known in factors.items():
                    expected, measured = stage["expected"][kind], stage["measured"][kind]
                    known.append(max(expected / measured, measured / expected))
                    figures += [f"{expected:.3f}", f"{measured:.3f}"]
                table.add_row(workload, f"new {driver} meets {stage['alias']}", *figures)
    console.print(table)
    return {"rows of a stage": factors["rows"], "time of a stage": factors["us"]}


def parts() -> dict[str, list[float]]:
    """Show each part of a plan for many queries; give the factors by which estimates are wrong."""
    session = dt.LocalSession(dt.Budget(cpu_ms_per_second=1000, memory_bytes=1 << 30))
    overlap.declare(session, lambda _: overlap.COLUMNS, QUERIES, RATE)
    for second in range(SECONDS):
        first = int(second * RATE)
        session.push({name: overlap.table(name, first, int(RATE), RATE) for name in overlap.STREAMS})
    explained: Any = session.explain().to_dict()
    table = Table("part", "ms/s expected", "measured", "MB expected", "measured", title=f"{QUERIES} queries, one plan")
    factors: dict[str, list[float]] = {"cpu_ms_per_second": [], "memory_bytes": []}
    for kind in ("windows", "joins", "results"):
        for name, entry in explained["plan"][kind].items():
            figures = []
            for resource, unit in (("cpu_ms_per_second", 1), ("memory_bytes", 1e6)):
                expected, measured = entry[resource], entry["measured"][resource]
                if expected and measured:
                    factors[resource].append(max(expected / measured, measured / expected))
                figures += [f"{value / unit:.2f}" if value else "" for value in (expected, measured)]
            table.add_row(name, *figures)
    console.print(table)
    return {
        "CPU of a part of a plan": factors["cpu_ms_per_second"],
        "memory of a part of a plan": factors["memory_bytes"],
    }


def main() -> None:
    console.print(str(calibrate(again=True)))
    runs = []
    for what, factors in (stages() | parts()).items():
        runs.append({"what": what, "median": median(factors), "worst": max(factors), "factors": factors})
        console.print(f"{what}: wrong by {median(factors):.2f} in the median, {max(factors):.2f} at worst")
    engine.save("estimates", runs)


if __name__ == "__main__":
    main()
