"""The papers' experiments, run again: `dovetail reproduce <paper>`.

What is missing under `out` is computed, one file per point so that a run that was stopped goes on where it stood; then tables, plots
and a report are written there. Each paper has a module that says what is run, one that reports and one that draws.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.console import Console

from dovetail.errors import ConfigError
from dovetail.experiments.points import Points

PAPERS = {
    "alrahmani": "Alrahmani, Generating Qualified Plans for Multiple Queries: CPU and memory of shared plans",
    "kwon": "Kwon, Lee, Kim, Load shedding based on arrival order patterns: results that are left, by policy",
    "raghavan": "Raghavan et al., Multi-Join Continuous Query Optimization: quality and time of probe orders",
    "valsomatzis": "Valsomatzis, Gounaris, Driver input selection: running time and early results of driver policies",
}


def reproduce(paper: str, console: Console, out: Path, *, quick: bool = False) -> Path:
    """Run one paper's experiments and give the path of the report."""
    if paper not in PAPERS:
        raise ConfigError.choice("reproduce: the paper", paper, PAPERS)
    module, reports, plots = (
        import_module(f"dovetail.experiments.{paper}{part}") for part in ("", "_report", "_plots")
    )
    plots.require()
    grid = module.QUICK if quick else module.Grid()
    results = module.run(console, Points(out / "points", asdict(grid)), grid)
    reports.show(console, results)
    plots.draw(results, out)
    report: Path = reports.write(results, grid, out)
    return report
