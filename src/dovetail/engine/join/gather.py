"""Turn matches into results: gather values of windows into the columns of Arrow tables.

One compiled call gathers all columns that the queries of a join need, and a second one their texts, into one block of memory each.
Besides copying its values, a column costs little more than creating its Arrow object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, Int64Array
from dovetail.engine.evaluate import evaluate
from dovetail.engine.join.verify import Matches, Member
from dovetail.engine.kernels.gather import (
    ALIGNED,
    BASE,
    CAPACITY,
    COLUMNS,
    HEAP,
    HEAP_BASE,
    HEAP_SIZE,
    LENGTHS,
    SOURCE,
    VALUES,
    WIDTH,
    gather_columns,
    gather_texts,
)
from dovetail.engine.kernels.times import FOREVER
from dovetail.engine.keys import coordinates
from dovetail.engine.storage.buffers import address_of
from dovetail.engine.storage.columns import BytesColumn, StoredColumn
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.needs import column_name
from dovetail.plan.steps import Consumer
from dovetail.query.expressions import Column, columns

SourceColumn: TypeAlias = tuple[str, StoredColumn]
"""A source, and one of its columns."""
_EMPTY = pa.py_buffer(b"")


class SourceRows:
    """Looks up the tuples that one source contributes to matches."""

    def __init__(self, source: str, store: WindowStore, member: Member) -> None:
        self.store = store
        self._column = member.column
        self._materialized = member.store if isinstance(member.store, MaterializedJoin) else None
        """The input that links to the source's tuples, if the source is not an input itself."""
        self._link = MaterializedJoin.link(source)

    def of(self, matches: Matches, begin: int = 0) -> Int64Array:
        """Return the tuples' row numbers in the source's window, from match `begin` on."""
        row_numbers = matches.of(self._column, begin)
        if self._materialized is None:
            return row_numbers
        linked: Int64Array = self._materialized.rows[self._link][row_numbers - self._materialized.rows.base]
        return linked


class MatchRows:
    """Matches as row numbers in the window of each source; they can be filtered."""

    def __init__(self, source_rows: Mapping[str, SourceRows], matches: Matches) -> None:
        self.count = len(matches)
        self._source_rows, self._matches = source_rows, matches
        self._row_numbers: dict[str, Int64Array] = {}
        self._selected: Int64Array | None = None

    def of(self, source: str) -> Int64Array:
        """Return the row numbers of a source, looked up once."""
        if source not in self._row_numbers:
            row_numbers = self._source_rows[source].of(self._matches)
            self._row_numbers[source] = row_numbers if self._selected is None else row_numbers[self._selected]
        return self._row_numbers[source]

    def array(self, source: str, name: str) -> Array:
        """Return the entries of an array of a source's window, one per match."""
        rows = self._source_rows[source].store.rows
        return rows[name][self.of(source) - rows.base]

    def _ends(self, source: str) -> Int64Array:
        """Return the last instant of each match's tuple of a source: when it was shed, or `FOREVER`."""
        store = self._source_rows[source].store
        assert store.row_ends is not None  # noqa: S101 - called for such windows only
        shed, ends = store.row_ends
        rows = self.of(source)
        at = np.minimum(np.searchsorted(shed, rows), len(shed) - 1)
        return np.where(shed[at] == rows, ends[at], FOREVER)

    def copy(self) -> MatchRows:
        """Return the same matches, to be filtered further."""
        rows = MatchRows(self._source_rows, self._matches)
        rows.count, rows._row_numbers, rows._selected = self.count, dict(self._row_numbers), self._selected
        return rows

    def latest(self) -> Int64Array:
        """Return the latest event time of each match."""
        times: Int64Array = np.maximum.reduce([self.array(source, "ts") for source in self._source_rows])
        return times

    def drop_shed(self) -> None:
        """Drop the matches with a tuple that was shed before their latest tuple."""
        shedding = [source for source, rows in self._source_rows.items() if rows.store.row_ends is not None]
        latest = self.latest() if shedding else None
        for source in shedding:
            assert latest is not None  # noqa: S101 - computed above
            inside = self._ends(source) >= latest
            latest = latest[inside]
            self.filter(inside)

    def filter(self, mask: BoolArray) -> None:
        """Keep the matches that `mask` selects."""
        if not mask.all():
            selected = np.flatnonzero(mask)
            self._selected = selected if self._selected is None else self._selected[selected]
            self._row_numbers = {source: numbers[selected] for source, numbers in self._row_numbers.items()}
            self.count = len(selected)


@dataclass(frozen=True, slots=True)
class GatheredColumns:
    """Column values of some matches."""

    count: int
    columns: list[pa.Array]
    positions: Mapping[SourceColumn, int]
    """Index of each source's column in `columns`."""

    @property
    def halves(self) -> tuple[GatheredColumns, GatheredColumns]:
        """The first and the second half of the matches."""
        middle = self.count // 2
        return (
            GatheredColumns(middle, [values.slice(0, middle) for values in self.columns], self.positions),
            GatheredColumns(self.count - middle, [values.slice(middle) for values in self.columns], self.positions),
        )


class Gatherer:
    """Gathers a fixed set of columns for any matches."""

    def __init__(self, source_columns: Iterable[SourceColumn]) -> None:
        ordered = sorted(dict.fromkeys(source_columns), key=lambda source_column: not source_column[1].width)
        self._positions = {source_column: position for position, source_column in enumerate(ordered)}
        self._plain = [(source, column) for source, column in ordered if column.width]
        self._texts = [
            (position, column) for position, (_, column) in enumerate(self._plain) if isinstance(column, BytesColumn)
        ]
        self._nested = ordered[len(self._plain) :]
        self._sources = list(dict.fromkeys(source for source, _ in self._plain))
        self._windows = list({id(column.rows): column.rows for _, column in self._plain}.values())
        self._versions: list[int] = []
        self._table = np.zeros((len(self._plain), COLUMNS), np.int64)
        self._width = sum(column.width for _, column in self._plain)
        self._addresses = np.zeros(len(self._sources), np.int64)
        self._extents = np.zeros((len(self._plain), 4), np.int64)

    def gather(self, rows: MatchRows, first: int, stop: int) -> list[GatheredColumns]:
        """Return the values of matches `first` to `stop`, split if a column is too large for one Arrow array."""
        try:
            columns = self._plain_columns(rows, first, stop - first) if self._plain else []
            columns += [column.take(rows.of(source)[first:stop] - column.rows.base) for source, column in self._nested]
        except OverflowError:
            middle = (first + stop) // 2
            return [*self.gather(rows, first, middle), *self.gather(rows, middle, stop)]
        return [GatheredColumns(stop - first, columns, self._positions)]

    def _plain_columns(self, rows: MatchRows, first: int, count: int) -> list[pa.Array]:
        self._refresh()
        self._addresses[:] = [address_of(rows.of(source)) + 8 * first for source in self._sources]
        block = pa.allocate_buffer((count + 1) * self._width + len(self._plain) * ALIGNED)
        text_bytes = gather_columns(self._table, self._addresses, count, block.address, self._extents)
        extents, texts = self._extents.tolist(), _EMPTY
        if text_bytes:
            for position, text in self._texts:
                text.check_length(extents[position][-1])
            texts = pa.allocate_buffer(text_bytes)
            gather_texts(self._table, self._addresses, count, texts.address, self._extents)
        columns = []
        for (source, column), (at, size, text_at, length) in zip(self._plain, extents, strict=True):
            buffers = [None, block.slice(at, size)]
            if column.is_text:
                buffers.append(texts.slice(text_at, length))
            if column.needs_finish:
                indices = rows.of(source)[first : first + count] - column.rows.base
                buffers = column.finish_buffers(buffers, indices)
            columns.append(pa.Array.from_buffers(column.type, count, buffers))
        return columns

    def _refresh(self) -> None:
        """Update the addresses after a window has moved or grown."""
        versions = [rows.version for rows in self._windows]
        if versions != self._versions:
            for position, (source, column) in enumerate(self._plain):
                rows, index = column.rows, self._sources.index(source)
                columns = {WIDTH: column.width, SOURCE: index, BASE: rows.base, CAPACITY: rows.capacity}
                values = column.addresses
                columns |= {VALUES: values.values, LENGTHS: values.lengths}
                columns |= {HEAP: values.heap, HEAP_BASE: values.heap_start, HEAP_SIZE: values.heap_size}
                self._table[position, list(columns)] = list(columns.values())
            self._versions = versions


class Collector:
    """Builds a query's result tables from a join's matches."""

    def __init__(self, consumer: Consumer, windows: Mapping[str, int], source_rows: Mapping[str, SourceRows]) -> None:
        """Build results for `consumer` of a step whose time windows are `windows`, in microseconds by source."""
        self.empty_table = consumer.schema.empty_table()
        self.results = 0
        self.seconds = 0.0
        self._source_rows = source_rows
        self._cell = [(key.alias, column_name(key.expression), splits, cell) for key, splits, cell in consumer.cell]
        self._narrower = {source: micros for source, micros in consumer.spans.items() if micros < windows[source]}
        """The query's windows that are smaller than the step's."""
        self.takes_all = not (self._narrower or self._cell)
        """Whether all matches of the join are results of the query, unless tuples are shed."""
        self._outputs, self._same = [output.expression for output in consumer.outputs], consumer.same
        distinct = (output for index, output in enumerate(self._outputs) if self._same[index] == index)
        self.source_columns = {
            column: self._source_column(column) for expression in distinct for column in columns(expression)
        }
        """The source's column that each referenced column reads."""
        self._gatherer: Gatherer | None = None
        self._bound_to: Mapping[SourceColumn, int] = {}
        self._positions: dict[Column, int] = {}
        """Position of each referenced column in the `GatheredColumns` that the collector is bound to."""
        self._output_positions: list[int] | None = None
        """Position of each output there, if all outputs are plain columns."""

    def copy_counters(self, before: Collector) -> None:
        """Continue the counters of the query's previous collector."""
        self.results, self.seconds = before.results, before.seconds

    def _source_column(self, column: Column) -> SourceColumn:
        return column.alias, self._source_rows[column.alias].store.columns[f".{column.name}"]

    def collect(self, rows: MatchRows, common: Sequence[GatheredColumns] | None) -> list[pa.Table]:
        """Return the query's results among the matches: those in its own windows and its own cell.

        `common` are the values of all matches, if all are results; the join's queries share them.
        """
        began = perf_counter()
        if common is None:
            rows = rows.copy()
            self._filter(rows)
            if self._gatherer is None:
                self._gatherer = Gatherer(self.source_columns.values())
            common = self._gatherer.gather(rows, 0, rows.count)
        tables = []
        for gathered in common:
            self.results += gathered.count
            tables += self._tables(gathered)
        self.seconds += perf_counter() - began
        return tables

    def _filter(self, rows: MatchRows) -> None:
        """Keep the matches that are in the query's own windows and in its cell."""
        if self._narrower:
            latest = rows.latest()
            for source, micros in self._narrower.items():
                inside = rows.array(source, "ts") + micros >= latest
                latest = latest[inside]
                rows.filter(inside)
        for source, name, splits, cell in self._cell:
            codes = rows.array(source, self._source_rows[source].store.codes[(name,)])
            rows.filter(coordinates(codes, splits) == cell)

    def _bind(self, positions: Mapping[SourceColumn, int]) -> None:
        """Look up the positions of the query's columns among gathered ones."""
        self._positions = {column: positions[source_column] for column, source_column in self.source_columns.items()}
        outputs = [self._outputs[same] for same in self._same]
        plain = [self._positions[output] for output in outputs if isinstance(output, Column)]
        self._output_positions = plain if len(plain) == len(outputs) else None
        self._bound_to = positions  # last: after an interrupt the next call binds again

    def _tables(self, gathered: GatheredColumns) -> list[pa.Table]:
        """Return one table, or several if one Arrow array cannot hold all strings."""
        if gathered.positions is not self._bound_to:
            self._bind(gathered.positions)
        values = gathered.columns
        if self._output_positions is not None:
            arrays = [values[position] for position in self._output_positions]
            return [pa.Table.from_arrays(arrays, schema=self.empty_table.schema)]
        arrays = []
        try:
            for index, expression in enumerate(self._outputs):
                same = self._same[index]
                arrays.append(
                    arrays[same]
                    if same < index
                    else evaluate(expression, lambda column: values[self._positions[column]], gathered.count)
                )
        except OverflowError:
            return [table for half in gathered.halves for table in self._tables(half)]
        return [pa.Table.from_arrays(arrays, schema=self.empty_table.schema)]

    def concat(self, tables: list[pa.Table]) -> pa.Table:
        """Concatenate partial results into one table."""
        if len(tables) == 1:
            return tables[0]
        return pa.concat_tables(tables) if tables else self.empty_table
