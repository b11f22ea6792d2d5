"""The documentation is true: its programs run and print what it says, its links lead somewhere, its commands exist.

A `python` block that is followed by a `text` block prints exactly that text; one that is not may print anything. A `python spark`
block, or a `python` block below `<!-- spark -->`, is run by tests/spark/test_pages.py. A `python notest` block needs a server, or data
of the reader's: it is compiled and not run. A `text` block that follows anything else is a transcript and not checked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import NOT_RUN, ON_KAFKA, ON_SPARK, PYTHON, blocks, compiled, run_page, without_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_LINKS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
KINDS = {"", "console", "mermaid", PYTHON, ON_SPARK, ON_KAFKA, NOT_RUN, "sql", "text", "toml"}
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[[^\]\n]*\]\(([^)\s]+)\)")
_MAKE = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def unknown_kinds(text: str) -> list[str]:
    """What stands behind a fence and is none of ours: a misspelt `python` would never be run."""
    return [block.language for block in blocks(text) if block.language not in KINDS]


def links(text: str) -> list[str]:
    prose = without_blocks(text)
    return [target for target in _LINK.findall(prose) if not target.startswith(("http://", "https://", "mailto:"))]


def headings(text: str) -> set[str]:
    """The anchors that a page's headings get."""
    titles = re.findall(r"^#+ +(.+)$", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in links(page.read_text(encoding="utf-8")):
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in headings(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_programs_print_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block, printed, promised in run_page(page.read_text(encoding="utf-8"), name_of(page)):
        assert printed == promised, f"{name_of(page)}, line {block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_programs_that_are_not_run_are_at_least_programs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert unknown_kinds(text) == []
    for block in blocks(text):
        if block.language in (NOT_RUN, ON_KAFKA, ON_SPARK):
            compiled(block, name_of(page))


def test_the_site_has_every_page() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f"- {page}\n" not in listed] == []


@pytest.mark.parametrize("page", WITH_LINKS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_images_exist(page: Path) -> None:
    images = _IMAGE.findall(without_blocks(page.read_text(encoding="utf-8")))
    assert [image for image in images if not (page.parent / image).exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        for link in links(page.read_text(encoding="utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in reached:
                waiting.append(target)
    assert [name_of(page) for page in PAGES if page not in reached] == []


def test_commands_named_in_the_readme_exist() -> None:
    named = set(_MAKE.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= named
    assert named <= make_targets()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    # A row of a table and a line of real output are as long as they are.
    fenced = {line for block in blocks(page.read_text(encoding="utf-8")) for line in block.content.splitlines()}
    assert [line for line in lines if len(line) > 100 and not line.startswith("|") and line not in fenced] == []


def test_a_wrong_output_is_noticed() -> None:
    page = "```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n3\n```\n"
    ((block, printed, promised),) = run_page(page, "made up")
    assert (block.line, printed, promised) == (6, "2\n", "3\n")


def test_a_comment_marks_the_program_below_it() -> None:
    page = "<!-- spark -->\n```python\n1 / 0\n```\n"
    assert [(block.language, block.line) for block in blocks(page)] == [(ON_SPARK, 3)]
    assert without_blocks(page) == "\n"
    assert unknown_kinds(page.replace("spark", "sprak")) == ["python sprak"]


def test_the_first_program_of_the_readme_fits_without_scrolling() -> None:
    program = next(
        block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language == ON_SPARK
    )
    assert [line for line in program.content.splitlines() if len(line) > 88] == []


def test_only_marked_programs_are_left_out() -> None:
    page = "```python notest\n1 / 0\n```\n\n```text\nanything\n```\n"
    assert list(run_page(page, "made up")) == []
    assert unknown_kinds(page) == []
    assert unknown_kinds(page.replace("notest", "no-test")) == ["python no-test"]
    with pytest.raises(ZeroDivisionError):
        list(run_page(page.replace(" notest", ""), "made up"))


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A title, here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-title-here) [c](gone.md) [d](there.md#gone) [e](https://example.org/)\n"
    )
    assert broken_links(page) == ["gone.md", "there.md#gone"]


def cli(*arguments: str) -> str:
    command = [sys.executable, "-m", "dovetail.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return run.stdout + run.stderr


def test_the_command_line_loads_nothing_heavy() -> None:
    program = (
        "import sys, dovetail.cli.main; "
        "print(*[name for name in ('pyspark', 'numba', 'sqlglot', 'pyarrow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "\n"
    assert cli("version").startswith("dovetail ")


CHECKED = re.compile(r"^✓ Checked against a batch join: same rows, ([1-9][\d,]*) of \1", re.MULTILINE)
LATE = re.compile(r"^  [1-9]\d* of [\d,]+ rows came later than the declared 5 seconds", re.MULTILINE)


def results_shown(shown: str) -> list[str]:
    """Return the rows below the headings of the table of results."""
    _, _, rows = shown.partition("bought after  amount\n")
    return rows.split("\n\n", maxsplit=1)[0].splitlines()


@pytest.mark.slow
def test_the_demo_ends_with_a_check_that_holds() -> None:
    shown = cli("demo", "--local", "--seconds", "0.5", "--seed", "3")
    assert shown.startswith("Who saw an ad, clicked on it and then bought something")
    assert CHECKED.search(shown)
    assert LATE.search(shown)
    assert len(results_shown(shown)) == 5
    assert "The plan" not in shown
    assert "DovetailWarning" not in shown


@pytest.mark.slow
def test_the_demo_on_spark_ends_with_a_check_that_holds() -> None:
    shown = cli("demo", "--batches", "2", "--seed", "3", "--explain")
    assert CHECKED.search(shown)
    assert LATE.search(shown)
    assert re.search(r"^  batch 2 of 2   2 minutes of events, +\d+ k rows in ", shown, re.MULTILINE)
    assert len(results_shown(shown)) == 5
    assert re.search(r"^query funnel$", shown, re.MULTILINE)
    assert "Joining batch 1 of 2" in shown, "the first batch is announced before it is complete"
    (results,) = re.findall(r"^([\d,]+) results", shown, re.MULTILINE)
    assert int(results.replace(",", "")) < 2_000, "more purchases than orders would make no sense"
    assert ".py:" not in shown
