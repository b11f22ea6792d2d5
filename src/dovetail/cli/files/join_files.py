"""The join of files in this process: progress while it runs, then results and what was dropped."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import dovetail as dt
from dovetail.cli.arrow_tables import arrow_table
from dovetail.cli.files.replay import replay
from dovetail.cli.files.result_file import ResultFile
from dovetail.cli.files.sources import FileSources, check_one_query

_DROPPED = r"stream .*(came too late|is NULL or out of range)"


@dataclass
class JoinFiles:
    """A join of files, and the results to show."""

    sources: FileSources
    shown_rows: int
    is_json: bool
    results: int = 0
    first: list[pa.Table] = field(default_factory=list)
    """The results to show."""

    def run(self, out: str | None, form: str | None, *, replace: bool) -> None:
        """Join the files; write the results to `out`, or show the first of them."""
        began = time.perf_counter()
        check_one_query(self.sources.queries)
        target = None if out is None else ResultFile(out, form, replace=replace)
        session = self.sources.session()
        with _without_drop_warnings():
            if target is None:
                self._join(session)
            else:
                with target:
                    self._join(session, target)
        seconds = time.perf_counter() - began
        streams = session.metrics()["streams"]
        if self.is_json:
            counts = {
                stream: {
                    "rows": counters["arrivals"],
                    "late": counters["late"],
                    "lateness_needed": counters["lateness_needed"],
                    "without_event_time": counters["refused"],
                }
                for stream, counters in streams.items()
            }
            summary = {"results": self.results, "out": out, "seconds": round(seconds, 3), "streams": counts}
            # Standard output may have the results.
            Console(stderr=out == "-", highlight=False).print_json(json.dumps(summary))
            return
        console = Console(stderr=out is not None, highlight=False)
        if target is None and self.first:
            console.print(arrow_table(pa.concat_tables(self.first)))
        self._summarize(console, streams, out, seconds)

    def _join(self, session: dt.LocalSession, target: ResultFile | None = None) -> None:
        with _progress(sum(file.size for file in self.sources.files)) as update:

            def on_progress(done: int) -> None:
                update(done, f"{self.results:,} results")

            for _, table in self._results(session, on_progress):
                if target is not None:
                    target.write(table)
                elif (missing := self.shown_rows - sum(part.num_rows for part in self.first)) > 0:
                    self.first.append(table.slice(0, missing))
                self.results += table.num_rows

    def _results(self, session: dt.LocalSession, on_progress: Any) -> Iterator[tuple[str, pa.Table]]:
        yield from session.push({}).items()  # an empty table: the columns of a file without results
        yield from replay(session, self.sources.files, self.sources.event_times, on_progress)

    def _summarize(self, console: Console, streams: Any, out: str | None, seconds: float) -> None:
        arrivals = sum(counters["arrivals"] for counters in streams.values())
        shown = sum(part.num_rows for part in self.first)
        where = "" if out in (None, "-") else f" in {out}"
        note = f" ({shown} shown)" if out is None and shown < self.results else ""
        console.print(
            f"{self.results:,} results{where}{note}, from {arrivals:,} rows in {seconds:.1f} s",
            style="bold",
            soft_wrap=True,
        )
        for stream, counters in streams.items():
            if counters["late"]:
                needed = math.ceil(counters["lateness_needed"])
                console.print(
                    f"{stream}: {counters['late']:,} of {counters['arrivals']:,} rows came too late and were dropped; "
                    f"--lateness {stream}='{needed} s' would have kept them",
                    style="yellow",
                    soft_wrap=True,
                )
            if counters["refused"]:
                console.print(
                    f"{stream}: {counters['refused']:,} of {counters['arrivals']:,} rows have no event time in "
                    f"{self.sources.event_times[stream]!r} and were dropped",
                    style="yellow",
                    soft_wrap=True,
                )


@contextmanager
def _without_drop_warnings() -> Iterator[None]:
    """Hide the warnings about dropped rows: the summary has their final counts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _DROPPED, dt.DovetailWarning)
        yield


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """Show how much has been read, in a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    note = TextColumn("{task.fields[note]}")
    with Progress(*columns, note, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=max(1, total), note="")
        yield lambda done, note: progress.update(task, completed=done, note=note)
