"""The papers' experiments, run again: `make reproduce PAPER=<paper>`, or `all`.

What is missing under `out` is computed, one file per point so that a run that was stopped goes on where it stood; then tables, plots
and a report are written there. Each paper has a module that says what is run, one that reports and one that draws.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dovetail.errors import ConfigError
from experiments import overview
from experiments.papers import ALL, PAGES, PAPERS, Paper

__all__ = ["ALL", "PAPERS", "Paper", "reproduce"]


def reproduce(paper: str, console: Console, out: Path | None = None, *, quick: bool = False, grid: str = "") -> Path:
    """Run one paper's experiments, or those of `all`, and give the path of the report.

    `out` is where one paper's results go, by default `reproduced/<paper>-full`; for all it is the directory of these directories.
    `grid` gives one paper's full grid other numbers, as in `draws=4`. `pages` runs nothing: it writes the overview from the best run
    of each paper that is there.
    """
    if paper not in (*PAPERS, ALL, PAGES):
        raise ConfigError.choice("reproduce: the paper", paper, (*PAPERS, ALL, PAGES))
    if paper == ALL:
        return overview.reproduce_all(console, out or Path("reproduced"), quick=quick)
    if paper == PAGES:
        return overview.collect(console, out or Path("reproduced"))
    chosen = Paper(paper, quick, Paper.fields(paper, grid) if grid else ())
    return chosen.reproduce(console, out or Path("reproduced") / chosen.directory)
