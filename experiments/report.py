"""What the reports of all papers have in common: statements beside measurements, and the files they are written to."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.table import Table

import dovetail as dt

VERDICTS = AGREES, DIFFERS, UNTESTED = "agrees", "differs", "cannot be tested here"
_FIGURES = "The figures are plots without printed numbers; these are the statements that the text makes about them."


@dataclass(frozen=True)
class Claim:
    """A statement of a paper beside what was measured."""

    place: str
    says: str
    measured: str
    holds: bool | None
    """None if it cannot be tested here."""
    because: str
    """Why we differ, or why it cannot be tested."""

    @property
    def verdict(self) -> str:
        return UNTESTED if self.holds is None else AGREES if self.holds else DIFFERS

    @property
    def row(self) -> list[str]:
        return [self.place, self.says, self.measured, self.verdict]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str) -> Table:
    """A table for the console."""
    made = Table(*headings, title=title, box=None)
    for row in rows:
        made.add_row(*row)
    return made


def claims_table(claims: Iterable[Claim], source: str) -> Table:
    """Statements of `source` ("the paper"), for the console."""
    headings, title = ["place", source, "measured", "verdict"], f"{source.capitalize()}'s statements"
    return table(headings, [claim.row for claim in claims], title)


def origin(paper: str, seed: int | str) -> str:
    """What wrote a report, when and where."""
    when, cores = datetime.now(UTC).date().isoformat(), os.cpu_count()
    machine = f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"
    return f"Written by `make reproduce PAPER={paper}` (version {dt.__version__}, seed {seed}) on {when} ({machine})."


def statements(claims: Iterable[Claim], source: str, about: str = _FIGURES) -> list[str]:
    """Statements of `source`, as parts of a page."""
    stated = list(claims)
    parts = [
        f"## {source.capitalize()}'s statements, measured",
        about,
        markdown(["place", source, "measured", "verdict"], [claim.row for claim in stated]),
        "Where we differ:\n\n" + (_reasons(stated, DIFFERS) or "nowhere."),
    ]
    return [*parts, f"What cannot be tested here:\n\n{untested}"] if (untested := _reasons(stated, UNTESTED)) else parts


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
