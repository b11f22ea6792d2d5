"""What the reports of all papers have in common: statements beside measurements, and the files they are written to."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


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


def claims_table(claims: Iterable[Claim], source: str) -> Table:
    """Statements of `source` ("the paper"), for the console."""
    table = Table("place", source, "measured", "", title=f"{source.capitalize()}'s statements", box=None)
    for claim in claims:
        table.add_row(*claim.row)
    return table


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
