"""The five papers, and what one of them takes: a grid, its points, and the modules that run, report and draw them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from experiments.points import Points
from experiments.report import Claim, Headline

PAPERS = {
    "alrahmani": "Alrahmani, Generating Qualified Plans for Multiple Queries: CPU and memory of shared plans",
    "golab": "Golab, Özsu, Processing Sliding Window Multi-Joins: comparisons of nested loops, their orders, hash joins",
    "kwon": "Kwon, Lee, Kim, Load shedding based on arrival order patterns: results that are left, by policy",
    "raghavan": "Raghavan et al., Multi-Join Continuous Query Optimization: quality and time of probe orders",
    "valsomatzis": "Valsomatzis, Gounaris, Driver input selection: running time and early results of driver policies",
}
ALL, PAGES = "all", "pages"
REPEATS = {"alrahmani": "draws", "golab": "draws", "kwon": "seeds", "raghavan": "runs", "valsomatzis": "repeats"}
"""What a paper's grid calls its repeats, which `--repeats` sets."""


@dataclass(frozen=True)
class Paper:
    """One paper's experiments, on its small grid, on the full one, or on the full one with fewer repeats."""

    name: str
    quick: bool = False
    repeats: int | None = None

    @property
    def directory(self) -> str:
        run = "quick" if self.quick else "full" if self.repeats is None else f"{self.repeats}-{REPEATS[self.name]}"
        return f"{self.name}-{run}"

    @property
    def grid(self) -> Any:
        module = self._module()
        if self.quick:
            return module.QUICK
        return module.Grid() if self.repeats is None else replace(module.Grid(), **{REPEATS[self.name]: self.repeats})

    @property
    def headlines(self) -> Sequence[Headline]:
        """The three statements that the paper is known by."""
        headlines: Sequence[Headline] = self._module("_report").HEADLINES
        return headlines

    @property
    def picture(self) -> str:
        """The plot that shows most of them."""
        name: str = self._module("_report").PICTURE
        return name

    def run(self, console: Console, out: Path) -> Any:
        """The results under a directory, the missing ones computed."""
        return self._module().run(console, Points(out / "points", asdict(self.grid)), self.grid)

    def claims(self, results: Any) -> list[Claim]:
        """What the paper states, beside the results."""
        return list(self._module("_report").claims(results))

    def reproduce(self, console: Console, out: Path, *, show: bool = True) -> Path:
        """Run everything, draw the plots and write the report; give its path."""
        reports, plots = self._module("_report"), self._module("_plots")
        plots.require()
        results = self.run(console, out)
        if show:
            reports.show(console, results)
        plots.draw(results, out)
        report: Path = reports.write(results, self.grid, out)
        return report

    def _module(self, part: str = "") -> ModuleType:
        return import_module(f"experiments.{self.name}{part}")


def best_runs(out: Path) -> list[Paper]:
    """The best run of each paper that is complete under `out`: the full one, else that with most repeats, else the small one."""
    found = []
    for name in PAPERS:
        counts = [int(path.name.split("-")[1]) for path in out.glob(f"{name}-*") if re.search(r"-\d+-", path.name)]
        runs = [
            Paper(name),
            *(Paper(name, repeats=count) for count in sorted(counts, reverse=True)),
            Paper(name, quick=True),
        ]
        found += [run for run in runs if (out / run.directory / "report.md").exists()][:1]
    return found
