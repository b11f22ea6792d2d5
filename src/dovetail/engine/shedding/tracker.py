"""A tuple table that grows, is copied and is serialized, and the kernels that advance it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, Int64Array, UInt64Array
from dovetail.engine.kernels.batches import smallest_hashes
from dovetail.engine.kernels.shed_expiry import expire
from dovetail.engine.kernels.shedding import (
    add_tuples,
    enqueue_all,
    list_rows,
    renumber,
    rows_in_order,
)
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    FREE_QUEUE,
    IN_DEAD_LIST,
    NONE,
    OUTPUT,
    USED_QUEUES,
    ExpiryDeadline,
    KeySample,
    ShedTuples,
    TupleBatch,
    TupleTable,
    WindowReaders,
)
from dovetail.engine.shedding.layout import take
from dovetail.engine.shedding.table_arrays import (
    MAX_CAPACITY,
    TableParts,
    arrays_of,
    check_table,
    empty_table,
    record_of,
    used_entries,
    with_capacity,
)
from dovetail.errors import StateError

EVERYTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
ALL = KeySample(EVERYTHING, False)
_NOTHING = ShedTuples(*np.empty((3, 0), np.int64))
_FIRST_CAPACITY = 64


class CompressedArrays:
    """A compressed copy of arrays, for rollback: the lowest byte of each number, then the next, because those are more alike."""

    def __init__(self, arrays: Iterable[tuple[str, Array]]) -> None:
        self._arrays = {
            name: (array.dtype, array.shape, pa.compress(_transposed(array, array.itemsize), "zstd", asbytes=True))
            for name, array in arrays
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return sum(len(packed) for _, _, packed in self._arrays.values())

    def decompress(self) -> dict[str, Array]:
        """Return the arrays."""
        arrays = {}
        for name, (dtype, shape, packed) in self._arrays.items():
            count = int(np.prod(shape))
            content = np.frombuffer(pa.decompress(packed, count * dtype.itemsize, "zstd"), np.uint8)
            arrays[name] = _transposed(content, count).view(dtype).reshape(shape)
        return arrays


def _transposed(array: Array, width: int) -> Array:
    """Return the bytes of an array, in rows of `width`, as columns."""
    return np.ascontiguousarray(array.reshape(-1).view(np.uint8).reshape(-1, max(1, width)).T).reshape(-1)


class Tracker:
    """Tracks the tuples that windows hold under one policy."""

    def __init__(
        self,
        readers: WindowReaders,
        policy: int,
        seed: int,
        *,
        patterns: bool = False,
        has_weights: bool = False,
        may_change: bool = False,
    ) -> None:
        """Start with empty windows.

        `patterns`: record existence patterns even if the policy does not rank by them. `has_weights`: tuples may take more than one
        unit of the cap. `may_change`: the policy may change.
        """
        self.policy, self._seed = policy, np.uint64(seed)
        patterns = patterns or policy == ARRIVAL_ORDER
        parts = TableParts(results_by_key=may_change or policy == OUTPUT, patterns=patterns, weights=has_weights)
        self._parts = parts.of_policy(policy)
        self.table = empty_table(readers, policy, _FIRST_CAPACITY, self._parts)
        self._deadline = ExpiryDeadline(*np.empty((3, len(readers.pool)), np.int64))
        self._in_order: bool | None = None
        """Whether older tuples of a window have smaller row numbers; None if it has to be checked."""

    @property
    def capacity(self) -> int:
        """Tuples for which there is memory."""
        return len(self.table.tuples)

    @property
    def nbytes(self) -> int:
        """Bytes of the table, without records that are not used yet."""
        used = used_entries(self.table)
        return sum(array[: used.get(record_of(name))].nbytes for name, array in arrays_of(self.table))

    @property
    def used_units(self) -> int:
        """Units of the cap that the held tuples take: at least one each."""
        return int(self.table.used_units.sum())

    def add_tuples(
        self,
        incoming: TupleBatch,
        advancing: Int64Array,
        sample: KeySample = ALL,
        min_hashes: UInt64Array | None = None,
    ) -> ShedTuples:
        """Add new tuples; return those that are shed. `min_hashes`: the result of `min_hashes`, if it is known already."""
        self._grow_for(len(incoming.ts))
        # A tuple may replace several lighter ones; without weights it replaces one.
        most = len(incoming.ts) + (self.used_units if self._parts.weights else 0)
        shed = ShedTuples(*np.empty((3, most), np.int64))
        if min_hashes is None:
            min_hashes = self.min_hashes(incoming) if sample.skips_others else np.empty(0, np.uint64)
        done = count = 0
        while True:
            rest, room = take(incoming, slice(done, None)), ShedTuples(*(values[count:] for values in shed))
            arrived, shed_count = add_tuples(
                self.table, rest, min_hashes[done:], advancing, self.policy, sample, self._seed, self._deadline, room
            )
            done, count = done + arrived, count + shed_count
            if done == len(incoming.ts):
                return ShedTuples(*(values[:count] for values in shed))
            self._resize_history()

    def min_hashes(self, incoming: TupleBatch) -> UInt64Array:
        """Return the smallest hash of each tuple's codes, by which tuples are sampled."""
        min_hashes = np.empty(len(incoming.ts), np.uint64)
        smallest_hashes(incoming.codes, incoming.seen, self._seed, min_hashes)
        return min_hashes

    def add_until_full(self, incoming: TupleBatch, advancing: Int64Array) -> int:
        """Add tuples until the first that would exceed the cap; return how many were added."""
        self._grow_for(len(incoming.ts))
        min_hashes = np.empty(0, np.uint64)
        arrived, _ = add_tuples(
            self.table, incoming, min_hashes, advancing, self.policy, ALL, self._seed, self._deadline, _NOTHING
        )
        return int(arrived)

    def expire(self) -> None:
        """Remove the tuples that no later tuple can need."""
        expire(self.table, self.policy)

    def rows(self, window: int) -> Int64Array:
        """Return the row numbers of a window's tuples."""
        rows = np.empty(self.capacity, np.int64)
        return rows[: list_rows(self.table, window, rows)].copy()

    def first_row(self, window: int) -> int:
        """Return a lower bound of a window's row numbers: that of the oldest tuple if rows are in order, else 0."""
        if self._in_order is None:
            self._in_order = rows_in_order(self.table)
        index = int(self.table.oldest[window])
        return int(self.table.tuples[index].row) if self._in_order and index >= 0 else 0

    def renumber(self, window: int, rows: range, alive: BoolArray) -> None:
        """Drop rows of a window that are not alive and renumber the rest, starting at `rows.stop`."""
        numbers = rows.stop - 1 + np.cumsum(alive)
        self._in_order = self._in_order or None  # renumbering keeps the order
        renumber(self.table, window, rows.start, alive, numbers, self.policy)

    def change_policy(self, policy: int, statistics: TupleTable | None = None) -> None:
        """Rank tuples by another policy, with pattern counts from another table if given."""
        self.policy = policy
        if statistics is not None:
            self.table.pattern_results[:], self.table.pattern_tuples[:] = (
                statistics.pattern_results,
                np.maximum(statistics.pattern_tuples, 1),
            )
        self.table.counters[FREE_QUEUE], self.table.counters[USED_QUEUES] = NONE, 0
        self._parts = self._parts.of_policy(policy)
        self.table = with_capacity(self.table, policy, self.capacity, self._parts, same_ranking=False)
        used = used_entries(self.table)
        queue = self.table.links.queue[: used["tuples"]]
        queue[queue != IN_DEAD_LIST] = NONE
        self.table.first_queues[: used["keys"]], self.table.first_tuples[: used["keys"]] = NONE, NONE
        enqueue_all(self.table, policy)

    # -- arrays -----------------------------------------------------------------------------------------------------------------

    def _grow_for(self, count: int) -> None:
        """Grow for this many new tuples, as far as the caps allow."""
        caps = self.table.readers.cap
        self.reserve(min(self.used_units + count, int(np.minimum(caps, MAX_CAPACITY).sum())))

    def reserve(self, needed: int) -> None:
        """Grow until there is memory for `needed` tuples and one more."""
        if needed >= self.capacity:
            most = int(np.minimum(self.table.readers.cap, MAX_CAPACITY).sum())
            capacity = max(needed + 1, min(2 * self.capacity, most + 1))
            self.table = with_capacity(self.table, self.policy, capacity, self._parts)

    def _resize_history(self) -> None:
        """Let the key history follow all keys, or a sample of them; chains of tuples begin or end with that."""
        self._parts = self._parts._replace(all_keys=not self._parts.all_keys)
        self.table = with_capacity(self.table, self.policy, self.capacity, self._parts)

    def copy(self) -> CompressedArrays:
        """Return a compressed copy of the table."""
        return CompressedArrays(self._used_arrays())

    def rollback(self, copy: CompressedArrays) -> None:
        """Continue from a copy, which does not change."""
        arrays = copy.decompress()
        self.table, self._in_order = self._table_of(arrays), None

    def to_arrays(self) -> dict[str, Array]:
        """Return all arrays by name; records up to their high-water marks."""
        return dict(self._used_arrays())

    def _used_arrays(self) -> Iterator[tuple[str, Array]]:
        used = used_entries(self.table)
        yield "capacity", np.array([self.capacity, self._parts.all_keys], np.int64)
        for name, array in arrays_of(self.table):
            yield name, np.ascontiguousarray(array[: used.get(record_of(name))])

    def restore(self, stored: Mapping[str, Array]) -> None:
        """Continue from the result of `to_arrays`."""
        table = self._table_of(stored)
        for name, field, count in _used_fields(table):
            if len(stored[f"{name}.{field}"]) != count:
                raise StateError(f"the shedding state is corrupt: {name!r} is truncated")
        check_table(table, self.policy)
        self.table, self._in_order = table, None

    def _table_of(self, stored: Mapping[str, Array]) -> TupleTable:
        """Return a table with the result of `to_arrays`."""
        capacity, all_keys = np.resize(stored.get("capacity", np.zeros(1, np.int64)), 2)
        if not 1 < capacity <= MAX_CAPACITY:
            raise StateError(f"the shedding state is corrupt: its capacity is {capacity}; expected 2 to {MAX_CAPACITY}")
        self._parts = self._parts.of_policy(self.policy)._replace(all_keys=bool(all_keys))
        table = empty_table(self.table.readers, self.policy, int(capacity), self._parts)
        for name, array in arrays_of(table):
            values, is_record = stored.get(name), record_of(name) in used_entries(table)
            if values is None:
                raise StateError(f"the shedding state is corrupt: {name!r} is missing")
            fits = len(values) <= len(array) if is_record else len(values) == len(array)
            if values.dtype != array.dtype or values.shape[1:] != array.shape[1:] or not fits:
                raise StateError(
                    f"the shedding state is corrupt: {name!r} has {values.dtype} of shape {values.shape}, "
                    f"expected {array.dtype} of shape {array.shape}"
                )
            array[: len(values)] = values
        return table


def _used_fields(table: TupleTable) -> list[tuple[str, str, int]]:
    """Return a field of each kind of records, and its number of used entries."""
    used = used_entries(table)
    return [
        (name, field, used[name]) for name, field in (("tuples", "ts"), ("keys", "code"), ("ranking.queues", "first"))
    ]
