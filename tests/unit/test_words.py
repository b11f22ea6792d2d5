"""Names in the package: every public class name is unique, and replaced words stay out."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
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
}
"""What the vocabulary calls these things now."""
STILL_THERE: set[str] = set()
"""Replaced words that the code has not got rid of yet."""


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
