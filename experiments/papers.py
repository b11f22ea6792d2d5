"""The five papers, and what one of them takes: a grid, its points, and the modules that run, report and draw them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from dovetail.errors import ConfigError
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


@dataclass(frozen=True)
class Paper:
    """One paper's experiments, on its small grid, on the full one, or on the full one with some other numbers."""

    name: str
    quick: bool = False
    less: tuple[tuple[str, int], ...] = ()
    """Fields of the grid that are other than in the full one."""

    @property
    def directory(self) -> str:
        run = ",".join(f"{field}={value}" for field, value in self.less)
        return f"{self.name}-{'quick' if self.quick else run or 'full'}"

    @property
    def grid(self) -> Any:
        module = self._module()
        return module.QUICK if self.quick else replace(module.Grid(), **dict(self.less))

    @staticmethod
    def fields(name: str, text: str) -> tuple[tuple[str, int], ...]:
        """What `--grid` says: `draws=4` or `keys=100,repeats=2`."""
        grid = Paper(name).grid
        allowed = [field.name for field in fields(grid) if isinstance(getattr(grid, field.name), int)]
        found = tuple(re.findall(r"(?:^|,)(\w+)=(\d+)(?=,|$)", text))
        if not found or text != ",".join(f"{field}={value}" for field, value in found):
            raise ConfigError(f"--grid is {text!r}", f"write e.g. --grid {allowed[0]}=4")
        for field, _ in found:
            if field not in allowed:
                raise ConfigError.choice("--grid: the number", field, allowed)
        return tuple((field, int(value)) for field, value in found)

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
    """The run of each paper under `out` that counts: the full one, else the latest with other numbers, else the small one."""
    found = []
    for name in PAPERS:
        others = sorted(out.glob(f"{name}-*=*"), key=lambda path: path.stat().st_mtime, reverse=True)
        less = [Paper(name, less=Paper.fields(name, path.name.removeprefix(f"{name}-"))) for path in others]
        runs = [Paper(name), *less, Paper(name, quick=True)]
        found += [run for run in runs if (out / run.directory / "report.md").exists()][:1]
    return found
