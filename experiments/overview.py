"""All papers together: what each is known by, theirs beside ours, then the rule, and every statement with its verdict and why.

The page is made from the papers' result files alone: whoever changes one of them changes the verdict. Beside it lie the pages of the
papers with their plots, so that the directory as it is can stand in the documentation.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from experiments import report
from experiments.papers import ALL, PAPERS, Paper, best_runs
from experiments.report import AGREES, DIFFERS, UNDECIDED, UNTESTED, Claim, Headline, markdown
from experiments.significance import RULE

_JUDGED = (AGREES, DIFFERS, UNDECIDED)
SUMMARY = ["paper", *(f"{what}: {verdict}" for what in ("measured", "computed") for verdict in _JUDGED), UNTESTED]


def reproduce_all(console: Console, out: Path, *, quick: bool = False) -> Path:
    """Run every paper under `out` and write the overview; give its path."""
    return _write(console, out, [Paper(name, quick=quick) for name in PAPERS], Paper(ALL, quick=quick).directory)


def collect(console: Console, out: Path) -> Path:
    """Write the overview from the best run of each paper that is complete under `out`; give its path."""
    return _write(console, out, best_runs(out), ALL)


def _write(console: Console, out: Path, papers: Sequence[Paper], name: str) -> Path:
    pages, began = out / name, time.perf_counter()
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
    parts = ["# Five papers, measured again", _introduction(stated)]
    for paper, claims in stated.items():
        parts += _opening(paper, claims)
    if missing := [f"[{name}]({name}.md)" for name in PAPERS if name not in {paper.name for paper in stated}]:
        parts.append(
            f"**Not judged again yet:** {' and '.join(missing)}. No run of theirs is here; these pages are older, and judged by the "
            "rules that they state."
        )
    parts += ["## Verdicts", _counted(stated), markdown(SUMMARY, _summary(stated)), "## The rule", RULE]
    for paper, claims in stated.items():
        parts += [
            f"## {paper.name.capitalize()}, every statement",
            f"[The page]({paper.name}.md) has the tables and the plots. Results are from {report.run_of(paper.grid)}.",
            markdown([*report.STATEMENTS, "why"], map(_row, claims)),
        ]
    return report.page(parts)


def _introduction(stated: Mapping[Paper, list[Claim]]) -> str:
    return (
        f"What {len(stated)} documents state beside what Dovetail measures: first what each of them is known by, then "
        "[the rule](#the-rule) and every statement. No verdict is written by hand: each follows from result files by that rule. Where "
        "we differ, or cannot tell, the last column says why. Each paper's section says which run its results are from."
    )


def _opening(paper: Paper, claims: Sequence[Claim]) -> list[str]:
    """A paper's three headlines, theirs beside ours, one picture, and who is right."""
    known = [(headline, _claim_of(headline, claims)) for headline in paper.headlines]
    rows = [[claim.place, claim.says, claim.measured, claim.verdict] for _, claim in known]
    return [
        f"## {PAPERS[paper.name].split(':')[0]}",
        f"[The page]({paper.name}.md), from {report.run_of(paper.grid)}.",
        markdown(["place", "theirs", "ours", "verdict"], rows),
        f"![{known[0][1].says}, and more](" + paper.picture + ")",
        f"**Who is right:** {who_is_right(known)}.",
    ]


def _claim_of(headline: Headline, claims: Iterable[Claim]) -> Claim:
    return next(claim for claim in claims if (claim.place, claim.says) == (headline.place, headline.says))


def who_is_right(known: Sequence[tuple[Headline, Claim]]) -> str:
    """One sentence from the verdicts of headlines."""
    clauses = {AGREES: "the paper on {}", DIFFERS: "not the paper on {}", UNDECIDED: "nobody can tell on {}"}
    said = []
    for verdict, clause in clauses.items():
        chosen = [pair for pair in known if pair[1].verdict == verdict]
        reasons = [f"{each.short} ({each.why if verdict == AGREES else claim.because})" for each, claim in chosen]
        said += [clause.format(" and on ".join(reasons))] if reasons else []
    said += [f"{headline.short} cannot be tested" for headline, claim in known if claim.verdict == UNTESTED]
    return "; ".join(said)


def _counted(stated: Mapping[Paper, list[Claim]]) -> str:
    everything = [claim for claims in stated.values() for claim in claims]
    counts = Counter((claim.computed, claim.verdict) for claim in everything)
    measured, computed = (
        ", ".join(f"{counts[kind, verdict]} {words}" for verdict, words in zip(_JUDGED, _WORDS, strict=True))
        for kind in (False, True)
    )
    untested = sum(claim.verdict == UNTESTED for claim in everything)
    return (
        f"{len(everything)} statements. Of those that were measured {measured}. Of those that are arithmetic of a cost model "
        f"{computed}. {untested} cannot be tested here."
    )


_WORDS = ("agree", "differ", "are too close to tell")


def _summary(stated: Mapping[Paper, list[Claim]]) -> Iterator[list[str]]:
    """Verdicts by paper."""
    for paper, claims in stated.items():
        counts = Counter((claim.computed, claim.verdict) for claim in claims)
        judged = (counts[kind, verdict] for kind in (False, True) for verdict in _JUDGED)
        yield [paper.name, *map(str, judged), str(counts[False, UNTESTED])]


def _row(claim: Claim) -> list[str]:
    return [*claim.row, "" if claim.verdict == AGREES else claim.because]
