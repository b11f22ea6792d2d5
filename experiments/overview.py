"""All papers together: one page with every statement, what was measured, the verdict and why.

The page is made from the papers' result files alone: whoever changes one of them changes the verdict. Beside it lie the pages of the
papers with their plots, so that the directory as it is can stand in the documentation.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich.console import Console

from experiments import report
from experiments.papers import ALL, PAPERS, Paper
from experiments.report import AGREES, DIFFERS, UNTESTED, VERDICTS, Claim, markdown

SUMMARY = ["paper", "statements", *VERDICTS]


def reproduce_all(console: Console, out: Path, *, quick: bool = False) -> Path:
    """Run every paper under `out` and write the overview; give its path."""
    papers, began = [Paper(name, quick=quick) for name in PAPERS], time.perf_counter()
    pages = out / Paper(ALL, quick=quick).directory
    pages.mkdir(parents=True, exist_ok=True)
    for number, paper in enumerate(papers, start=1):
        console.print(f"{number} of {len(papers)}: {PAPERS[paper.name]}", soft_wrap=True)
        directory = out / paper.directory
        shutil.copyfile(paper.reproduce(console, directory, show=False), pages / f"{paper.name}.md")
        for picture in directory.glob(f"{paper.name}-*.png"):
            shutil.copyfile(picture, pages / picture.name)
        console.print(f"{number} of {len(papers)} after {time.perf_counter() - began:.0f} s", soft_wrap=True)
    stated = read(out, papers)
    console.print(report.table(SUMMARY, _summary(stated), "Verdicts"))
    path = pages / "README.md"
    path.write_text(page(stated), encoding="utf-8")
    return path


def read(out: Path, papers: Iterable[Paper]) -> dict[Paper, list[Claim]]:
    """What the papers state beside their result files under `out`."""
    return {paper: paper.claims(paper.run(Console(quiet=True), out / paper.directory)) for paper in papers}


def page(stated: Mapping[Paper, list[Claim]]) -> str:
    """The overview."""
    seeds = ", ".join(f"{paper.name} {paper.grid.seed}" for paper in stated)
    parts = [
        "# Five papers, measured again",
        report.origin(ALL, f"by paper: {seeds}"),
        _introduction(stated),
        markdown(SUMMARY, _summary(stated)),
    ]
    for paper, claims in stated.items():
        grid = "; what stands here is from the small grid (`--quick`)" if paper.quick else ""
        parts += [
            f"## {paper.name.capitalize()}",
            f"{PAPERS[paper.name]}. [The page]({paper.name}.md) has the tables, the plots and the rule{grid}.",
            markdown(["place", "statement", "measured", "verdict", "why"], map(_row, claims)),
        ]
    return report.page(parts)


def _introduction(stated: Mapping[Paper, list[Claim]]) -> str:
    everything = [claim for claims in stated.values() for claim in claims]
    small = [paper.name for paper in stated if paper.quick]
    grids = f"; for {', '.join(small)} these are from the small grid alone, which says little" if small else ""
    return (
        f"{len(everything)} statements of {len(stated)} documents beside what Dovetail measures: {_counted(everything)}{grids}. "
        "Whether one agrees or differs is not written by hand: it follows from the result files by the rule that its paper's page "
        "states. Where we differ, or cannot test, the last column says why."
    )


def _summary(stated: Mapping[Paper, list[Claim]]) -> Iterator[list[str]]:
    """Verdicts by paper."""
    for paper, claims in stated.items():
        counts = Counter(claim.verdict for claim in claims)
        yield [paper.name, str(len(claims)), *(str(counts[verdict]) for verdict in VERDICTS)]


def _row(claim: Claim) -> list[str]:
    return [*claim.row, "" if claim.verdict == AGREES else claim.because]


def _counted(claims: Iterable[Claim]) -> str:
    """How many there are of each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return f"{counts[AGREES]} agree, {counts[DIFFERS]} differ, {counts[UNTESTED]} {UNTESTED}"
