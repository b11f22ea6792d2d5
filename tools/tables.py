"""Write the tables of the docs from what benchmarks measured: `python tools/tables.py [--check] [root]`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Its figures are those of the newest file of its kind under
`benchmarks/results` that has all runners the table compares; runs of the same thing are its rounds, all shown. `--check` writes
nothing and fails if a table is not what its file says.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeAlias

Run: TypeAlias = dict[str, Any]
Row: TypeAlias = Sequence[str]
METHODS = ("f-greedy", "treeopt", "fab", "q-aware", "weave", "dmjoin")
RUNNERS = {
    "native-plain": "Spark's own chain, plain",
    "native-plain-newest": "Spark's own chain, plain, newest",
    "native": "the same in Dovetail's session, default",
    "native-newest": "the same in Dovetail's session, newest",
    "dovetail": "Dovetail",
    "transport": "transport",
}
_PLACE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """One kind of table."""

    kind: str
    """How the names of its result files begin."""
    headings: Row
    rows: Callable[[list[Run]], Iterator[Row]]
    runners: frozenset[str] = frozenset()
    """A file that lacks one of them is passed over."""


def grouped(runs: Iterable[Run], *names: str) -> dict[Any, list[Run]]:
    """Put together the runs that agree in what `names` say, in the order in which they come."""
    found: dict[Any, list[Run]] = {}
    for run in runs:
        key = tuple(run[name] for name in names)
        found.setdefault(key if len(names) > 1 else key[0], []).append(run)
    return found


def rounds(values: Iterable[str]) -> str:
    return " / ".join(values)


def ratio(value: float) -> str:
    """Two digits: more would not come out again."""
    short = float(f"{value:.2g}")
    return f"{short:,.0f}" if short >= 10 else f"{short:.1f}" if short >= 1 else f"{short:.2f}"


def rates(runs: Iterable[Run]) -> list[float]:
    """Thousand tuples per second."""
    return [run["tuples_per_second"] / 1000 for run in runs]


def rate_text(runs: Iterable[Run]) -> str:
    return rounds(f"{rate:,.0f}" if rate >= 25 else f"{rate:.1f}" for rate in rates(runs))


def engine_throughput(runs: list[Run]) -> Iterator[Row]:
    for (streams, columns), own in grouped(runs, "streams", "columns").items():
        by_runner = grouped(own, "runner")
        whole, label = rate_text(by_runner.get("duckdb", ())), f"{streams} × {own[0]['tuples'] // streams:,}"
        label += f", {columns} columns"
        peers = grouped(by_runner["polars"], "batch")
        for batch, ours in grouped(by_runner["dovetail"], "batch").items():
            times = [one / other for one, other in zip(rates(ours), rates(peers[batch]), strict=True)]
            yield label, f"{batch:,}", rate_text(ours), rate_text(peers[batch]), rounds(map(ratio, times)), whole
            label = whole = ""


def spark(runs: list[Run]) -> Iterator[Row]:
    for workload, own in grouped(runs, "workload").items():
        label, by_runner = workload, grouped(own, "runner")
        ours = median(rates(by_runner["dovetail"]))
        for runner, tried in by_runner.items():
            measured = [run for run in tried if "failed" not in run]
            if not measured:
                yield label, RUNNERS[runner], tried[-1]["failed"], "", "", ""
            else:
                times = "" if runner == "dovetail" else ratio(ours / median(rates(measured)))
                peak = rounds(f"{run['peak_bytes'] / 1e9:.2f}" for run in measured)
                rows = measured[-1]["state_rows"]
                yield label, RUNNERS[runner], rate_text(measured), times, f"{peak} GB", f"{rows:,}" if rows else ""
            label = ""


def spark_transport(runs: list[Run]) -> Iterator[Row]:
    for workload, own in grouped(runs, "workload").items():
        by_runner = grouped(own, "runner")
        ours, theirs = (by_runner[runner] for runner in ("dovetail", "transport"))
        yield (
            workload, rate_text(ours), rate_text(theirs),
            ratio(median(rates(ours)) / median(rates(theirs))), ratio(mean(rates(ours)) / mean(rates(theirs))),
        )  # fmt: skip


def spark_latency(runs: list[Run]) -> Iterator[Row]:
    names = {"native": "Spark's own chain", "dovetail": "Dovetail"}
    for runner, own in grouped(runs, "runner").items():
        figures = (rounds(f"{run[name]:.2f}" for run in own) for name in ("p50", "p99", "batch_seconds"))
        yield names[runner], *(f"{figure} s" for figure in figures)


def multiquery(runs: list[Run]) -> Iterator[Row]:
    seconds = {(run["runner"], run["queries"]): run["seconds"] for run in runs}
    for count in sorted({run["queries"] for run in runs}):
        cells = []
        for runner in ("together", "separate", "native"):
            taken, one = seconds.get((runner, count)), seconds[runner, 1]
            cells += [f"{taken:.2f}", ratio(taken / one)] if taken is not None else ["", ""]
        yield str(count), *cells


def multiquery_different(runs: list[Run]) -> Iterator[Row]:
    one = {run["runner"]: run["seconds"] for run in runs if run["queries"] == 1}
    for run in runs:
        taken = f"{run['seconds']:.2f}", ratio(run["seconds"] / one[run["runner"]])
        yield run["runner"], str(run["queries"]), str(run["graphs"]), *taken


def exchange(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        missed, dearer, cheaper = (f"{run[name] / run['cases']:.1%}" for name in ("missed", "dearer", "cheaper"))
        above = f"{100 * run['mean']:.2f} % ({100 * run['worst']:.1f} %)"
        yield run["size"], str(run["cases"]), missed, dearer, cheaper, above, f"{1000 * run['seconds']:.0f}"


def estimates(runs: list[Run]) -> Iterator[Row]:
    for what, own in grouped(runs, "what").items():
        yield what, *(rounds(f"{run[name]:.2f}" for run in own) for name in ("median", "worst"))


def ordering(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        taken = (f"{1000 * run[method]:.2f}" if method in run else "" for method in METHODS)
        yield run["shape"], str(run["streams"]), *taken


def watching(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        speeds = (f"{run[name]:,.0f}" for name in ("watched", "plain"))
        yield f"{run['batch']:,}", str(run["streams"]), *speeds, f"{run['ratio']:.2f}"


def registration(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        taken = (f"{run[name]:.2f}" if name in run else "" for name in ("registered", "planned", "begun"))
        yield run["kind"], run["budget"], str(run["queries"]), *taken, f"{run['mb']:.0f}"


def migrating(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        if run["kind"] == "cost":
            taken = (f"{run[name]:.1f}" for name in ("storing", "dropping", "batch"))
            yield f"{run['window']:,}", *taken, ratio(run["storing"] / run["batch"])


def drifting(runs: list[Run]) -> Iterator[Row]:
    for what, own in grouped([run for run in runs if run["kind"] == "drift"], "of").items():
        yield (
            what,
            *(rounds(f"{run[name]:.2f}" for run in own) for name in ("adaptive", "static", "told", "told_later")),
        )


def table_commits(runs: list[Run]) -> Iterator[Row]:
    columns = ("write_ms", "commit_ms_first", "commit_ms_last", "cpu_ms_first", "cpu_ms_last")
    for run in runs:
        yield run["sink"], *(f"{run[column]:.1f}" for column in columns)


def spark_changes(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        restart = run["killed_after"] + 1
        going = [each for each in run["batches"] if each["batch"] != restart]
        calm, changed = ([each["seconds"] for each in going if each["changed"] == kind] for kind in (False, True))
        changes = [each["seconds"] for each in run["changes"]]
        yield "batches", str(len(run["batches"]))
        yield "results; queries that were wrong", f"{run['results']:,}; {len(run['wrong'])}"
        yield "mean batch, s", f"{mean(calm):.2f}"
        yield "a change, median and longest, s", f"{median(changes):.2f}, {max(changes):.2f}"
        yield "longest pause with a change, s", f"{max(changed):.2f}"
        yield "the same, to the mean batch", ratio(max(changed) / mean(calm))
        (again,) = [each["seconds"] for each in run["batches"] if each["batch"] == restart]
        yield "restart after the kill, s", f"{again:.1f}"


def shedding(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        if run["what"] == "throughput":
            yield run["cap"], f"{run['tuples_per_second'] / 1000:,.0f}", f"{run['ratio']:.2f}", f"{run['results']:,}"


def shedding_decisions(runs: list[Run]) -> Iterator[Row]:
    for policy, own in grouped([run for run in runs if run["what"] == "decisions"], "policy").items():
        yield f"`{policy}`", *(f"{run['nanoseconds']:.0f}" for run in own)


def auto_held_out(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        yield run["setting"], f"`{run['best']}`", f"{run['share']:.3f}", f"{run['auto']:.3f}", f"{run['ratio']:.3f}"


def dead_keys(runs: list[Run]) -> Iterator[Row]:
    for kind, own in grouped(runs, "kind").items():
        yield kind, *(f"{run['without']:.2f} → {run['with']:.2f}" for run in own)


def auto_drawn(runs: list[Run]) -> Iterator[Row]:
    for kind, repeating in (("keys that occur once", False), ("keys that repeat", True)):
        ratios = [min(1.0, run["ratio"]) for run in runs if ("variance" in run["setting"]) == repeating]
        within = sum(ratio >= 0.97 for ratio in ratios)
        yield kind, f"{within} of {len(ratios)}", f"{1 - mean(ratios):.3f}", f"{min(ratios):.3f}"


def rejection(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        taken = (f"{run[name]:.0f}" for name in ("push", "probes", "table"))
        yield str(run["streams"]), f"{run['chance']:g}", *taken, f"{run['rejected']:.1%}"


def recall(runs: list[Run]) -> Iterator[Row]:
    for setting, own in grouped(runs, "setting").items():
        known, inside = sum(run["known"] for run in own), sum(run["inside"] for run in own)
        least = min((run["inside"] / run["known"] for run in own if run["known"]), default=0.0)
        widths = [run["width"] for run in own if run["width"] is not None]
        texts = (f"{inside / known:.3f}", f"{least:.2f}", f"{median(widths):.3f}") if known else ("", "", "")
        yield (setting, f"{known:,} of {sum(run['runs'] for run in own):,}", *texts)


def shedding_memory(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        growth, most, counted = (f"{run[kind] / 1e6:.0f}" for kind in ("end", "most", "counted"))
        yield f"`{run['policy']}`", growth, f"{run['ratio']:.2f}", most, counted, f"{run['held']:,}"


def windows(runs: list[Run]) -> Iterator[Row]:
    sizes = grouped(runs, "size")
    speed = {size: median(run["tuples_per_second"] for run in own) for size, own in sizes.items()}
    for size, own in sizes.items():
        per_tuple = median(run["state_bytes_per_tuple"] for run in own)
        rates = rounds(f"{run['tuples_per_second'] / 1000:,.0f}" for run in own)
        yield f"{size // 1000:,} thousand", rates, ratio(speed[size] / speed[min(sizes)]), f"{per_tuple:.0f}"


def hot_keys(runs: list[Run]) -> Iterator[Row]:
    for case, own in grouped(runs, "case").items():
        ns, matches, results = (median(run[name] for run in own) for name in ("ns", "matches", "results"))
        yield case, f"{results:,.0f}", f"{ns:.0f}", f"{matches:.2f}"


def lazy_hash(runs: list[Run]) -> Iterator[Row]:
    for (inputs, slow, window), own in grouped(runs, "inputs", "slow", "window").items():
        ways = [(kind, way) for kind in ("probing_us", "push_us") for way in ("before", "after")]
        times = [f"{median(run[kind][way] for run in own):,.0f}" for kind, way in ways]
        yield str(inputs), f"{100 * slow:,} and {slow:,}", str(window), *times


def strategies(runs: list[Run]) -> Iterator[Row]:
    for kind, own in sorted(grouped(runs, "kind").items()):
        ratios = sorted(run["ratio"] for run in own)
        stored = sum(run["stored"] > 0 for run in own)
        few, many = min(run["queries"] for run in own), max(run["queries"] for run in own)
        yield kind, str(len(own)), f"{few} to {many}", str(stored), ratio(median(ratios)), ratio(ratios[-1])


def many_queries(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        count, joins, results = (f"{run[name]:,.0f}" for name in ("count", "joins", "different_per_push"))
        yield run["kind"], count, joins, results, f"{run['ms']:.1f}", ratio(run["ratio"]), ratio(run["equal"])


def spark_shedding(runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        yield from run["table"].items()


SHEDDING_MEMORY = ("policy", "growth, MB", "of none", "peak, MB", "counted, MB", "tuples held")
TABLES = {
    "engine-throughput": Table(
        "engine-throughput",
        ("streams", "tuples per push", "Dovetail", "Polars", "ratio", "DuckDB, all at once"),
        engine_throughput,
        frozenset({"dovetail", "polars"}),
    ),
    "spark": Table(
        "spark",
        ("workload", "runner", "thousand tuples per second", "Dovetail's, to it", "peak memory", "state rows"),
        spark,
        frozenset({"dovetail", "native", "transport"}),
    ),
    "spark-transport": Table(
        "spark",
        ("workload", "Dovetail", "transport", "ratio of the medians", "of the means"),
        spark_transport,
        frozenset({"dovetail", "transport"}),
    ),
    "spark-latency": Table("spark-latency", ("runner", "p50", "p99", "micro-batch"), spark_latency),
    "multiquery": Table(
        "multiquery",
        ("queries", "together", "to one", "separate", "to one", "Spark's own", "to one"),
        multiquery,
        frozenset({"together", "separate", "native"}),
    ),
    "many-queries": Table(
        "many-queries",
        ("set", "queries", "joins", "results of these", "ms per push", "to one query", "to one with as many results"),
        many_queries,
    ),
    "multiquery-different": Table(
        "multiquery-different",
        ("runner", "queries", "join graphs", "s per micro-batch", "to one"),
        multiquery_different,
    ),
    "exchange": Table(
        "exchange",
        ("queries", "cases", "no plan", "dearer", "cheaper", "CPU to the best known, mean (largest)", "ms to plan"),
        exchange,
    ),
    "estimates": Table("estimates", ("what", "median", "worst"), estimates),
    "ordering": Table("ordering", ("graph", "inputs", *(f"`{method}`" for method in METHODS)), ordering),
    "watching": Table("watching", ("tuples per batch", "streams", "watched", "not watched", "ratio"), watching),
    "migrating": Table(
        "migrating",
        ("tuples in each window", "storing, ms", "dropping, ms", "a batch, ms", "storing, to a batch"),
        migrating,
    ),
    "drifting": Table(
        "migrating", ("drift of", "adaptive, s", "static, s", "told at once, s", "told later, s"), drifting
    ),
    "table-commits": Table(
        "table-commits",
        ("sink", "files of a batch, ms", "commit, first, ms", "last, ms", "CPU, first, ms", "last, ms"),
        table_commits,
    ),
    "spark-changes": Table("spark-changes", ("what", "measured"), spark_changes),
    "spark-shedding": Table("spark-shedding", ("what", "measured"), spark_shedding),
    "shedding": Table(
        "shedding", ("cap", "thousand tuples per second", "of those without shedding", "results"), shedding
    ),
    "shedding-decisions": Table(
        "shedding", ("policy", "ns per tuple, 5 streams", "ns per tuple, 7 streams"), shedding_decisions
    ),
    "auto-held-out": Table(
        "auto-held-out", ("setting", "best", "its share of results", "`auto`", "ratio"), auto_held_out
    ),
    "auto-drawn": Table(
        "auto-drawn", ("settings", "within 3 % of the best", "mean loss", "smallest ratio"), auto_drawn
    ),
    "dead-keys": Table(
        "dead-keys",
        ("setting", "`arrival-order`", "`frequency`", "`frequency-own`", "`output`", "`random`", "`fifo`", "`auto`"),
        dead_keys,
    ),
    "recall-sampled": Table("recall-sampled", ("setting", "known", "inside", "worst policy", "median width"), recall),
    "shedding-memory-1kb": Table("shedding-memory-1kb", SHEDDING_MEMORY, shedding_memory),
    "shedding-memory-spark": Table("shedding-memory-spark", SHEDDING_MEMORY, shedding_memory),
    "recall": Table("recall", ("setting", "known", "inside", "worst policy", "median width"), recall),
    "shedding-memory": Table("shedding-memory", SHEDDING_MEMORY, shedding_memory),
    "rejection": Table(
        "rejection",
        ("streams", "chance of a key in a window", "push, ns", "probes, ns", "table, ns", "rejected"),
        rejection,
    ),
    "windows": Table(
        "windows",
        ("tuples in each window", "thousand tuples per second", "to the smallest", "bytes per tuple"),
        windows,
    ),
    "hot-keys": Table(
        "hot-keys",
        (
            "one value is every second tuple",
            "results",
            "ns per tuple and result",
            "partial matches per tuple and result",
        ),
        hot_keys,
    ),
    "lazy-hash": Table(
        "lazy-hash",
        ("streams", "tuples per push", "pushes in a window", "probes, us", "other side", "push, us", "other side"),
        lazy_hash,
    ),
    "strategies": Table(
        "strategies",
        ("joined on", "workloads", "queries", "with materialized joins", "time, to `mjoin`: median", "worst"),
        strategies,
    ),
    "registration": Table(
        "registration",
        ("session", "budget", "queries", "registered, s", "planned, s", "first batch, s", "MB"),
        registration,
    ),
}


def newest(folder: Path, table: Table) -> tuple[Path, list[Run]]:
    """Give the newest file that a table can be made of, and its runs."""
    for path in sorted(folder.glob(f"{table.kind}-[0-9]*Z.json"), reverse=True):
        runs: list[Run] = json.loads(path.read_text(encoding="utf-8"))["runs"]
        if table.runners <= {run.get("runner") for run in runs}:
            return path, runs
    raise SystemExit(f"no file {table.kind}-*.json in {folder} has all that its table compares")


def markdown(table: Table, runs: list[Run]) -> str:
    lines = [f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in row)}|\n" for row in table.rows(runs)]
    return f"| {' | '.join(table.headings)} |\n|{'---|' * len(table.headings)}\n{''.join(lines)}"


def written(page: Path, folder: Path) -> str:
    """Give a page with its tables as the results in `folder` say, each with a link to its run."""

    def table(place: re.Match[str]) -> str:
        name = place[2]
        if name not in TABLES:
            raise SystemExit(f"{page}: there is no table {name!r}; there are {', '.join(TABLES)}")
        path, runs = newest(folder, TABLES[name])
        date = "-".join(re.findall(r"-(\d{4})(\d\d)(\d\d)T", path.name)[0])
        link = Path(os.path.relpath(path, page.parent)).as_posix()
        return f"{place[1]}{markdown(TABLES[name], runs)}\n[The run of {date}]({link}).\n{place[3]}"

    return _PLACE.sub(table, page.read_text(encoding="utf-8"))


def main() -> int:
    """Write all tables, or say which pages are not as they should be; give the exit status."""
    check = "--check" in sys.argv
    given = [option for option in sys.argv[1:] if option != "--check"]
    root = Path(given[0]) if given else Path(__file__).resolve().parents[1]
    changed = {}
    for page in sorted((root / "docs").rglob("*.md")):
        new = written(page, root / "benchmarks" / "results")
        if new != page.read_text(encoding="utf-8"):
            changed[page] = new
    for page, new in changed.items():
        print(f"{page}: tables are not those of benchmarks/results" if check else f"{page}: written")
        if not check:
            page.write_text(new, encoding="utf-8")
    if not changed:
        print("tables: all as measured")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
