"""What the reports of all papers have in common: statements beside measurements, and the files they are written to."""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.table import Table

import dovetail as dt


@dataclass(frozen=True)
class Claim:
    """A statement of a paper beside what was measured."""

    place: str
    says: str
    measured: str
    holds: bool
    because: str
    """Why we differ, if we do."""

    @property
    def row(self) -> list[str]:
        return [self.place, self.says, self.measured, "holds" if self.holds else "differs"]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str) -> Table:
    """A table for the console."""
    made = Table(*headings, title=title, box=None)
    for row in rows:
        made.add_row(*row)
    return made


def claims_table(claims: Iterable[Claim], source: str) -> Table:
    """Statements of `source` ("the paper"), for the console."""
    headings, title = ["place", source, "measured", ""], f"{source.capitalize()}'s statements"
    return table(headings, [claim.row for claim in claims], title)


def origin(paper: str, seed: int) -> str:
    """What wrote a report, when and where."""
    when, machine = datetime.now(UTC).date().isoformat(), f"{platform.machine()}, Python {platform.python_version()}"
    return f"Written by `dovetail reproduce {paper}` (version {dt.__version__}, seed {seed}) on {when} ({machine})."


def statements(claims: Iterable[Claim], source: str) -> list[str]:
    """Statements of `source`, as parts of a page."""
    stated = list(claims)
    reasons = [f"- {claim.place}, “{claim.says}”: {claim.because}." for claim in stated if not claim.holds]
    return [
        f"## {source.capitalize()}'s statements, measured",
        "The figures are plots without printed numbers; these are the statements that the text makes about them.",
        markdown(["place", source, "measured", ""], [claim.row for claim in stated]),
        "Where we differ:\n\n" + ("\n".join(reasons) or "nowhere."),
    ]


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
