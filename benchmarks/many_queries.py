"""Measure what many queries over the same streams cost beside one of them, and check their results.

Six streams, pushed 1,000 tuples each at a time, windows of 10,000 tuples; a query joins three or four of them.

- `one key`: all on one column with 10,000 values, so that each new tuple completes about one result.
- `two keys`: each stream after the first is joined with one before it on either of two columns, and half of the inputs are filtered.

For each number of queries one session takes all of them; eight of them also run by themselves, and their mean is what one query
costs. `ratio` is how many times that the session takes, `delivered` the part of its time in which results are gathered, by its own
metrics. 256 queries have many times the results of one, which have to be found and delivered whoever does it. So `equal` is what the
session takes to one query with as many results, found once where joins are equal: the mean of a join of three and of one of four
streams, whose keys have so few values that they do. Rounds of all sessions alternate, and the median counts. Seconds are of processor
time: neighbours on the machine matter less. Results of the eight queries must be those that they give by themselves. `joins` is how
many different joins there are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

import dovetail as dt
from engine import console, save

STREAMS = [f"s{number}" for number in range(6)]
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("j", pa.int64()), ("v", pa.int64())])
KEYS = WINDOW = 10_000
STEP_MICROS = 100
ALONE = 8
"""Queries that also run by themselves."""


def queries(kind: str, count: int, seed: int) -> dict[str, str]:
    """Random queries of a set; those of a larger set begin with those of a smaller one."""
    rng = np.random.default_rng((seed, kind == "two keys"))
    return {f"q{number}": _one_key(rng) if kind == "one key" else _two_keys(rng) for number in range(count)}


def _aliases(rng: np.random.Generator) -> tuple[list[str], str]:
    names = [str(name) for name in rng.choice(STREAMS, rng.integers(3, 5), replace=False)]
    micros = WINDOW * STEP_MICROS
    windows = ", ".join(f"{name} [RANGE {micros} MICROSECONDS]" for name in names)
    return names, f"SELECT {', '.join(f'{name}.ts AS {name}' for name in names)} FROM {windows} WHERE "


def _one_key(rng: np.random.Generator) -> str:
    names, text = _aliases(rng)
    return text + " AND ".join(f"{names[0]}.k = {name}.k" for name in names[1:])


def _two_keys(rng: np.random.Generator) -> str:
    names, text = _aliases(rng)
    conditions = []
    for number, name in enumerate(names[1:]):
        column, other = rng.choice(["k", "j"]), names[rng.integers(0, number + 1)]
        conditions.append(f"{other}.{column} = {name}.{column}")
    conditions += [f"{name}.v < {rng.choice([25, 50, 75])}" for name in names if rng.random() < 0.5]
    return text + " AND ".join(conditions)


def open_session(chosen: dict[str, str], **config: Any) -> dt.LocalSession:
    session = dt.LocalSession(config=dt.Config(**config))
    for name in STREAMS:
        session.stream(name, SCHEMA, "ts", rate=1e6 / STEP_MICROS)
    for name, text in chosen.items():
        session.query(name, text)
    return session


def alike(kind: str, text: str) -> frozenset[str]:
    """What queries of one join have in common."""
    _, _, text = text.partition(" FROM ")
    windows, _, conditions = text.partition(" WHERE ")
    return frozenset([*windows.split(", "), *(conditions.split(" AND ") if kind != "one key" else ())])


def as_many_results(count: float, rows: int) -> dict[int, tuple[dict[str, str], int]]:
    """For three and four streams: a query on one key, and how many values the key has, so that a push gives `count` results."""
    found = {}
    for width in (3, 4):
        windows = ", ".join(f"{name} [RANGE {WINDOW * STEP_MICROS} MICROSECONDS]" for name in STREAMS[:width])
        columns = ", ".join(f"{name}.ts AS {name}" for name in STREAMS[:width])
        equal = " AND ".join(f"s0.k = {name}.k" for name in STREAMS[1:width])
        values = WINDOW * (width * rows / count) ** (1 / (width - 1))
        found[width] = {"q": f"SELECT {columns} FROM {windows} WHERE {equal}"}, max(1, round(values))
    return found


def pushes(rows: int, seed: int, keys: int = KEYS) -> Iterator[dict[str, pa.Table]]:
    """Batches of so many tuples of each stream, without end."""
    rng, first = np.random.default_rng(seed), 0
    while True:
        ts = np.arange(first, first + rows, dtype=np.int64) * STEP_MICROS
        push = {}
        for number, name in enumerate(STREAMS):
            values = [rng.integers(0, most, rows) for most in (keys, keys, 100)]
            push[name] = pa.table([ts + number, *values], schema=SCHEMA)
        yield push
        first += rows


def measure(kind: str, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give milliseconds per push: of all queries together, and of one."""
    chosen = queries(kind, count, arguments.seed)
    adaptive = not arguments.fixed
    config = {"strategy": arguments.strategy, "adaptive": adaptive}
    together = open_session(chosen, **config)
    alone = {name: open_session({name: chosen[name]}, **config) for name in list(chosen)[:ALONE]}
    source, spent = pushes(arguments.rows, arguments.seed), {"together": list[float](), "alone": list[float]()}
    results, different, first_of = 0, 0, {alike(kind, text): name for name, text in reversed(chosen.items())}
    for number in range(arguments.warm_up + arguments.rounds):
        timed, inputs = number >= arguments.warm_up, [next(source) for _ in range(arguments.pushes)]
        began = time.process_time()
        given = [together.push(push) for push in inputs]
        spent["together"] += [time.process_time() - began] * timed
        began, apart = time.process_time(), {}
        for name, session in alone.items():
            apart[name] = [session.push(push)[name] for push in inputs]
        spent["alone"] += [(time.process_time() - began) / len(alone)] * timed
        results += sum(table.num_rows for tables in given for table in tables.values()) * timed
        different += sum(tables[name].num_rows for tables in given for name in first_of.values()) * timed
        for name, tables in apart.items():
            for table, whole in zip(tables, given, strict=True):
                assert _sorted(table) == _sorted(whole[name]), f"{kind}, {count} queries: {name}"
    ms = {name: 1000 * statistics.median(seconds) / arguments.pushes for name, seconds in spent.items()}
    different_per_push = different / arguments.rounds / arguments.pushes
    equal = [
        _one_with(query, values, arguments, config)
        for query, values in as_many_results(different_per_push, arguments.rows).values()
    ]
    equal_ms = statistics.mean(ms for ms, _ in equal)
    nodes: Any = together.metrics()["nodes"]
    whole = sum(
        part["ms"]
        for parts in nodes.values()
        if isinstance(parts, dict)
        for part in parts.values()
        if isinstance(part, dict)
    )
    delivered = sum(part["ms"] for part in nodes["results"].values()) / max(whole, 1e-9)
    return {
        "kind": kind, "count": count, "joins": len(nodes["joins"]), "ms": ms["together"], "one_ms": ms["alone"],
        "ratio": ms["together"] / ms["alone"], "delivered": delivered,
        "equal": ms["together"] / equal_ms, "equal_ms": [ms for ms, _ in equal],
        "equal_results": [found for _, found in equal], "different_per_push": different_per_push,
        "results_per_push": results / arguments.rounds / arguments.pushes, "seconds": spent, **vars(arguments),
    }  # fmt: skip


def _one_with(
    query: dict[str, str], values: int, arguments: argparse.Namespace, config: dict[str, Any]
) -> tuple[float, float]:
    """Milliseconds per push of one query over keys of so many values, and its results."""
    session, source = open_session(query, **config), pushes(arguments.rows, arguments.seed, values)
    spent, results = [], 0
    for number in range(arguments.warm_up + arguments.rounds):
        inputs = [next(source) for _ in range(arguments.pushes)]
        began = time.process_time()
        given = [session.push(push) for push in inputs]
        if number >= arguments.warm_up:
            spent.append(time.process_time() - began)
            results += sum(tables["q"].num_rows for tables in given)
    each = arguments.pushes
    return 1000 * statistics.median(spent) / each, results / arguments.rounds / each


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 16, 64, 256, 1000])
    parser.add_argument("--kinds", nargs="+", default=["one key", "two keys"])
    parser.add_argument("--rows", type=int, default=1_000, help="tuples of each stream in a push")
    parser.add_argument("--pushes", type=int, default=4, help="pushes per round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=5, help="rounds that are not counted")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--fixed", action="store_true", help="without adapting")
    parser.add_argument("--label", default="", help="what the run is called in its file")
    arguments = parser.parse_args()
    table = Table("set", "queries", "joins", "ms/push", "one", "ratio", "equal", "results", "delivered")
    runs = []
    for kind in arguments.kinds:
        for count in arguments.queries:
            run = measure(kind, count, arguments)
            table.add_row(
                kind, f"{count:,}", f"{run['joins']:,}", f"{run['ms']:.2f}", f"{run['one_ms']:.2f}", f"{run['ratio']:.1f}",
                f"{run['equal']:.2f}", f"{run['different_per_push']:,.0f}", f"{run['delivered']:.0%}",
            )  # fmt: skip
            console.print(
                f"{kind}, {count} queries: {run['ratio']:.1f} times one, {run['equal']:.2f} at equal results",
                style="dim",
            )
            runs.append(run)
    console.print(f"seed {arguments.seed}, strategy {arguments.strategy}, adaptive {not arguments.fixed}")
    console.print(table)
    save("many-queries", runs)


if __name__ == "__main__":
    main()
