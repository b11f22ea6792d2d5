"""The paths of many joins from one stream's new tuples as one tree: stages that they have in common are probed once.

What a tree is follows from the plan (`plan.stems`). A path that ends in the tree gives matches. One that goes on behind it, because it
scans a window, checks a condition or has to compare values, takes its partial matches from there and goes on alone. Nothing is kept
from walk to walk but counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from dovetail._typing import Float64Array, Int64Array
from dovetail.engine.join import path as probe
from dovetail.engine.join.step import Fresh, JoinRun
from dovetail.engine.join.tree_layout import TreePath, TreeShape
from dovetail.engine.join.verify import MatchTable
from dovetail.engine.kernels.tree_arrays import (
    ADDRESS,
    BOTTOM,
    FLAGS,
    LOGGED,
    ROW,
    SLOTS,
    TOLD,
    TOP,
    Accounts,
    Counters,
    Targets,
    Walk,
)
from dovetail.engine.kernels.trees import account, hand_over, walk
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.prefixes import together

_CHUNK = 2048
"""Partial matches of a node that go on together."""
_FIRST_LOG = 1024


class _Figures(NamedTuple):
    """What was counted so far."""

    walks: int
    stages: Int64Array
    """Per slot, for each of its paths: what came, rows looked at, what was made, rows that the window held for all that came."""
    seconds: Float64Array


class ProbeTree:
    """The tree of one stream."""

    def __init__(
        self, stream: str, windows: Mapping[str, WindowStore], paths: Sequence[TreePath], stage_rows: int
    ) -> None:
        """Make the tree of `paths` over `windows`, by stream."""
        shape = TreeShape(stream, paths)
        self.stream, self.paths = stream, shape.paths
        self._tree = shape.arrays()
        self._numbers = [path.number for path in paths]
        self._likeness = [path.likeness for path in paths]
        self._widths = np.array([len(path.places) for path in self.paths], np.int64)
        self._slots = np.concatenate([path.slots for path in self.paths])
        """Of all paths, one path after another."""
        lengths = np.array([len(path.slots) for path in self.paths])
        self._firsts = np.cumsum(lengths) - lengths
        self._table, self._takers = MatchTable(0), np.zeros(0, np.int64)
        self._joins: Sequence[JoinRun] = ()
        self._met = [(windows[met], key) for met, key in shape.targets]
        self._wanted = [(windows[of], name) for of, name in shape.codes]
        words = max(store.flag_words for store, _ in self._met)
        self._targets = Targets(
            np.zeros((len(self._met), FLAGS + words), np.int64), np.zeros((len(self._wanted), 2), np.int64)
        )
        self._streams = list(dict.fromkeys(stream for stream, _ in (*shape.targets, *shape.codes)))
        self._stores = [windows[stream] for stream in self._streams]
        self._versions: list[int] = []
        self._kept: list[object] = []
        """The arrays whose addresses are known."""
        nodes = len(self._tree.nodes)
        self._counters = Counters(*(np.zeros(count, np.int64) for count in (len(shape.slots), nodes, nodes)))
        self._accounts = _accounts(shape.slots, nodes)
        self._most = max(stage_rows, shape.most_leaving)
        depths = shape.depths
        log = max(min(_FIRST_LOG, self._most), shape.most_leaving)
        chunk = min(_CHUNK, stage_rows)
        counts, nodes_at, picked, at, cursors = np.zeros((5, depths + 1), np.int64)
        self._walk = Walk(
            stages=np.empty((depths, chunk, shape.width), np.int64),
            counts=counts,
            nodes=nodes_at,
            picked=picked,
            at=at,
            cursors=cursors,
            chosen=np.empty((depths, chunk), np.int64),
            wanted=np.empty((depths, chunk), np.uint64),
            rows=np.empty((depths, chunk), np.int64),
            state=np.zeros(TOLD + 1, np.int64),
            log=np.empty((log, int(self._widths.max()) + 2), np.int64),
            paths=np.empty(log, np.int64),
        )
        self._start = np.zeros(TOLD + 1, np.int64)
        """The state of a walk that has not begun."""
        known = (self._walk.stages, self._walk.wanted, self._walk.rows, self._walk.chosen, self._tree.told)
        self._start[ADDRESS:] = [array.ctypes.data for array in known]
        self._walks = self._rows = self._held = 0
        self._figures: _Figures | None = None
        self._produced: list[tuple[int, int]] | None = None

    def can_serve(self, windows: Mapping[str, WindowStore], paths: Sequence[TreePath]) -> bool:
        """Whether it is also the tree of these paths."""
        same = [path.likeness for path in paths] == self._likeness
        stores, words = [windows.get(stream) for stream in self._streams], self._targets.windows.shape[1] - FLAGS
        return same and stores == self._stores and all(store.flag_words <= words for store in self._stores)

    def serve(self, paths: Sequence[TreePath], table: MatchTable, joins: Sequence[JoinRun]) -> None:
        """Go on for `paths`; `joins` have their matches in `table`, in the same order."""
        self._table, self._joins = table, joins
        slots = {run.name: slot for slot, run in enumerate(joins)}
        for number, path in zip(self._numbers, paths, strict=True):
            path.slots, path.part = self.paths[number].slots, self.paths[number].part
            self.paths[number] = path
            path.driver.runner.share(_PathCounts(self, number, path))
        takers = [slots[path.run.name] if path.is_whole else -1 for path in self.paths]
        self._takers = np.array(takers, np.int64)

    def run(self, fresh: Fresh) -> None:
        """Take a stream's new tuples through the tree, and add what matches to the joins' matches."""
        began = perf_counter()
        first, stop = fresh[self.stream]
        self._refresh()
        self._walk.state[:] = self._start
        self._walk.state[ROW] = first
        apart = 0.0
        while not walk(self._tree, self._targets, self._counters, self._walk, first, stop):
            apart += self._empty_log(fresh)
            self._lengthen_log()
        apart += self._empty_log(fresh)
        self._walks += 1
        self._rows += stop - first
        self._held += len(self._met[0][0].rows)
        self._figures = self._produced = None
        seconds = perf_counter() - began - apart
        account(self._tree, self._targets, self._counters, self._accounts, seconds)

    def close(self) -> None:
        """Let the paths go: they count alone from here on."""
        for path in self.paths:
            path.driver.runner.share(None)

    @property
    def figures(self) -> _Figures:
        """What was counted."""
        if self._figures is None:
            made, accounts = self._counters.made, self._accounts
            stages = np.stack(
                [made[accounts.parents], np.rint(accounts.looked).astype(np.int64), made, accounts.offered]
            )
            roots = int(self._tree.nodes[0, SLOTS + 1])
            stages[0, :roots], stages[1, :roots], stages[3, :roots] = self._walks, self._rows, self._held
            self._figures = _Figures(self._walks, stages.T.copy(), accounts.seconds.copy())
        return self._figures

    @property
    def produced(self) -> list[tuple[int, int]]:
        """By number of a path: its new tuples, and all that was made of them, these included."""
        if self._produced is None:
            made = self._counters.made[self._slots]
            new, whole = made[self._firsts], np.add.reduceat(made, self._firsts)
            self._produced = list(zip(new.tolist(), whole.tolist(), strict=True))
        return self._produced

    def _refresh(self) -> None:
        """Look addresses up again after a window has moved or grown; take note of which rows there are."""
        windows = self._targets.windows
        versions = [store.rows.version for store in self._stores]
        if versions != self._versions:
            self._kept = []
            for number, (store, key) in enumerate(self._met):
                rows = store.rows
                chain = store.chain(store.indexes[key]) if key else None
                code = self._address(rows[store.codes[key]]) if key else 0
                heads, links = (self._address(chain.head), self._address(chain.links)) if chain else (0, 0)
                shift = int(chain.shift) if chain else 0
                flags = [self._address(rows[store.flag_name(word)]) for word in range(store.flag_words)]
                times = (self._address(rows[name]) for name in ("ts", "prefix_max"))
                row = [rows.base, 0, 0, *times, code, heads, links, shift, *flags]
                windows[number, : len(row)] = row
            for number, (store, name) in enumerate(self._wanted):
                self._targets.codes[number] = self._address(store.rows[store.codes[(name,)]]), store.rows.base
            self._versions = versions
        windows[:, TOP] = [store.rows.head for store, _ in self._met]
        windows[:, BOTTOM] = [store.rows.tail for store, _ in self._met]

    def _address(self, array: Int64Array) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)

    def _empty_log(self, fresh: Fresh) -> float:
        """Give what has left the tree to the joins; return the seconds that results took which leave, and paths that go on alone."""
        log, paths, count = self._walk.log, self._walk.paths, int(self._walk.state[LOGGED])
        if not count:
            return 0.0
        self._walk.state[LOGGED] = 0
        table, left = self._table, np.bincount(paths[:count], minlength=len(self.paths))
        added = np.bincount(self._takers + 1, left, len(table.counts) + 1)[1:]
        for slot in np.flatnonzero(table.counts + added > table.capacities).tolist():
            self._joins[slot].matches.reserve(int(added[slot]))
        hand_over(log, paths, count, self._takers, self._widths, table.counts, table.capacities, table.addresses)
        began = perf_counter()
        for slot in np.flatnonzero(table.counts >= probe.GIVEN_ROWS).tolist():
            if self._joins[slot].matches.give is not None:
                self._joins[slot].matches.hand_on()
        alone = np.flatnonzero((left > 0) & (self._takers < 0))
        order = np.argsort(paths[:count], kind="stable") if len(alone) else alone
        ends = np.cumsum(left)
        for number in alone.tolist():
            path, width = self.paths[number], self._widths[number]
            partial = log[order[ends[number] - left[number] : ends[number]], : width + 2]
            bounds, depth = path.driver.bounds(fresh), len(path.stem) + 1
            path.driver.runner.go_on_from(depth, partial, bounds, path.run.matches)
        return perf_counter() - began

    def _lengthen_log(self) -> None:
        rows, width = self._walk.log.shape
        if rows < self._most:
            rows = min(4 * rows, self._most)
            self._walk = self._walk._replace(log=np.empty((rows, width), np.int64), paths=np.empty(rows, np.int64))


class _PathCounts:
    """What one path has done in a tree.

    Partial matches that came and were made are its own; rows looked at are its part of the stage's, by what came; so is the time,
    and the times of all paths together are what the tree took.
    """

    def __init__(self, tree: ProbeTree, number: int, path: TreePath) -> None:
        self._tree, self._number, self._slots, self.part = tree, number, np.array(path.slots), path.part
        self._added, self._before = tree.figures, tree.produced[number]
        """As of the walk up to which all was added."""
        self._noted: _Figures | None = None

    @property
    def produced(self) -> tuple[int, int]:
        """New tuples, and all that was made of them, since the last call of `settle`."""
        new, whole = self._tree.produced[self._number]
        return new - self._before[0], whole - self._before[1]

    def note(self) -> None:
        """Remember what has been counted up to now."""
        self._noted = self._tree.figures

    def settle(self, counts: Int64Array, seconds: list[float], noted: Int64Array) -> None:
        """Add what was counted since the last call, and to `noted` what was when it was to be remembered."""
        figures, before = self._tree.figures, self._added
        if self._noted is not None:
            noted[: len(self._slots)] += self._noted.stages[self._slots] - before.stages[self._slots]
            self._noted = None
        if figures.walks != before.walks:
            counts[: len(self._slots)] += figures.stages[self._slots] - before.stages[self._slots]
            took = figures.seconds[self._slots] - before.seconds[self._slots]
            for depth, more in enumerate(took.tolist()):
                seconds[depth] += more
            self._added, self._before = figures, self._tree.produced[self._number]


def _accounts(slots: Sequence[tuple[int, int, int]], nodes: int) -> Accounts:
    parents, of, paths = np.array(slots, np.int64).T.copy()
    noted, offered = np.zeros((2, len(slots)), np.int64)
    looked, seconds = np.zeros((2, len(slots)))
    came, rows = np.zeros((2, nodes), np.int64)
    return Accounts(parents, of, paths, noted, offered, looked, seconds, came, rows, np.zeros(nodes))


class Trees:
    """The trees of a group of windows, one for each stream whose new tuples take several paths."""

    def __init__(
        self,
        runs: Mapping[str, JoinRun],
        windows: Mapping[str, WindowStore],
        stage_rows: int,
        before: Trees | None = None,
    ) -> None:
        """Make the trees of all `runs`, by name; those from `before` that are the same go on."""
        self._joins, self._table = list(runs.values()), MatchTable(len(runs))
        self._names = [run.name for run in self._joins]
        for slot, run in enumerate(self._joins):
            run.matches.enter(self._table, slot)
        drivers = {(run.name, driver.alias): (run, driver) for run in self._joins for driver in run.drivers}
        self._trees: dict[str, ProbeTree] = {}
        stems = ((driver.feed, name, driver.stem) for name, (_, driver) in drivers.items())
        for stream, paths in together(stems).items():
            members = [TreePath(*drivers[name]) for name in paths]
            tree = before.of(stream) if before is not None else None
            if tree is None or not tree.can_serve(windows, members):
                tree = ProbeTree(stream, windows, members, stage_rows)
            tree.serve(members, self._table, self._joins)
            self._trees[stream] = tree
        self.others = {stream: [run for run in self._joins if _is_left(run, stream)] for stream in windows}
        """By stream: joins with paths that are in no tree, and those whose matches are stored."""

    def of(self, stream: str) -> ProbeTree | None:
        return self._trees.get(stream)

    def run(self, stream: str, fresh: Fresh) -> dict[str, int]:
        """Take a stream's new tuples through its tree, if it has one; return how many matches of which joins that has given."""
        if stream not in self._trees:
            return {}
        before = self._table.counts + self._table.given
        self._trees[stream].run(fresh)
        found = self._table.counts + self._table.given - before
        slots = np.flatnonzero(found)
        return {self._names[slot]: count for slot, count in zip(slots.tolist(), found[slots].tolist(), strict=True)}

    def close(self) -> None:
        """Let all paths go."""
        for tree in self._trees.values():
            tree.close()


def _is_left(run: JoinRun, stream: str) -> bool:
    """Whether a join has to be asked apart when tuples of a stream come."""
    if stream not in {source.stream for source in run.step.sources}:
        return False
    alone = [driver for driver in run.drivers if driver.runner.shared is None]
    return run.state is not None or bool(run.step.stored_inputs) or any(driver.feed == stream for driver in alone)
