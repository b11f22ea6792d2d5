"""The `dovetail` command: it parses and calls, and works with what anybody can import.

Numba, the SQL parser and Arrow are loaded by the command that needs them, so that `--help` and `version` answer at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import dovetail as dt

if TYPE_CHECKING:
    import pyarrow as pa

    from dovetail.workloads.ad_funnel import AdFunnel, Sample

app = typer.Typer(
    help="Continuous multi-way sliding-window joins over data streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_SHOWN_ROWS = 5
_REFRESH = 0.25
_LINE_EVERY = 1.0


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"dovetail {dt.__version__}")


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to stream, by the wall clock.")] = 6.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the synthetic streams.")] = 0,
) -> None:
    """Join a synthetic ad funnel in this process: plan, live counters, results, and a check against a batch join."""
    from dovetail.workloads.ad_funnel import QUERIES, AdFunnel, Sample  # noqa: PLC0415 - it loads Arrow

    console = Console(highlight=False)
    funnel = AdFunnel(seed=seed)
    console.print(Text("An ad funnel: who saw an ad, clicked on it, and bought something.", style="bold"))
    for name, sql in QUERIES.items():
        console.print(Text(f"\n{name}", style="bold"), Text(sql.removeprefix("\n")), sep="\n", soft_wrap=True)
    console.print()
    session = _compiled(console, lambda: _session(funnel, QUERIES))
    console.print(Text("\nThe plan", style="bold"), Text(str(session.explain())), sep="\n", soft_wrap=True)
    run = _Run(session, Sample(funnel))
    _stream(console, run, funnel, seconds)
    _summarize(console, run)
    if not _check(console, run):
        raise typer.Exit(1)


def _session(funnel: AdFunnel, queries: Mapping[str, str]) -> dt.LocalSession:
    session = dt.LocalSession()
    for stream in funnel.streams:
        lateness = timedelta(microseconds=stream.lateness)
        session.stream(stream.name, stream.columns, stream.event_time, lateness, stream.rate)
    for name, sql in queries.items():
        session.query(name, sql)
    return session


def _compiled(console: Console, start: Callable[[], dt.LocalSession]) -> dt.LocalSession:
    """Start a session, which compiles the kernels, with a word on the screen while it takes its time."""
    message = "Compiling the kernels (some seconds the first time, then they are cached) ..."
    started = time.perf_counter()
    with console.status(message) if console.is_terminal else nullcontext():
        if not console.is_terminal:
            console.print(message)
        session = start()
    console.print(f"Kernels ready after {time.perf_counter() - started:.1f} s.")
    return session


@dataclass
class _Run:
    """A session at work, and what is shown of it."""

    session: dt.LocalSession
    sample: Sample
    batches: int = 0
    tuples: int = 0
    busy: float = 0.0
    """Seconds inside `push`; making up the input does not count."""
    results: dict[str, int] = field(default_factory=dict)
    latest: dict[str, pa.Table] = field(default_factory=dict)
    """Each query's results from the last batch that had any."""
    sampled: list[pa.Table] = field(default_factory=list)

    def push(self, batch: Mapping[str, pa.Table]) -> None:
        started = time.perf_counter()
        found = self.session.push(batch)
        self.busy += time.perf_counter() - started
        self.batches += 1
        self.tuples += sum(table.num_rows for table in batch.values())
        for name, table in found.items():
            self.results[name] = self.results.get(name, 0) + table.num_rows
            self.latest[name] = table if table.num_rows else self.latest.get(name, table)
        self.sample.take(batch)
        self.sampled.append(self.sample.of(found["funnel"]))

    @property
    def streams(self) -> Mapping[str, Mapping[str, Any]]:
        return self.session.metrics()["streams"]

    @property
    def rate(self) -> float:
        return self.tuples / self.busy if self.busy else 0.0

    def line(self) -> str:
        state = sum(stream["state_bytes"] for stream in self.streams.values())
        results = "  ".join(f"{name} {count:,}" for name, count in self.results.items())
        return f"batch {self.batches:>4}  {_large(self.tuples):>7} tuples  {_large(self.rate):>7}/s  state {_bytes(state)}  {results}"


def _spread(table: pa.Table) -> list[dict[str, Any]]:
    """A few rows from all over a table."""
    step = max(1, table.num_rows // _SHOWN_ROWS)
    places = range(0, table.num_rows, step)[:_SHOWN_ROWS]
    return [row for place in places for row in table.slice(place, 1).to_pylist()]


def _stream(console: Console, run: _Run, funnel: AdFunnel, seconds: float) -> None:
    """Push batches until the time is up, or until Ctrl-C."""
    every = timedelta(seconds=funnel.batch_seconds)
    console.print(f"\nStreaming for {seconds:g} s; a batch is {every.seconds} s of event time. Ctrl-C ends it early.")
    deadline = time.perf_counter() + seconds
    with _display(console) as show:
        try:
            for batch in funnel.batches():
                run.push(batch)
                show(run.line)
                if time.perf_counter() > deadline:
                    break
        except KeyboardInterrupt:
            console.print("Stopped.")
    console.print(run.line(), soft_wrap=True)


class _display:  # noqa: N801 - a context manager, used like a function
    """Show a line that keeps changing: in place on a terminal, now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._next = 0.0 if self._live else time.perf_counter() + _LINE_EVERY

    def __enter__(self) -> Callable[[Callable[[], str]], None]:
        if self._live:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def _show(self, line: Callable[[], str]) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + (_REFRESH if self._live else _LINE_EVERY)
        if self._live:
            self._live.update(Text(line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._console.print(line(), soft_wrap=True)


def _summarize(console: Console, run: _Run) -> None:
    for name, table in run.latest.items():
        rows = _spread(table)
        console.print(f"\n[bold]{name}[/bold]: {run.results[name]:,} results; {len(rows)} of the last batch:")
        console.print(_table(table.column_names, [[_cell(value) for value in row.values()] for row in rows]))
    console.print("\n[bold]Streams[/bold]")
    headings = ["stream", "arrived", "late, dropped", "in windows", "state"]
    counts = [
        [name, f"{s['arrivals']:,}", f"{s['late']:,}", f"{s['state_tuples']:,}", _bytes(s["state_bytes"])]
        for name, s in run.streams.items()
    ]
    console.print(_table(headings, counts))
    console.print(f"\n{run.tuples:,} tuples joined in {run.busy:.1f} s: {_large(run.rate)} tuples/s, input ready-made.")


def _check(console: Console, run: _Run) -> bool:
    """Compare the sampled results with a batch join over the same input."""
    import pyarrow as pa  # noqa: PLC0415

    found, expected = pa.concat_tables(run.sampled), run.sample.expected()
    order = [(name, "ascending") for name in expected.column_names]
    same = bool(found.sort_by(order).equals(expected.sort_by(order)))
    verdict = "the same rows" if same else f"[bold red]it gives {expected.num_rows:,} rows, and they differ[/bold red]"
    console.print(
        f"Checked {found.num_rows:,} funnel results (every {run.sample.every}th ad) with a batch join: {verdict}."
    )
    return same


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _cell(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.1f} s"
    return f"{value:%H:%M:%S}" if hasattr(value, "strftime") else str(value)


def _large(number: float) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def _bytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
