"""From matches to results: rows of windows become the columns of Arrow tables.

All columns that the queries of a join want are gathered together, in one compiled call and a second for texts, into one block of
memory each: what a column costs beside its values is little more than the Arrow object that is made of it.
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
from dovetail.engine.kernels.gather import ALIGNED, COLUMNS, gather_columns, gather_texts
from dovetail.engine.keys import coordinates
from dovetail.engine.storage.buffers import address_of
from dovetail.engine.storage.columns import StoredColumn
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.needs import stored_name
from dovetail.plan.steps import Consumer
from dovetail.query.expressions import Column, columns

Wanted: TypeAlias = tuple[str, StoredColumn]
"""A source, and one of its columns."""
_NOTHING = pa.py_buffer(b"")


class Tuples:
    """Where the tuples of one source are, and how a match leads to them."""

    def __init__(self, source: str, store: WindowStore, member: Member) -> None:
        self.store = store
        self._place = member.place
        self._state = member.store if isinstance(member.store, MaterializedJoin) else None
        """The input that holds their row numbers, if the source is not an input itself."""
        self._link = MaterializedJoin.link(source)

    def of(self, matches: Matches, begin: int = 0) -> Int64Array:
        """Row numbers, from match `begin` on."""
        numbers = matches.of(self._place, begin)
        if self._state is None:
            return numbers
        linked: Int64Array = self._state.rows[self._link][numbers - self._state.rows.base]
        return linked


class MatchRows:
    """Matches as rows of the windows of their sources."""

    def __init__(self, tuples: Mapping[str, Tuples], matches: Matches) -> None:
        self.count = len(matches)
        self._tuples, self._matches = tuples, matches
        self._known: dict[str, Int64Array] = {}
        self._kept: Int64Array | None = None

    def of(self, source: str) -> Int64Array:
        """The row numbers of a source, looked up once."""
        if source not in self._known:
            numbers = self._tuples[source].of(self._matches)
            self._known[source] = numbers if self._kept is None else numbers[self._kept]
        return self._known[source]

    def array(self, source: str, name: str) -> Array:
        rows = self._tuples[source].store.rows
        return rows[name][self.of(source) - rows.base]

    def ends(self, source: str) -> Int64Array:
        """The last instants of tuples, some of which are being shed."""
        store = self._tuples[source].store
        assert store.lives is not None  # noqa: S101 - asked of such windows only
        first, lives = store.lives
        return lives[self.of(source) - first]

    def keep(self, marked: BoolArray) -> None:
        """Drop the matches that are not marked."""
        if not marked.all():
            kept = np.flatnonzero(marked)
            self._kept = kept if self._kept is None else self._kept[kept]
            self._known = {source: numbers[kept] for source, numbers in self._known.items()}
            self.count = len(kept)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Values of some matches."""

    count: int
    columns: list[pa.Array]
    numbers: Mapping[Wanted, int]
    """Which of the columns is which."""

    @property
    def halves(self) -> tuple[Gathered, Gathered]:
        """The same in two parts."""
        middle = self.count // 2
        return (
            Gathered(middle, [values.slice(0, middle) for values in self.columns], self.numbers),
            Gathered(self.count - middle, [values.slice(middle) for values in self.columns], self.numbers),
        )


class Gatherer:
    """Gathers the same columns for any matches."""

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        known = sorted(dict.fromkeys(wanted), key=lambda each: not each[1].width)
        self._numbers = {each: number for number, each in enumerate(known)}
        self._plain = [each for each in known if each[1].width]
        self._others = known[len(self._plain) :]
        self._sources = list(dict.fromkeys(source for source, _ in self._plain))
        self._windows = list({id(column.rows): column.rows for _, column in self._plain}.values())
        self._versions: list[int] = []
        self._table = np.zeros((len(self._plain), COLUMNS), np.int64)
        self._width = sum(column.width for _, column in self._plain)
        self._addresses = np.zeros(len(self._sources), np.int64)
        self._laid = np.zeros((len(self._plain), 4), np.int64)

    def gather(self, found: MatchRows, first: int, stop: int) -> list[Gathered]:
        """The values of some matches; in parts if one Arrow array cannot hold all bytes of a column."""
        try:
            columns = self._plain_columns(found, first, stop - first) if self._plain else []
            columns += [column.take(found.of(source)[first:stop] - column.rows.base) for source, column in self._others]
        except OverflowError:
            middle = (first + stop) // 2
            return [*self.gather(found, first, middle), *self.gather(found, middle, stop)]
        return [Gathered(stop - first, columns, self._numbers)]

    def _plain_columns(self, found: MatchRows, first: int, count: int) -> list[pa.Array]:
        self._refresh()
        for number, source in enumerate(self._sources):
            self._addresses[number] = address_of(found.of(source)) + 8 * first
        block = pa.allocate_buffer((count + 1) * self._width + len(self._plain) * ALIGNED)
        room = gather_columns(self._table, self._addresses, count, block.address, self._laid)
        laid, texts = self._laid.tolist(), _NOTHING
        if room:
            for (_, column), (*_, length) in zip(self._plain, laid, strict=True):
                column.check_length(length)
            texts = pa.allocate_buffer(room)
            gather_texts(self._table, self._addresses, count, texts.address, self._laid)
        columns = []
        for (source, column), (at, size, text_at, length) in zip(self._plain, laid, strict=True):
            buffers = [None, block.slice(at, size)]
            if column.is_text:
                buffers.append(texts.slice(text_at, length))
            if column.is_odd:
                places = found.of(source)[first : first + count] - column.rows.base
                buffers = column.finished(buffers, places)
            columns.append(pa.Array.from_buffers(column.type, count, buffers))
        return columns

    def _refresh(self) -> None:
        """Look up where values lie, after a window has moved or grown."""
        versions = [rows.version for rows in self._windows]
        if versions != self._versions:
            for number, (source, column) in enumerate(self._plain):
                rows, place = column.rows, self._sources.index(source)
                self._table[number] = [column.width, place, rows.base, rows.capacity, *column.extent]
            self._versions = versions


class Collector:
    """Makes a query's result tables out of a join's matches."""

    def __init__(self, consumer: Consumer, windows: Mapping[str, int], tuples: Mapping[str, Tuples]) -> None:
        """Take results for `consumer` from a step whose time windows are `windows`, in microseconds by source."""
        self.nothing = consumer.schema.empty_table()
        self.results = 0
        self.seconds = 0.0
        self._tuples = tuples
        self._cell = [(key.alias, stored_name(key.expression), share, part) for key, share, part in consumer.cell]
        self._narrower = {source: micros for source, micros in consumer.spans.items() if micros < windows[source]}
        """Windows that are smaller than the step's."""
        self.is_whole = not (self._narrower or self._cell)
        """Whether all matches of the join are results of the query, unless tuples are shed."""
        self._outputs, self._same = [output.expression for output in consumer.outputs], consumer.same
        first = (each for number, each in enumerate(self._outputs) if self._same[number] == number)
        self.wanted = {column: self._wanted(column) for expression in first for column in columns(expression)}
        """The columns that its results are made of."""
        self._gatherer: Gatherer | None = None
        self._known: Mapping[Wanted, int] = {}
        self._numbers: dict[Column, int] = {}
        """Which of the gathered columns is which."""
        self._plain: list[int] | None = None
        """The same for each output, if all are columns."""

    def go_on(self, before: Collector) -> None:
        """Go on counting where another collector of the query was."""
        self.results, self.seconds = before.results, before.seconds

    def _wanted(self, column: Column) -> Wanted:
        return column.alias, self._tuples[column.alias].store.columns[f".{column.name}"]

    def collect(self, matches: Matches, common: Sequence[Gathered] | None) -> list[pa.Table]:
        """Tables of the results; those outside the query's own windows, or of another cell, left out.

        Where nothing is left out, values are those that the join's queries have in `common`.
        """
        began = perf_counter()
        if common is None:
            found = MatchRows(self._tuples, matches)
            self._leave_out(found)
            if self._gatherer is None:
                self._gatherer = Gatherer(self.wanted.values())
            common = self._gatherer.gather(found, 0, found.count)
        tables = []
        for part in common:
            self.results += part.count
            tables += self._tables(part)
        self.seconds += perf_counter() - began
        return tables

    def _leave_out(self, found: MatchRows) -> None:
        """Keep what lies in the query's own windows, and in its cell."""
        mortal = [source for source, tuples in self._tuples.items() if tuples.store.lives is not None]
        if self._narrower or mortal:
            latest = np.maximum.reduce([found.array(source, "ts") for source in self._tuples])
            for source in mortal:
                inside = found.ends(source) >= latest
                latest = latest[inside]
                found.keep(inside)
            for source, micros in self._narrower.items():
                inside = found.array(source, "ts") + micros >= latest
                latest = latest[inside]
                found.keep(inside)
        for source, name, share, part in self._cell:
            codes = found.array(source, self._tuples[source].store.codes[(name,)])
            found.keep(coordinates(codes, share) == part)

    def _read(self, numbers: Mapping[Wanted, int]) -> None:
        """Take note of which gathered column is which."""
        self._numbers = {column: numbers[wanted] for column, wanted in self.wanted.items()}
        outputs = [self._outputs[same] for same in self._same]
        plain = [self._numbers[each] for each in outputs if isinstance(each, Column)]
        self._plain = plain if len(plain) == len(outputs) else None
        self._known = numbers  # last: whoever is interrupted before reads again

    def _tables(self, part: Gathered) -> list[pa.Table]:
        """One table, or several when one Arrow array cannot hold all strings."""
        if part.numbers is not self._known:
            self._read(part.numbers)
        values, arrays = part.columns, list[pa.Array]()
        if self._plain is not None:
            arrays = [values[number] for number in self._plain]
            return [pa.Table.from_arrays(arrays, schema=self.nothing.schema)]
        try:
            for number, expression in enumerate(self._outputs):
                same = self._same[number]
                arrays.append(
                    arrays[same]
                    if same < number
                    else evaluate(expression, lambda column: values[self._numbers[column]], part.count)
                )
        except OverflowError:
            return [table for half in part.halves for table in self._tables(half)]
        return [pa.Table.from_arrays(arrays, schema=self.nothing.schema)]
