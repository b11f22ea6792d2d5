"""The five papers, and what one of them takes: a grid, its points, and the modules that run, report and draw them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from experiments.points import Points
from experiments.report import Claim

PAPERS = {
    "alrahmani": "Alrahmani, Generating Qualified Plans for Multiple Queries: CPU and memory of shared plans",
    "golab": "Golab, Özsu, Processing Sliding Window Multi-Joins: comparisons of nested loops, their orders, hash joins",
    "kwon": "Kwon, Lee, Kim, Load shedding based on arrival order patterns: results that are left, by policy",
    "raghavan": "Raghavan et al., Multi-Join Continuous Query Optimization: quality and time of probe orders",
    "valsomatzis": "Valsomatzis, Gounaris, Driver input selection: running time and early results of driver policies",
}
ALL = "all"


@dataclass(frozen=True)
class Paper:
    """One paper's experiments, on its small grid or on the full one."""

    name: str
    quick: bool = False

    @property
    def directory(self) -> str:
        return f"{self.name}-{'quick' if self.quick else 'full'}"

    @property
    def grid(self) -> Any:
        module = self._module()
        return module.QUICK if self.quick else module.Grid()

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
