"""What the reports of all papers have in common: statements beside measurements, and the files they are written to."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, TypeAlias

from rich.table import Table

import dovetail as dt

VERDICTS = AGREES, DIFFERS, UNDECIDED, UNTESTED = "agrees", "differs", "too close to tell", "cannot be tested here"
Kind: TypeAlias = Literal["all cases", "median", "can happen", "example", "not tested"]
"""What a statement is about, and so by which part of the rule (see `significance`) it is judged."""
_FIGURES = "The figures are plots without printed numbers; these are the statements that the text makes about them."
_RULED = (
    "Verdicts follow from the result files by [the one rule](README.md#the-rule) of all five papers; what is “computed” is arithmetic "
    "of a cost model and says nothing about a running system."
)
STATEMENTS = ["place", "statement", "about", "ours", "verdict"]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper beside ours."""

    place: str
    says: str
    measured: str
    holds: bool | None
    """None if it is neither shown nor refuted, or cannot be tested here."""
    because: str
    """Why we differ, or why it cannot be told or tested."""
    kind: Kind
    computed: bool = False
    """Whether ours is arithmetic of a cost model, not a measurement."""

    @property
    def verdict(self) -> str:
        if self.kind == "not tested":
            return UNTESTED
        return UNDECIDED if self.holds is None else AGREES if self.holds else DIFFERS

    @property
    def about(self) -> str:
        return f"{self.kind}, computed" if self.computed else self.kind

    @property
    def row(self) -> list[str]:
        return [self.place, self.says, self.about, self.measured, self.verdict]


@dataclass(frozen=True)
class Headline:
    """One of the three statements that a paper is known by."""

    place: str
    says: str
    short: str
    """What it is about, for a sentence."""
    why: str
    """Why it holds, if it does."""


def untested(place: str, says: str, ours: str, because: str) -> Claim:
    """Make a claim that cannot be tested here."""
    return Claim(place, says, ours, None, because, "not tested")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str) -> Table:
    """A table for the console."""
    made = Table(*headings, title=title, box=None)
    for row in rows:
        made.add_row(*row)
    return made


def claims_table(claims: Iterable[Claim], source: str) -> Table:
    """Statements of `source` ("the paper"), for the console."""
    return table(STATEMENTS, [claim.row for claim in claims], f"{source.capitalize()}'s statements")


def origin(paper: str, grid: Any) -> str:
    """What wrote a report, when and where, and on which grid."""
    when, cores = datetime.now(UTC).date().isoformat(), os.cpu_count()
    machine = f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"
    return (
        f"Written by `make reproduce PAPER={paper}` (version {dt.__version__}, seed {grid.seed}) on {when} ({machine}), from "
        f"{run_of(grid)}."
    )


def run_of(grid: Any) -> str:
    """Which run results are from: the full grid, or what is less than in it.

    >>> from experiments.kwon import Grid
    >>> run_of(Grid()), run_of(Grid(seeds=3))
    ('the full grid', 'a smaller grid (seeds 3 for 10)')
    """
    pairs = [(field.name, getattr(grid, field.name), field.default) for field in fields(grid)]
    less = [f"{name} {_short(value)} for {_short(full)}" for name, value, full in pairs if value != full]
    return f"a smaller grid ({', '.join(less)})" if less else "the full grid"


def _short(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def statements(claims: Iterable[Claim], source: str, about: str = _FIGURES) -> list[str]:
    """Statements of `source`, as parts of a page."""
    stated = list(claims)
    parts = [
        f"## {source.capitalize()}'s statements, beside ours",
        f"{about} {_RULED}",
        markdown(STATEMENTS, [claim.row for claim in stated]),
        "Where we differ:\n\n" + (_reasons(stated, DIFFERS) or "nowhere."),
    ]
    for verdict, title in ((UNDECIDED, "What is too close to tell"), (UNTESTED, "What cannot be tested here")):
        if reasons := _reasons(stated, verdict):
            parts.append(f"{title}:\n\n{reasons}")
    return parts


def _reasons(claims: Iterable[Claim], verdict: str) -> str:
    chosen = [claim for claim in claims if claim.verdict == verdict]
    return "\n".join(f"- {claim.place}, “{claim.says}”: {claim.because}." for claim in chosen)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of a page."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, ["---"] * len(headings), *rows))


def page(parts: Iterable[str]) -> str:
    """Parts with prose in lines of a readable length; tables, pictures and headings as they are."""
    return "\n\n".join(part if part.startswith(("|", "!", "#")) else _wrapped(part) for part in parts) + "\n"


def _wrapped(prose: str) -> str:
    lines = [fill(line, 92, subsequent_indent="  " if line.startswith("- ") else "") for line in prose.split("\n")]
    return "\n".join(lines)


def write(found: Sequence[Mapping[str, Any]], page: str, out: Path) -> Path:
    """Write `summary.csv`, `summary.json` and `report.md`; give the path of the last."""
    with (out / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, found[0])
        writer.writeheader()
        writer.writerows(found)
    (out / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    report = out / "report.md"
    report.write_text(page, encoding="utf-8")
    return report
