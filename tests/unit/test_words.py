"""Words in the package: public class names are unique, replaced words stay out, docstrings begin with a short line."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "dovetail"
REPLACED = {
    "GlobalPlan": "SharedPlan",
    "StateStore": "MaterializedJoin",
    "Roster": "TupleTable",
    "ShedderMark": "ShedderSavepoint",
    "Picture": "RuntimeStats",
    "Cohort": "QueryStart",
    "Came": "QueryStart",
    "Seat": "ShardAssignment",
    "NO_WAY_BACK": "IRREVERSIBLE",
    "go_back": "rollback",
    "outgrown": "caught_up",
    "LiveShard": "SharedMemoryShard",
    "Revision": "PlanLogEntry",
    "JobRunner": "LocalJob",
    "ExpiryTable": "CountWindowEnds",
    "SharedPrefix": "ShareablePrefix",
}
"""What the vocabulary calls these things now."""
STILL_THERE: set[str] = set()
"""Replaced words that the code has not got rid of yet."""
MAX_FIRST_LINE = 100
"""Characters of a docstring's first line."""
MAY_BE_LONGER = re.compile(
    r"engine/shedding/|engine/kernels/(dead_keys|join_sample|key_history|queues|shed_\w+|shedding|tuple_table)\.py"
)
"""Files of load shedding, whose docstrings are longer."""
QUESTIONS = ("What", "Which", "Where", "How", "When", "Why", "Who")
"""A docstring states what something is or does; one that begins with these answers a question."""


def test_no_two_modules_define_a_public_class_of_the_same_name() -> None:
    homes = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_replaced_words_do_not_come_back() -> None:
    found = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in REPLACED:
            if re.search(rf"(?<!\w){word}(?!\w)", text):
                found[word].append(path.relative_to(PACKAGE).as_posix())
    assert set(found) == STILL_THERE, {word: (REPLACED[word], places) for word, places in found.items()}


def _first_lines() -> Iterator[tuple[str, str]]:
    """Yield file and line, and the first line, of each docstring."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                where = f"{path.relative_to(PACKAGE).as_posix()}:{node.body[0].lineno}"
                yield where, text.splitlines()[0]


def test_the_first_line_of_a_docstring_is_short() -> None:
    long_lines = [
        where for where, line in _first_lines() if len(line) > MAX_FIRST_LINE and not MAY_BE_LONGER.match(where)
    ]
    assert long_lines == [], "move the rest into a second paragraph"


def test_no_docstring_begins_as_the_answer_to_a_question() -> None:
    answers = [where for where, line in _first_lines() if line.split(maxsplit=1)[0] in QUESTIONS]
    assert [where for where in answers if not MAY_BE_LONGER.match(where)] == [], "begin with the thing itself"
