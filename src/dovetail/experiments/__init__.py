"""The papers' experiments, run again: `dovetail reproduce <paper>`.

Each module has `reproduce(console, out, quick)`, which computes what is missing under `out`, one file per point so that a run that was
stopped goes on where it stood, and then writes tables, plots and a report there.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from rich.console import Console

from dovetail.errors import ConfigError

PAPERS = {
    "alrahmani": "Alrahmani, Generating Qualified Plans for Multiple Queries: CPU and memory of shared plans",
    "raghavan": "Raghavan et al., Multi-Join Continuous Query Optimization: quality and time of probe orders",
}


def reproduce(paper: str, console: Console, out: Path, *, quick: bool = False) -> Path:
    """Run one paper's experiments and give the path of the report."""
    if paper not in PAPERS:
        raise ConfigError.choice("reproduce: the paper", paper, PAPERS)
    report: Path = import_module(f"dovetail.experiments.{paper}").reproduce(console, out, quick=quick)
    return report
