"""Hooks of the documentation site (`make docs`): pages from outside `docs`, links to sources, marks of tested code.

The pages are written to be read in the repository. On the site the README is the home page, links to files outside `docs` become
text, and the marks after a block's language, which tell the tests how to run it, are removed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages outside `docs`, and their places on the site."""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(docs/([^)]+)\)")
_MARKED_BLOCK = re.compile(r"^```(\w+) .+$", re.MULTILINE)
_API = """# API

Everything that a program imports is an attribute of `dovetail`; the command line has [a page of its own](cli.md).

{sections}
"""
_SECTIONS = {
    "Sessions": (
        "dovetail.session.local.LocalSession",
        "dovetail.spark.sessions.Session",
        "dovetail.spark.running.RunningSession",
        "dovetail.spark.driver.builder.session",
    ),
    "Configuration": ("dovetail.config.Config", "dovetail.config.Shedding", "dovetail.config.Budget"),
    "Sinks": (
        "dovetail.spark.sinks.parquet.ParquetSink",
        "dovetail.spark.sinks.delta.DeltaSink",
        "dovetail.spark.sinks.iceberg.IcebergSink",
        "dovetail.spark.sinks.table.TableSink",
        "dovetail.spark.sinks.sinks.MemorySink",
        "dovetail.spark.sinks.sinks.CallableSink",
        "dovetail.spark.sinks.sinks.FormatSink",
    ),
    "Checkpoints": (
        "dovetail.spark.checkpoint.reshard.reshard",
        "dovetail.spark.checkpoint.stored_state.read_state",
        "dovetail.live.view_file.monitor",
    ),
    "Plans and metrics": ("dovetail.plan.explain.explanation.Explanation", "dovetail.session.metrics.SessionMetrics"),
    "Errors": ("dovetail.errors",),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside `docs`, and the API reference."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    sections = [f"## {title}\n\n" + "\n\n".join(f"::: {name}" for name in names) for title, names in _SECTIONS.items()]
    files.append(File.generated(config, "api.md", content=_API.format(sections="\n\n".join(sections))))
    return files


def on_post_build(config: Any) -> None:
    """Write `llms.txt`, which lists the pages for language models."""
    pages = [(path, (ROOT / "docs" / path).read_text(encoding="utf-8")) for path in _pages(config["nav"])]
    lines = [f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({path[:-3]}.html)" for path, text in pages]
    title = f"# {config['site_name']}\n\n> {config['site_description']}\n\n"
    (Path(config["site_dir"]) / "llms.txt").write_text(title + "\n".join(lines) + "\n", encoding="utf-8")


def _pages(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation that are files in `docs`."""
    for entry in nav.values() if isinstance(nav, dict) else nav:
        if not isinstance(entry, str):
            yield from _pages(entry)
        elif (ROOT / "docs" / entry).exists():
            yield entry


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links and code blocks of a page."""
    path = page.file.src_uri
    sources = {target: source for source, target in OUTSIDE.items()}
    folder = posixpath.dirname(sources[path]) if path in sources else posixpath.dirname(f"docs/{path}")

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], posixpath.normpath(posixpath.join(folder, match[2])), match[3] or ""
        place = OUTSIDE.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if place is None or not place.endswith((".md", ".png", ".svg")):
            return text
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(path) or '.')}{anchor})"

    markdown = _IMAGE.sub(r"![\1](\2)", markdown) if path in sources else markdown
    return _MARKED_BLOCK.sub(r"```\1", _LINK.sub(link, markdown))
