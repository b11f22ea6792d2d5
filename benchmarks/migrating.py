"""Measure plans that migrate: what a change costs beside a batch, and what it is worth when streams drift.

- `cost`: four streams, two queries with a common sub-join, windows of so many tuples. The plan goes to and fro between n-ary joins and
  materialized joins, whose matches have to be found anew each time. Beside it stands the mean batch of 10,000 tuples.
- `drift`: the same queries; in the middle of the run selectivities, or rates, change so that another sub-join is worth storing. Four
  sessions get the same batches: one that adapts, one that keeps its plan, and two that are told: they go over to the plan that the
  first had come to in the end, one at the moment of the change, the other when windows hold nothing from before it. Reported is
  the time of the batches after the change.

All give the same results, which is checked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import mean, median

import numpy as np
import pyarrow as pa
from rich.table import Table

import dovetail as dt
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.optimizer.joint import JointPlanning
from dovetail.plan.shared_plan import Load, SharedPlan
from engine import console, save

COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("j", pa.int64())])
SECOND = 1_000_000
SPAN = 10
"""Seconds of all windows."""
QUERIES = {
    f"with_{name}": f"SELECT a.ts, b.ts AS t, {name}.ts AS u FROM a [RANGE 10 s], b [RANGE 10 s], {name} [RANGE 10 s] "
    f"WHERE a.k = b.k AND b.j = {name}.j"
    for name in "cd"
}
Keys = tuple[int, int]
Batch = dict[str, pa.Table]


def batches(count: int, rows: dict[str, int], keys: Keys, first: int = 0, seconds: float = 1.0) -> Iterator[Batch]:
    """So many batches of `seconds` of event time each; `keys`: distinct values of k and j."""
    for number in range(first, first + count):
        rng = np.random.default_rng([number, 7])
        found = {}
        for name, own in rows.items():
            times = np.sort(rng.integers(0, round(seconds * SECOND), own)) + round(number * seconds * SECOND)
            values = [pa.array(rng.integers(0, each, own)) for each in keys]
            found[name] = pa.table([pa.array(times, COLUMNS.field("ts").type), *values], schema=COLUMNS)
        yield found


def new_session(*, adaptive: bool) -> dt.LocalSession:
    session = dt.LocalSession(config=dt.Config(strategy="exchange", adaptive=adaptive))
    for name in "abcd":
        session.stream(name, COLUMNS, "ts")
    for name, sql in QUERIES.items():
        session.query(name, sql)
    return session


def migrate(session: dt.LocalSession, plan: SharedPlan) -> float:
    """Go over to a plan of the session's queries; give the seconds that it takes."""
    job, began = session._job, time.perf_counter()  # noqa: SLF001 - what sessions do by themselves is forced here
    session._migrate(Proposal("forced", plan, dict(job.plans), Load()), began)  # noqa: SLF001
    return time.perf_counter() - began


def cost(tuples: int, rounds: int) -> dict[str, object]:
    """To and fro between two plans, with windows of `tuples` tuples per stream."""
    session = new_session(adaptive=False)
    pushed = 2_500
    seconds = 10 * pushed / tuples
    made = batches(
        tuples // pushed + 12 * rounds + 4, dict.fromkeys("abcd", pushed), (4 * tuples, 4 * tuples), 0, seconds
    )
    for _ in range(tuples // pushed + 2):
        session.push(next(made))
    plans = session._job.plans  # noqa: SLF001
    stored = JointPlanning(plans, dt.Config(strategy="bjtree")).plan()
    apart = JointPlanning(plans, dt.Config(strategy="mjoin")).plan()
    found: dict[str, list[float]] = {"storing": [], "dropping": [], "batch": []}
    for _ in range(rounds):
        for kind, plan in (("storing", stored), ("dropping", apart)):
            found[kind].append(migrate(session, plan))
            for _ in range(5):
                batch, began = next(made), time.perf_counter()
                session.push(batch)
                found["batch"].append(time.perf_counter() - began)
    return {"kind": "cost", "window": tuples, "batch_tuples": 4 * pushed} | {
        k: 1000 * median(v) for k, v in found.items()
    }


def drift(kind: str, count: int, scale: int) -> dict[str, object]:
    """Two halves that differ in rates or in selectivities."""
    halves: dict[str, list[tuple[dict[str, int], Keys]]] = {
        "selectivities": [
            (dict.fromkeys("abcd", scale), (20 * scale, scale // 10)),
            (dict.fromkeys("abcd", scale), (scale // 25, 40 * scale)),
        ],
        "rates": [
            ({"a": scale // 50, "b": 2 * scale, "c": 3 * scale, "d": 3 * scale}, (2 * scale, scale // 5)),
            ({"a": 3 * scale, "b": 2 * scale, "c": scale // 50, "d": scale // 50}, (2 * scale, scale // 5)),
        ],
    }
    (first, keys), (second, others) = halves[kind]

    def run(session: dt.LocalSession, told: SharedPlan | None = None, after: int = 0) -> tuple[list[float], int]:
        taken, results = [], 0
        for number, batch in enumerate([*batches(count, first, keys), *batches(count, second, others, count)]):
            began = time.perf_counter()
            if number == count + after and told is not None:
                migrate(session, told)
            results += sum(table.num_rows for table in session.push(batch).values())
            taken.append(time.perf_counter() - began)
        return taken, results

    adaptive = new_session(adaptive=True)
    times = {"adaptive": run(adaptive)}
    last = adaptive._job.joint_plan  # noqa: SLF001
    times["static"] = run(new_session(adaptive=False))
    times["told"] = run(new_session(adaptive=False), last)
    times["told_later"] = run(new_session(adaptive=False), last, SPAN)
    assert len({results for _, results in times.values()}) == 1, "the sessions differ"
    after = {name: sum(taken[count:]) for name, (taken, _) in times.items()}
    migrations = adaptive.metrics()["migrations"]
    return {
        "kind": "drift",
        "of": kind,
        "results": times["told"][1],
        "changed_at": count,
        "migrations": migrations,
    } | after


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure plans that migrate.")
    parser.add_argument("--quick", action="store_true", help="small windows, one round; nothing is kept")
    options = parser.parse_args()
    sizes, rounds = ((10_000,), 1) if options.quick else ((10_000, 100_000, 1_000_000), 3)
    runs = [cost(size, rounds) for size in sizes]
    table = Table("window, tuples per stream", "storing, ms", "dropping, ms", "mean batch, ms", title="A migration")
    for run in runs:
        table.add_row(f"{run['window']:,}", *(f"{run[name]:.1f}" for name in ("storing", "dropping", "batch")))
    console.print(table)
    drifts = [
        drift(kind, 12 if options.quick else 30, 1000)
        for _ in range(1 if options.quick else 3)
        for kind in ("selectivities", "rates")
    ]
    names = ("adaptive", "static", "told", "told_later")
    table = Table("drift of", *(f"{name}, s" for name in names), title="Batches after the change, mean of rounds")
    for kind in ("selectivities", "rates"):
        own = [run for run in drifts if run["of"] == kind]
        means = [mean(float(run[name]) for run in own) for name in names]  # type: ignore[arg-type]
        table.add_row(kind, *(f"{each:.3f}" for each in means))
    console.print(table)
    if not options.quick:
        save("migrating", [*runs, *drifts])


if __name__ == "__main__":
    main()
