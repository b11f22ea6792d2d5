"""Run the probe paths of many joins from one stream's new tuples as a tree: shared prefixes run once.

The plan determines the tree (`plan.prefixes`). A path that ends in the tree outputs matches. A path with further stages, because it
scans a window, checks a condition or has to compare values, continues alone from its partial matches there. Only counters persist
between two traversals.

A path runs without a tree

- if it has no prefix to share: its join reads count windows or materialized joins, or the path does not begin with its new tuples,
  without conditions, and a probe by hash;
- if the paths of its stream belong to one join, or share too few stages for a tree to pay off (`plan.prefixes.MIN_SAVED_STAGES`);
- if the new tuples of several streams are interleaved (`JoinGroup._join_interleaved`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from dovetail._typing import Float64Array, Int64Array
from dovetail.engine.join import path as probe
from dovetail.engine.join.step import JoinRun, NewRowRanges
from dovetail.engine.join.tree_layout import TreeLayout, TreePath
from dovetail.engine.join.verify import MatchTable
from dovetail.engine.kernels.tree_arrays import (
    BASE,
    BOTTOM,
    CODE,
    FLAGS,
    HEADS,
    LINKS,
    LOGGED,
    PACKED,
    PREFIX_MAX,
    ROW,
    SHIFT,
    SLOTS,
    STAGES,
    TOP,
    TS,
    Attribution,
    Counters,
    Targets,
    Traversal,
)
from dovetail.engine.kernels.trees import attribute_work, distribute_matches, traverse
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.prefixes import group_prefixes

_CHUNK = 2048
"""Partial matches that a node processes at a time."""
_FIRST_LOG = 1024


class _TreeTotals(NamedTuple):
    """Totals of a tree so far."""

    traversals: int
    stages: Int64Array
    """Per slot, for each of its paths: probes, rows read, partial matches produced, and the window's size summed over the probes."""
    seconds: Float64Array


class ProbeTree:
    """The probe tree of one stream."""

    def __init__(
        self, stream: str, windows: Mapping[str, WindowStore], paths: Sequence[TreePath], stage_rows: int
    ) -> None:
        """Build the tree of `paths` over `windows`, by stream."""
        layout = TreeLayout(stream, paths)
        self.stream, self.paths = stream, layout.paths
        self._tree = layout.arrays()
        self._path_numbers = [path.number for path in paths]
        self._layout_keys = [path.layout_key for path in paths]
        self._widths = np.array([len(path.alias_stages) for path in self.paths], np.int64)
        self._slots = np.concatenate([path.slots for path in self.paths])
        """Slots of all paths, concatenated."""
        lengths = np.array([len(path.slots) for path in self.paths])
        self._firsts = np.cumsum(lengths) - lengths
        self._table, self._join_indices = MatchTable(0), np.zeros(0, np.int64)
        """`_join_indices`: index of each path's join in `_table`, or -1 if the path continues after the tree."""
        self._joins: Sequence[JoinRun] = ()
        self._probed = [(windows[probed], key) for probed, key in layout.targets]
        self._code_arrays = [(windows[source], name) for source, name in layout.codes]
        words = max(store.flag_words for store, _ in self._probed)
        self._targets = Targets(
            np.zeros((len(self._probed), FLAGS + words), np.int64), np.zeros((len(self._code_arrays), 2), np.int64)
        )
        self._streams = list(dict.fromkeys(stream for stream, _ in (*layout.targets, *layout.codes)))
        self._stores = [windows[stream] for stream in self._streams]
        self._versions: list[int] = []
        self._referenced: list[object] = []
        """Keeps the arrays alive whose addresses are in `_targets`."""
        nodes = len(self._tree.nodes)
        self._counters = Counters(*(np.zeros(count, np.int64) for count in (len(layout.slots), nodes, nodes)))
        self._attribution = _new_attribution(layout.slots, nodes)
        self._max_log_rows = max(stage_rows, layout.most_exits)
        depths = layout.depths
        log = max(min(_FIRST_LOG, self._max_log_rows), layout.most_exits)
        chunk = min(_CHUNK, stage_rows)
        counts, nodes_at, selected_counts, next_selected, cursors = np.zeros((5, depths + 1), np.int64)
        self._traversal = traversal = Traversal(
            stages=np.empty((depths, chunk, layout.width), np.int64),
            counts=counts,
            nodes=nodes_at,
            selected_counts=selected_counts,
            next_selected=next_selected,
            cursors=cursors,
            selected=np.empty((depths, chunk), np.int64),
            codes=np.empty((depths, chunk), np.uint64),
            chain_rows=np.empty((depths, chunk), np.int64),
            state=np.zeros(PACKED + 1, np.int64),
            log=np.empty((log, int(self._widths.max()) + 2), np.int64),
            log_paths=np.empty(log, np.int64),
        )
        self._start = np.zeros(PACKED + 1, np.int64)
        """Initial state of a traversal."""
        arrays = (traversal.stages, traversal.codes, traversal.chain_rows, traversal.selected, self._tree.packed)
        self._start[STAGES:] = [array.ctypes.data for array in arrays]
        self._traversals = self._new_tuples = self._window_sizes = 0
        self._totals: _TreeTotals | None = None
        self._produced: list[tuple[int, int]] | None = None

    def can_serve(self, windows: Mapping[str, WindowStore], paths: Sequence[TreePath]) -> bool:
        """Whether a new tree for `paths` over `windows` would have the same layout."""
        same = [path.layout_key for path in paths] == self._layout_keys
        stores, words = [windows.get(stream) for stream in self._streams], self._targets.windows.shape[1] - FLAGS
        return same and stores == self._stores and all(store.flag_words <= words for store in self._stores)

    def serve(self, paths: Sequence[TreePath], table: MatchTable, joins: Sequence[JoinRun]) -> None:
        """Run `paths` from now on; the matches of `joins` are in `table`, in the same order."""
        self._table, self._joins = table, joins
        indices = {run.name: index for index, run in enumerate(joins)}
        for path_index, path in zip(self._path_numbers, paths, strict=True):
            path.slots, path.cost_fraction = self.paths[path_index].slots, self.paths[path_index].cost_fraction
            self.paths[path_index] = path
            path.driver.runner.set_tree_counts(_PathCounts(self, path_index, path))
        self._join_indices = np.array(
            [indices[path.run.name] if path.ends_in_tree else -1 for path in self.paths], np.int64
        )

    def run(self, new_rows: NewRowRanges) -> None:
        """Run a stream's new tuples through the tree, and append to the joins' matches."""
        began = perf_counter()
        first, stop = new_rows[self.stream]
        self._refresh()
        self._traversal.state[:] = self._start
        self._traversal.state[ROW] = first
        excluded = 0.0
        while not traverse(self._tree, self._targets, self._counters, self._traversal, first, stop):
            excluded += self._empty_log(new_rows)
            self._lengthen_log()
        excluded += self._empty_log(new_rows)
        self._traversals += 1
        self._new_tuples += stop - first
        self._window_sizes += len(self._probed[0][0].rows)
        self._totals = self._produced = None
        seconds = perf_counter() - began - excluded
        attribute_work(self._tree, self._targets, self._counters, self._attribution, seconds)

    def close(self) -> None:
        """Detach the paths: their runners count alone from now on."""
        for path in self.paths:
            path.driver.runner.set_tree_counts(None)

    @property
    def totals(self) -> _TreeTotals:
        """Totals so far."""
        if self._totals is None:
            produced, attribution = self._counters.produced, self._attribution
            rows_read = np.rint(attribution.rows_read).astype(np.int64)
            stages = np.stack([produced[attribution.parents], rows_read, produced, attribution.pairs])
            roots = int(self._tree.nodes[0, SLOTS + 1])
            stages[0, :roots], stages[1, :roots] = self._traversals, self._new_tuples
            stages[3, :roots] = self._window_sizes
            self._totals = _TreeTotals(self._traversals, stages.T.copy(), attribution.seconds.copy())
        return self._totals

    @property
    def produced(self) -> list[tuple[int, int]]:
        """By path number: its new tuples, and all partial and final matches including these."""
        if self._produced is None:
            produced = self._counters.produced[self._slots]
            new, total = produced[self._firsts], np.add.reduceat(produced, self._firsts)
            self._produced = list(zip(new.tolist(), total.tolist(), strict=True))
        return self._produced

    def _refresh(self) -> None:
        """Update the addresses after a window has moved or grown, and the live rows of each window."""
        windows = self._targets.windows
        versions = [store.rows.version for store in self._stores]
        if versions != self._versions:
            self._referenced = []
            for target, (store, key) in enumerate(self._probed):
                rows = store.rows
                chain = store.chain(store.indexes[key]) if key else None
                addresses = {TS: rows["ts"], PREFIX_MAX: rows["prefix_max"]}
                if chain is not None:
                    addresses |= {CODE: rows[store.codes[key]], HEADS: chain.heads, LINKS: chain.links}
                    windows[target, SHIFT] = chain.shift
                addresses |= {FLAGS + word: rows[store.flag_name(word)] for word in range(store.flag_words)}
                windows[target, BASE] = rows.base
                windows[target, list(addresses)] = [self._address(array) for array in addresses.values()]
            for target, (store, name) in enumerate(self._code_arrays):
                self._targets.codes[target] = self._address(store.rows[store.codes[(name,)]]), store.rows.base
            self._versions = versions
        windows[:, TOP] = [store.rows.head for store, _ in self._probed]
        windows[:, BOTTOM] = [store.rows.tail for store, _ in self._probed]

    def _address(self, array: Int64Array) -> int:
        self._referenced.append(array)
        return int(array.ctypes.data)

    def _empty_log(self, new_rows: NewRowRanges) -> float:
        """Pass logged matches on; return the seconds spent emitting results and running later stages."""
        log, paths, count = self._traversal.log, self._traversal.log_paths, int(self._traversal.state[LOGGED])
        if not count:
            return 0.0
        self._traversal.state[LOGGED] = 0
        table, path_counts = self._table, np.bincount(paths[:count], minlength=len(self.paths))
        added = np.bincount(self._join_indices + 1, path_counts, len(table.counts) + 1)[1:]
        for join in np.flatnonzero(table.counts + added > table.capacities).tolist():
            self._joins[join].matches.reserve(int(added[join]))
        distribute_matches(
            log, paths, count, self._join_indices, self._widths, table.counts, table.capacities, table.addresses
        )
        began = perf_counter()
        for join in np.flatnonzero(table.counts >= probe.EMIT_ROWS).tolist():
            if self._joins[join].matches.emit is not None:
                self._joins[join].matches.flush()
        continuing = np.flatnonzero((path_counts > 0) & (self._join_indices < 0))
        order = np.argsort(paths[:count], kind="stable") if len(continuing) else continuing
        ends = np.cumsum(path_counts)
        for path_index in continuing.tolist():
            path, width = self.paths[path_index], self._widths[path_index]
            partial = log[order[ends[path_index] - path_counts[path_index] : ends[path_index]], : width + 2]
            bounds, depth = path.driver.bounds(new_rows), len(path.prefix) + 1
            path.driver.runner.run_from(depth, partial, bounds, path.run.matches)
        return perf_counter() - began

    def _lengthen_log(self) -> None:
        rows, width = self._traversal.log.shape
        if rows < self._max_log_rows:
            rows = min(4 * rows, self._max_log_rows)
            self._traversal = self._traversal._replace(
                log=np.empty((rows, width), np.int64), log_paths=np.empty(rows, np.int64)
            )


class _PathCounts:
    """The `TreeCounts` of one path.

    Probes and partial matches are the path's own. Rows read and time are its part of a stage's, in proportion to its probes; the
    times of all paths add up to the time of the tree.
    """

    def __init__(self, tree: ProbeTree, path_index: int, path: TreePath) -> None:
        self._tree, self._path_index, self._slots = tree, path_index, np.array(path.slots)
        self.cost_fraction = path.cost_fraction
        self._flushed, self._flushed_produced = tree.totals, tree.produced[path_index]
        """Totals at the last flush."""
        self._baseline: _TreeTotals | None = None

    @property
    def produced(self) -> tuple[int, int]:
        new, total = self._tree.produced[self._path_index]
        return new - self._flushed_produced[0], total - self._flushed_produced[1]

    def set_baseline(self) -> None:
        self._baseline = self._tree.totals

    def flush(self, counts: Int64Array, seconds: list[float], baseline: Int64Array) -> None:
        totals, flushed = self._tree.totals, self._flushed
        if self._baseline is not None:
            baseline[: len(self._slots)] += self._baseline.stages[self._slots] - flushed.stages[self._slots]
            self._baseline = None
        if totals.traversals != flushed.traversals:
            counts[: len(self._slots)] += totals.stages[self._slots] - flushed.stages[self._slots]
            new_seconds = totals.seconds[self._slots] - flushed.seconds[self._slots]
            for depth, added in enumerate(new_seconds.tolist()):
                seconds[depth] += added
            self._flushed, self._flushed_produced = totals, self._tree.produced[self._path_index]


def _new_attribution(slots: Sequence[tuple[int, int, int]], nodes: int) -> Attribution:
    parents, node_of_slot, paths = np.array(slots, np.int64).T.copy()
    produced, pairs = np.zeros((2, len(slots)), np.int64)
    rows, seconds = np.zeros((2, len(slots)))
    probes, node_rows = np.zeros((2, nodes), np.int64)
    return Attribution(parents, node_of_slot, paths, produced, pairs, rows, seconds, probes, node_rows, np.zeros(nodes))


class ProbeTrees:
    """The probe trees of a group of windows, one for each stream whose paths share enough stages."""

    def __init__(
        self,
        runs: Mapping[str, JoinRun],
        windows: Mapping[str, WindowStore],
        stage_rows: int,
        before: ProbeTrees | None = None,
    ) -> None:
        """Build the trees of all `runs`, by name; equal trees of `before` are reused."""
        self._joins, self._table = list(runs.values()), MatchTable(len(runs))
        self._names = [run.name for run in self._joins]
        for index, run in enumerate(self._joins):
            run.matches.attach(self._table, index)
        drivers = {(run.name, driver.alias): (run, driver) for run in self._joins for driver in run.drivers}
        self._trees: dict[str, ProbeTree] = {}
        prefixes = ((driver.feed, name, driver.prefix) for name, (_, driver) in drivers.items())
        for stream, paths in group_prefixes(prefixes).items():
            members = [TreePath(*drivers[name]) for name in paths]
            tree = before.of(stream) if before is not None else None
            if tree is None or not tree.can_serve(windows, members):
                tree = ProbeTree(stream, windows, members, stage_rows)
            tree.serve(members, self._table, self._joins)
            self._trees[stream] = tree
        self.separate_runs = {
            stream: [run for run in self._joins if _runs_separately(run, stream)] for stream in windows
        }
        """By stream: joins with paths outside the trees, and joins that read or write a materialized join."""

    def of(self, stream: str) -> ProbeTree | None:
        return self._trees.get(stream)

    def run(self, stream: str, new_rows: NewRowRanges) -> dict[str, int]:
        """Run a stream's new tuples through its tree, if it has one; return the number of new matches by join."""
        if stream not in self._trees:
            return {}
        before = self._table.counts + self._table.emitted
        self._trees[stream].run(new_rows)
        added = self._table.counts + self._table.emitted - before
        indices = np.flatnonzero(added)
        counts = zip(indices.tolist(), added[indices].tolist(), strict=True)
        return {self._names[index]: count for index, count in counts}

    def close(self) -> None:
        """Detach all paths."""
        for tree in self._trees.values():
            tree.close()


def _runs_separately(run: JoinRun, stream: str) -> bool:
    """Whether tuples of a stream must be joined outside the trees too."""
    if stream not in {source.stream for source in run.step.sources}:
        return False
    alone = [driver for driver in run.drivers if not driver.runner.runs_in_tree]
    return (
        run.materialized is not None
        or bool(run.step.materialized_inputs)
        or any(driver.feed == stream for driver in alone)
    )
