"""From paths with their stems to the arrays of a tree of probes: nodes, who goes through them, and what tells those apart.

Bits are given so that those of a node's paths follow each other and, where a word can hold them, lie in one word. At a node they
differ by their views, by their class, which is how long windows were along the way, and by both, which is their slot: paths of one
slot have been through the same and are counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.join.step import Driver, JoinRun
from dovetail.engine.kernels.tree_arrays import SPANS, Tree
from dovetail.engine.storage.window import WORD_BITS
from dovetail.plan.needs import KeyId
from dovetail.plan.prefixes import Probe


class TreePath:
    """One path in a tree."""

    def __init__(self, run: JoinRun, driver: Driver) -> None:
        self.run, self.driver, self.stem = run, driver, driver.stem
        order, members = driver.runner.path.order, run.members
        met = order[: len(self.stem) + 1]
        self.flags = [members[alias].flag for alias in met]
        """At each stage, the bit of the rows that it sees."""
        self.spans = [members[alias].span for alias in met]
        """Microseconds of each stage's window."""
        self.places = [met.index(alias) if alias in met else -1 for alias in members]
        """For each alias of its join the stage, -1 where it has not been met when the path leaves the tree."""
        ends = len(met) == len(order) and not driver.runner.path.stages[-1].conditions
        self.is_whole = ends and not driver.runner.verifies
        """Whether what leaves the tree is a match."""
        self.number = self.bit = -1
        self.classes: list[int] = []
        """At each of its nodes, its class there."""
        self.slots: list[int] = []
        """At each of its nodes, its slot in the whole tree."""
        self.part = 1.0
        """How much of what it makes it has to pay for: of a node that it does not end at, as much as others do."""

    @property
    def likeness(self) -> tuple[object, ...]:
        """What a tree's shape depends on."""
        return self.run.name, self.stem, self.flags, self.spans, self.places, self.is_whole


@dataclass(eq=False)
class _Node:
    """A stage, and what follows it."""

    probe: Probe | None = None
    depth: int = 0
    children: dict[Probe, _Node] = field(default_factory=dict)
    leaving: list[TreePath] = field(default_factory=list)
    number: int = -1
    paths: list[TreePath] = field(default_factory=list)
    """All that come through it, by their numbers."""

    @cached_property
    def size(self) -> int:
        """How many those are."""
        return len(self.leaving) + sum(child.size for child in self.children.values())


class TreeShape:
    """The arrays of one tree, row by row."""

    def __init__(self, stream: str, paths: Iterable[TreePath]) -> None:
        root = _Node()
        for path in paths:
            node = root
            for probe in path.stem:
                node = node.children.setdefault(probe, _Node(probe, node.depth + 1))
            node.leaving.append(path)
        self.paths: list[TreePath] = []
        """By number."""
        self._nodes: list[_Node] = []
        self._bits = 0
        self._number(root)
        self._words = (self._bits + WORD_BITS - 1) // WORD_BITS
        self.targets: dict[tuple[str, KeyId], int] = {(stream, ()): 0}
        """The windows that are met, and by which key: those of the new tuples first."""
        self.codes: dict[tuple[str, str], int] = {}
        """The codes that are looked for: a stream, and the name of a value."""
        self.slots: list[tuple[int, int, int]] = []
        """Per slot: that of the same paths at the parent, its node, and how many paths it is of."""
        self._rows: dict[str, list[list[int]]] = {name: [] for name in ("parts", "views", "spans", "slots", "exits")}
        self._masks: dict[str, list[Int64Array]] = {name: [] for name in ("nodes", "views", "spans")}
        self._told_views: list[int] = []
        self._told_spans: list[int] = []
        siblings: dict[int, int] = {}
        for node in self._nodes:
            children = [child.number for child in node.children.values()]
            siblings.update(pairwise((*children, -1)))
        self._node_rows = [self._row(node, siblings.get(node.number, -1)) for node in self._nodes]
        for node in self._nodes:
            for path in node.paths:
                if node.depth < len(path.stem):
                    path.part -= (1 - 1 / len(node.paths)) / len(path.driver.runner.path.order)

    def _number(self, node: _Node) -> list[TreePath]:
        """Number a node before its children, and its paths one after another."""
        node.number = len(self._nodes)
        self._nodes.append(node)
        count, used = node.size, self._bits % WORD_BITS
        if count <= WORD_BITS < used + count:
            self._bits += WORD_BITS - used
        for path in node.leaving:
            path.number, path.bit = len(self.paths), self._bits
            self.paths.append(path)
            self._bits += 1
        node.paths = [*node.leaving, *(path for child in node.children.values() for path in self._number(child))]
        return node.paths

    def _row(self, node: _Node, sibling: int) -> list[int]:
        """A node as a row of `Tree.nodes`; rows of other arrays are added to them."""
        begins = {name: len(rows) for name, rows in self._rows.items()}
        self._masks["nodes"].append(self._mask(node.paths))
        target = self._meet(node.probe) if node.probe is not None else 0
        self._tell_apart(node)
        self._rows["exits"] += [[path.number, path.bit] for path in node.leaving]
        bounds = [bound for name, begin in begins.items() for bound in (begin, len(self._rows[name]))]
        child = next((child.number for child in node.children.values()), -1)
        old = node.probe is not None and node.probe.old
        widest = max(path.spans[node.depth] for path in node.paths)
        words = node.paths[0].bit // WORD_BITS, node.paths[-1].bit // WORD_BITS + 1
        flags = {word for word, _ in self._rows["views"][begins["views"] :]}
        in_word = words[1] - words[0] == len(flags) == 1
        for kind, told in (("views", self._told_views), ("spans", self._told_spans)):
            for row, mask in zip(self._rows[kind][begins[kind] :], self._masks[kind][begins[kind] :], strict=True):
                told += [*(row[1:] if kind == "views" else row), int(mask[words[0]])]
        return [node.depth, child, sibling, target, int(old), widest, *words, int(in_word), *bounds]

    def _meet(self, probe: Probe) -> int:
        """The window of a stage, and where the codes come from that are looked for."""
        for (depth, name), stream in zip(probe.wanted, probe.sources, strict=True):
            self._rows["parts"].append([depth, self.codes.setdefault((stream, name), len(self.codes))])
        return self.targets.setdefault((probe.stream, probe.key), len(self.targets))

    def _tell_apart(self, node: _Node) -> None:
        """Add a node's views, classes and slots."""
        views: dict[int, list[TreePath]] = {}
        classes: dict[tuple[int, int], list[TreePath]] = {}
        numbers: dict[tuple[int, int], int] = {}
        slots: dict[tuple[int, int, int], list[TreePath]] = {}
        for path in node.paths:
            flag, spans = path.flags[node.depth], (path.classes[-1] if node.depth else 0, path.spans[node.depth])
            views.setdefault(flag, []).append(path)
            path.classes.append(numbers.setdefault(spans, len(numbers)))
            classes.setdefault(spans, []).append(path)
            before = path.slots[-1] if node.depth else -1
            slots.setdefault((before, flag, path.classes[-1]), []).append(path)
        for flag, paths in views.items():
            self._rows["views"].append([flag // WORD_BITS, flag % WORD_BITS])
            self._masks["views"].append(self._mask(paths))
        for spans, paths in classes.items():
            self._rows["spans"].append([*spans])
            self._masks["spans"].append(self._mask(paths))
        for (before, _, _), paths in slots.items():
            for path in paths:
                path.slots.append(len(self.slots))
            self.slots.append((before if node.depth else len(self.slots), node.number, len(paths)))
            self._rows["slots"].append([paths[0].bit])

    def _mask(self, paths: Sequence[TreePath]) -> Int64Array:
        bits = sum(1 << path.bit for path in paths)
        return np.frombuffer(bits.to_bytes(8 * self._words, "little"), np.int64)

    @property
    def depths(self) -> int:
        """Stages of the longest stem, the new tuples included."""
        return 1 + max(node.depth for node in self._nodes)

    @property
    def most_leaving(self) -> int:
        """Paths that leave at one node."""
        return max(len(node.leaving) for node in self._nodes)

    @property
    def width(self) -> int:
        """Columns of a partial match."""
        most = max(row[SPANS + 1] - row[SPANS] for row in self._node_rows)
        return self._columns + 1 + self._words + most

    @property
    def _columns(self) -> int:
        """Columns for row numbers; also the aliases of the widest join."""
        return max(len(path.places) for path in self.paths)

    def arrays(self) -> Tree:
        """All that kernels need."""
        columns, numbers = self._columns, {name: _matrix(rows) for name, rows in self._rows.items()}
        masks = {name: np.array(rows, np.int64).reshape(len(rows), self._words) for name, rows in self._masks.items()}
        places = np.full((len(self.paths), columns), -1, np.int64)
        for path in self.paths:
            places[path.number, : len(path.places)] = path.places
        return Tree(
            nodes=_matrix(self._node_rows),
            masks=masks["nodes"],
            parts=numbers["parts"],
            views=numbers["views"],
            view_masks=masks["views"],
            spans=numbers["spans"],
            span_masks=masks["spans"],
            told=np.array([*self._told_views, *self._told_spans], np.int64),
            slots=numbers["slots"][:, 0],
            exits=numbers["exits"],
            paths=_matrix([[len(path.places), path.classes[-1]] for path in self.paths]),
            places=places,
        )


def _matrix(rows: Sequence[Sequence[int]]) -> Int64Array:
    return np.array(rows, np.int64)
