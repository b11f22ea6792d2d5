"""Build the arrays of a probe tree from paths with shared prefixes.

Each path has a bit. The bits of a node's paths are consecutive and, if a word can hold them, in one word. A node groups its paths by
view, by *class* (equal windows along the way), and by *slot* (equal views and windows along the way): paths of one slot have had equal
stages and are counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.join.step import Driver, JoinRun
from dovetail.engine.kernels.tree_arrays import (
    CHILD,
    DEPTH,
    EXITS,
    OLD_ONLY,
    ONE_WORD,
    PARTS,
    SIBLING,
    SLOTS,
    SPANS,
    TARGET,
    VIEWS,
    WIDEST,
    WORD,
    WORD_END,
    Tree,
)
from dovetail.engine.storage.window import WORD_BITS
from dovetail.plan.needs import KeyId
from dovetail.plan.prefixes import Probe

_RANGES = {"parts": PARTS, "views": VIEWS, "spans": SPANS, "slots": SLOTS, "exits": EXITS}
"""By array: the first of the two columns of `Tree.nodes` that hold a node's rows of it."""


class TreePath:
    """One path in a probe tree."""

    def __init__(self, run: JoinRun, driver: Driver) -> None:
        self.run, self.driver, self.prefix = run, driver, driver.prefix
        order, members = driver.runner.path.order, run.members
        joined = order[: len(self.prefix) + 1]
        self.view_bits = [members[alias].bit for alias in joined]
        """Number of the flag that marks the rows that each stage may see."""
        self.spans = [members[alias].span for alias in joined]
        """Microseconds of each stage's window."""
        self.alias_stages = [joined.index(alias) if alias in joined else -1 for alias in members]
        """Stage of each alias of its join; -1 if the alias is not joined in the tree."""
        ends = len(joined) == len(order) and not driver.runner.path.stages[-1].conditions
        self.ends_in_tree = ends and not driver.runner.needs_verification
        """Whether the tree outputs matches for the path, not partial ones."""
        self.number = self.bit = -1
        self.classes: list[int] = []
        """Class at each of its nodes."""
        self.slots: list[int] = []
        """Slot at each of its nodes, numbered over the whole tree."""
        self.cost_fraction = 1.0
        """Fraction of its output charged to this path; the paths of a node share the node's cost equally, except where they exit."""

    @property
    def layout_key(self) -> tuple[object, ...]:
        """Everything that the tree's layout depends on."""
        return self.run.name, self.prefix, self.view_bits, self.spans, self.alias_stages, self.ends_in_tree


@dataclass(eq=False)
class _Node:
    """A stage that paths share, and the stages after it."""

    probe: Probe | None = None
    depth: int = 0
    children: dict[Probe, _Node] = field(default_factory=dict)
    exiting: list[TreePath] = field(default_factory=list)
    number: int = -1
    paths: list[TreePath] = field(default_factory=list)
    """All paths through the node, by number."""

    @cached_property
    def size(self) -> int:
        """Number of paths through the node."""
        return len(self.exiting) + sum(child.size for child in self.children.values())


class TreeLayout:
    """Builds the arrays of one tree, row by row."""

    def __init__(self, stream: str, paths: Iterable[TreePath]) -> None:
        root = _Node()
        for path in paths:
            node = root
            for probe in path.prefix:
                node = node.children.setdefault(probe, _Node(probe, node.depth + 1))
            node.exiting.append(path)
        self.paths: list[TreePath] = []
        """By number."""
        self._nodes: list[_Node] = []
        self._bits = 0
        self._number(root)
        self._words = (self._bits + WORD_BITS - 1) // WORD_BITS
        self.targets: dict[tuple[str, KeyId], int] = {(stream, ()): 0}
        """Index of each probed window and key; 0 is the window of the new tuples."""
        self.codes: dict[tuple[str, str], int] = {}
        """Index of each array of codes that is looked up: a stream, and the name of a value."""
        self.slots: list[tuple[int, int, int]] = []
        """Per slot: the slot of the same paths at the parent, its node, and the number of its paths."""
        self._rows: dict[str, list[list[int]]] = {name: [] for name in _RANGES}
        self._masks: dict[str, list[Int64Array]] = {name: [] for name in ("nodes", "views", "spans")}
        self._packed_views: list[int] = []
        self._packed_spans: list[int] = []
        siblings: dict[int, int] = {}
        for node in self._nodes:
            children = [child.number for child in node.children.values()]
            siblings.update(pairwise((*children, -1)))
        self._node_rows = [self._row(node, siblings.get(node.number, -1)) for node in self._nodes]
        for node in self._nodes:
            for path in node.paths:
                if node.depth < len(path.prefix):
                    path.cost_fraction -= (1 - 1 / len(node.paths)) / len(path.driver.runner.path.order)

    def _number(self, node: _Node) -> list[TreePath]:
        """Number a node before its children, and its paths consecutively."""
        node.number = len(self._nodes)
        self._nodes.append(node)
        count, used = node.size, self._bits % WORD_BITS
        if count <= WORD_BITS < used + count:
            self._bits += WORD_BITS - used
        for path in node.exiting:
            path.number, path.bit = len(self.paths), self._bits
            self.paths.append(path)
            self._bits += 1
        node.paths = [*node.exiting, *(path for child in node.children.values() for path in self._number(child))]
        return node.paths

    def _row(self, node: _Node, sibling: int) -> list[int]:
        """Return a node's row of `Tree.nodes`, and append its rows to the other arrays."""
        begins = {name: len(rows) for name, rows in self._rows.items()}
        self._masks["nodes"].append(self._mask(node.paths))
        target = self._add_probe(node.probe) if node.probe is not None else 0
        self._add_groups(node)
        self._rows["exits"] += [[path.number, path.bit] for path in node.exiting]
        child = next((child.number for child in node.children.values()), -1)
        old_only = node.probe is not None and node.probe.old
        widest = max(path.spans[node.depth] for path in node.paths)
        words = node.paths[0].bit // WORD_BITS, node.paths[-1].bit // WORD_BITS + 1
        flags = {word for word, _ in self._rows["views"][begins["views"] :]}
        one_word = words[1] - words[0] == len(flags) == 1
        for kind, packed in (("views", self._packed_views), ("spans", self._packed_spans)):
            for row, mask in zip(self._rows[kind][begins[kind] :], self._masks[kind][begins[kind] :], strict=True):
                packed += [*(row[1:] if kind == "views" else row), int(mask[words[0]])]
        columns = {DEPTH: node.depth, CHILD: child, SIBLING: sibling, TARGET: target, OLD_ONLY: int(old_only)}
        columns |= {WIDEST: widest, WORD: words[0], WORD_END: words[1], ONE_WORD: int(one_word)}
        for name, first in _RANGES.items():
            columns |= {first: begins[name], first + 1: len(self._rows[name])}
        return [columns[column] for column in range(len(columns))]

    def _add_probe(self, probe: Probe) -> int:
        """Append the parts of a probe's key; return the index of its window in `targets`."""
        for (depth, name), stream in zip(probe.key_values, probe.sources, strict=True):
            self._rows["parts"].append([depth, self.codes.setdefault((stream, name), len(self.codes))])
        return self.targets.setdefault((probe.stream, probe.key), len(self.targets))

    def _add_groups(self, node: _Node) -> None:
        """Append a node's views, classes and slots."""
        views: dict[int, list[TreePath]] = {}
        classes: dict[tuple[int, int], list[TreePath]] = {}
        class_numbers: dict[tuple[int, int], int] = {}
        slots: dict[tuple[int, int, int], list[TreePath]] = {}
        for path in node.paths:
            flag, spans = path.view_bits[node.depth], (path.classes[-1] if node.depth else 0, path.spans[node.depth])
            views.setdefault(flag, []).append(path)
            path.classes.append(class_numbers.setdefault(spans, len(class_numbers)))
            classes.setdefault(spans, []).append(path)
            parent_slot = path.slots[-1] if node.depth else -1
            slots.setdefault((parent_slot, flag, path.classes[-1]), []).append(path)
        for flag, paths in views.items():
            self._rows["views"].append([flag // WORD_BITS, flag % WORD_BITS])
            self._masks["views"].append(self._mask(paths))
        for spans, paths in classes.items():
            self._rows["spans"].append([*spans])
            self._masks["spans"].append(self._mask(paths))
        for (parent_slot, _, _), paths in slots.items():
            for path in paths:
                path.slots.append(len(self.slots))
            self.slots.append((parent_slot if node.depth else len(self.slots), node.number, len(paths)))
            self._rows["slots"].append([paths[0].bit])

    def _mask(self, paths: Sequence[TreePath]) -> Int64Array:
        bits = sum(1 << path.bit for path in paths)
        return np.frombuffer(bits.to_bytes(8 * self._words, "little"), np.int64)

    @property
    def depths(self) -> int:
        """Stages of the longest shared prefix, the new tuples included."""
        return 1 + max(node.depth for node in self._nodes)

    @property
    def most_exits(self) -> int:
        """Largest number of paths that exit at one node."""
        return max(len(node.exiting) for node in self._nodes)

    @property
    def width(self) -> int:
        """Number of columns of a partial match."""
        most_classes = max(row[SPANS + 1] - row[SPANS] for row in self._node_rows)
        return self._columns + 1 + self._words + most_classes

    @property
    def _columns(self) -> int:
        """Columns for row numbers: the aliases of the widest join."""
        return max(len(path.alias_stages) for path in self.paths)

    def arrays(self) -> Tree:
        """Return the tree as arrays for the kernels."""
        rows = {name: _matrix(rows) for name, rows in self._rows.items()}
        masks = {name: np.array(rows, np.int64).reshape(len(rows), self._words) for name, rows in self._masks.items()}
        alias_stages = np.full((len(self.paths), self._columns), -1, np.int64)
        for path in self.paths:
            alias_stages[path.number, : len(path.alias_stages)] = path.alias_stages
        return Tree(
            nodes=_matrix(self._node_rows),
            masks=masks["nodes"],
            parts=rows["parts"],
            views=rows["views"],
            view_masks=masks["views"],
            spans=rows["spans"],
            span_masks=masks["spans"],
            packed=np.array([*self._packed_views, *self._packed_spans], np.int64),
            slots=rows["slots"][:, 0],
            exits=rows["exits"],
            paths=_matrix([[len(path.alias_stages), path.classes[-1]] for path in self.paths]),
            alias_stages=alias_stages,
        )


def _matrix(rows: Sequence[Sequence[int]]) -> Int64Array:
    return np.array(rows, np.int64)
