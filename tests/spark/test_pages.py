"""Programs for Spark in the documentation run as printed and print what their page says, all pages in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ON_SPARK, blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if any(block.language == ON_SPARK for block in blocks(page.read_text(encoding="utf-8")))
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str, str]]]:
    command = [sys.executable, str(ROOT / "tests" / "helpers" / "pages.py"), *(str(ROOT / page) for page in PAGES)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        command, cwd=tmp_path_factory.mktemp("pages"), env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found: dict[str, list[tuple[int, str, str]]] = json.loads(run.stdout.splitlines()[-1])
    return {Path(page).relative_to(ROOT).as_posix(): ran for page, ran in found.items()}


@pytest.mark.parametrize("page", PAGES)
def test_programs_on_spark_print_what_the_page_says(page: str, outputs: dict[str, list[tuple[int, str, str]]]) -> None:
    assert outputs[page]
    for line, printed, promised in outputs[page]:
        assert printed == promised, f"{page}, line {line}"


def test_the_readme_begins_with_a_program_on_spark() -> None:
    found = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    number, program = next((n, block) for n, block in enumerate(found) if block.language == ON_SPARK)
    assert found[number + 1].language == "text"
    assert len([line for line in program.content.splitlines() if line.strip()]) <= 20
