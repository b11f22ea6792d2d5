"""Run the programs of documentation pages, and compare what they print with what the page says.

Blocks of one page share a namespace, in order, as a reader would type them. A `text` block behind a program is its output. As a
script, `pages.py [page ...]` runs the pages in one process, programs for Spark included, and prints as JSON what each program printed
and should have printed: so all pages share one Spark, and relative paths are those of the directory that the script is started in.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON = "python"
ON_SPARK = "python spark"
ON_KAFKA = "python kafka"
NOT_RUN = "python notest"
_FENCE = re.compile(r"^(?:<!-- ([\w-]+) -->\n)?```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block and the line its content starts on."""

    language: str
    content: str
    line: int


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page; `python` behind a line `<!-- spark -->` is `python spark`, shown by every renderer."""
    return [
        Block(f"{m[2]} {m[1]}" if m[1] else m[2], m[3], text.count("\n", 0, m.start(3)) + 1)
        for m in _FENCE.finditer(text)
    ]


def without_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def compiled(block: Block, name: str) -> object:
    """Compile a block so that errors name its page and line."""
    return compile("\n" * (block.line - 1) + block.content, name, "exec")


def run_page(text: str, name: str, languages: Collection[str] = (PYTHON,)) -> Iterator[tuple[Block, str, str]]:
    """Run the programs of a page; yield each with a `text` block behind it, what it printed and what it should have."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    found = blocks(text)
    for block, following in zip(found, [*found[1:], None], strict=False):
        if block.language not in languages:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled(block, name), namespace)  # type: ignore[arg-type]  # noqa: S102 - our own documentation
        if following is not None and following.language == "text":
            yield block, printed.getvalue(), following.content


def main() -> None:
    outputs: dict[str, list[tuple[int, str, str]]] = {}
    for page in sys.argv[1:]:
        ran = run_page(Path(page).read_text(encoding="utf-8"), page, (PYTHON, ON_SPARK))
        outputs[page] = [(block.line, printed, promised) for block, printed, promised in ran]
    print(json.dumps(outputs))  # noqa: T201 - for the test that started this script


if __name__ == "__main__":
    main()
