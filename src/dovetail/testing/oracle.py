"""What a query must return: the definition, run as nested loops over plain tuples.

A combination of one tuple per alias is a result if and only if every equality, condition and filter is true of it and
every tuple is inside its window when the combination's latest tuple arrives. The definition does not mention when a
tuple arrived, nor in which batch, except in two places: a *late* tuple is never accepted, and a result that involves a
count window is emitted only when the window can no longer change.

The oracle shares no code with the engine. It keeps all input and starts from scratch at every question: it is for
hundreds of tuples, not for millions. `idle_after` is not modelled, because the oracle has no clock: where idleness
lifted a stream's progress, say so with `Oracle.advance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from dovetail.errors import QueryError, SchemaError, listed
from dovetail.query.expressions import Column, Expression, aliases
from dovetail.query.model import CountWindow, JoinQuery, TimeWindow, Window
from dovetail.schema import StreamSchema
from dovetail.testing.values import Row, arrow_column, evaluate, rows_of, sort_key, stored_values


@dataclass(frozen=True, eq=False, slots=True)
class _Tuple:
    """A tuple that its stream accepted."""

    number: int
    """Its place among all tuples the stream accepted."""
    ts: int
    row: Row
    content: tuple[Any, ...]
    """The whole row, for ordering tuples of equal `ts`."""


_Combination: TypeAlias = dict[str, _Tuple]
_Followers: TypeAlias = dict[str, dict[int, list[_Tuple]]]


class Oracle:
    """A session that computes every answer from the definition.

    Use it beside a real session: the same `push` calls, then compare `results_table` with all that the session returned
    so far.
    """

    def __init__(self, streams: Iterable[StreamSchema]) -> None:
        self._streams = {schema.name: _Stream(schema) for schema in streams}
        self._queries: dict[str, tuple[JoinQuery, dict[str, int]]] = {}
        self._held: dict[str, Mapping[str, tuple[int, int]]] = {}

    def add_query(self, query: JoinQuery, held: Mapping[str, int | tuple[int, int]] | None = None) -> None:
        """Start a query; its windows are empty now, whatever its streams have seen.

        With `held` (by stream, an event time in microseconds) they hold the tuples from then on that came before it; with a number
        beside the time, not the first so many that came. A result has at least one tuple that comes after the query.
        """
        if query.name in self._queries:
            raise QueryError(f"query {query.name!r} was added already", "drop it first, or choose another name")
        start = {ref.stream: len(self._stream(ref.stream).tuples) for ref in query.refs}
        self._queries[query.name] = query, start
        self._held[query.name] = {
            name: (first, 0) if isinstance(first, int) else first for name, first in (held or {}).items()
        }

    def drop_query(self, name: str) -> None:
        """Forget a query and its results."""
        self._query(name)
        del self._queries[name]

    def push(self, batch: Mapping[str, pa.Table], now: int | None = None) -> None:
        """Take one micro-batch; `now` (event time in microseconds) is the clock for streams with `max_ahead`."""
        for name, table in batch.items():
            self._stream(name).push(table, now)

    def advance(self, progress: Mapping[str, int]) -> None:
        """Raise streams' progress to an event time in microseconds, without tuples; it is never lowered."""
        for name, ts in progress.items():
            self._stream(name).advance(ts)

    @property
    def late(self) -> dict[str, int]:
        """Tuples dropped as late, by stream."""
        return {name: stream.late for name, stream in self._streams.items()}

    @property
    def ahead(self) -> dict[str, int]:
        """Tuples set aside as too far in the future, by stream."""
        return {name: stream.ahead for name, stream in self._streams.items()}

    @property
    def progress(self) -> dict[str, int | None]:
        """H of each stream: the largest event time so far, None before the first."""
        return {name: stream.progress for name, stream in self._streams.items()}

    def results(self, name: str) -> list[tuple[Any, ...]]:
        """Every result the query should have emitted so far, as tuples of output values, in no particular order."""
        query, _ = self._query(name)
        return [
            tuple(evaluate(output.expression, _rows(combination)) for output in query.outputs)
            for combination in self._combinations(name)
        ]

    def results_table(self, name: str) -> pa.Table:
        """The results as a table with the query's schema. Columns selected as they are never pass through Python."""
        query, _ = self._query(name)
        found = list(self._combinations(name))
        columns = [self._output(query, output.expression, found) for output in query.outputs]
        return pa.Table.from_arrays(columns, schema=query.schema)

    def _output(self, query: JoinQuery, expression: Expression, found: Sequence[_Combination]) -> pa.ChunkedArray:
        if not isinstance(expression, Column):
            values = [evaluate(expression, _rows(combination)) for combination in found]
            return pa.chunked_array([arrow_column(values, expression.type)])
        stored = self._stream(query.ref(expression.alias).stream).table().column(expression.name)
        return stored.take(pa.array([combination[expression.alias].number for combination in found], pa.int64()))

    def _combinations(self, name: str) -> Iterator[_Combination]:
        query, start = self._query(name)
        held, inputs = self._held[name], {}
        for ref in query.refs:
            tuples, first = self._stream(ref.stream).tuples, start[ref.stream]
            time, number = held.get(ref.stream, (0, first))
            before = [old for old in tuples[number:first] if old.ts >= time]
            inputs[ref.alias] = [*before, *tuples[first:]]
        new = {ref.alias: start[ref.stream] for ref in query.refs}
        return (
            found
            for found in _matches(query, inputs)
            if self._is_settled(query, found) and any(found[alias].number >= first for alias, first in new.items())
        )

    def _is_settled(self, query: JoinQuery, combination: _Combination) -> bool:
        """Whether no tuple still to come can push a tuple of the combination out of its count window."""
        latest = max(member.ts for member in combination.values())
        counted = [self._stream(ref.stream) for ref in query.refs if isinstance(ref.window, CountWindow)]
        return all(stream.watermark is not None and latest < stream.watermark for stream in counted)

    def _stream(self, name: str) -> _Stream:
        if name not in self._streams:
            raise SchemaError(f"stream {name!r} is not declared; declared: {listed(self._streams)}")
        return self._streams[name]

    def _query(self, name: str) -> tuple[JoinQuery, dict[str, int]]:
        if name not in self._queries:
            raise QueryError(f"query {name!r} is not running; running: {listed(self._queries)}")
        return self._queries[name]


@dataclass
class _Stream:
    """What a stream has accepted, and how far its time has come."""

    schema: StreamSchema
    tuples: list[_Tuple] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    progress: int | None = None
    heard: dict[Any, int] = field(default_factory=dict)
    """The largest event time by value of `progress_by`; a single entry without that option."""
    late: int = 0
    ahead: int = 0

    @property
    def watermark(self) -> int | None:
        """The event time below which every further tuple is late."""
        return None if self.progress is None else self.progress - self.schema.lateness

    def table(self) -> pa.Table:
        """All accepted tuples, by number."""
        return pa.concat_tables([self.schema.columns.empty_table(), *self.tables])

    def push(self, table: pa.Table, now: int | None) -> None:
        table = self._as_declared(table)
        rows, contents = rows_of(table), _contents(table)
        watermark = self.watermark  # before the batch: it judges all its tuples alike
        accepted = []
        for place, row in enumerate(rows):
            ts = row[self.schema.event_time]
            if now is not None and self.schema.max_ahead is not None and ts > now + self.schema.max_ahead:
                self.ahead += 1
                continue
            part = sort_key(row[self.schema.progress_by]) if self.schema.progress_by is not None else None
            self.heard[part] = max(ts, self.heard.get(part, ts))
            if watermark is not None and ts < watermark:
                self.late += 1
                continue
            self.tuples.append(_Tuple(len(self.tuples), ts, row, contents[place]))
            accepted.append(place)
        self.tables.append(table.take(pa.array(accepted, pa.int64())))
        if self.heard:
            self.advance(min(self.heard.values()))

    def advance(self, ts: int) -> None:
        # With progress_by, a value first seen now may be behind the others. What was promised (results emitted, tuples
        # forgotten) cannot be taken back, so progress never goes back either.
        self.progress = ts if self.progress is None else max(self.progress, ts)

    def _as_declared(self, table: pa.Table) -> pa.Table:
        declared = self.schema.columns
        missing = [name for name in declared.names if name not in table.schema.names]
        if missing:
            raise SchemaError(f"stream {self.schema.name!r}: the table lacks {listed(missing)}")
        table = table.select(declared.names)
        if table.column(self.schema.event_time).null_count:
            raise SchemaError(
                f"stream {self.schema.name!r}: event time {self.schema.event_time!r} is NULL in some rows"
            )
        return table if table.schema.equals(declared) else table.cast(declared)


def expected(query: JoinQuery, streams: Iterable[StreamSchema], pushes: Iterable[Mapping[str, pa.Table]]) -> pa.Table:
    """What `query` must return in all when `pushes` arrive one after the other.

    Results over count windows are included up to the watermark, as a session emits them.

    >>> from dovetail.query.sql import parse_query
    >>> columns = pa.schema({"ts": pa.timestamp("us", "UTC"), "k": pa.int64()})
    >>> clicks, orders = StreamSchema("clicks", columns, "ts"), StreamSchema("orders", columns, "ts")
    >>> sql = "SELECT c.k FROM clicks c [RANGE 5 SECONDS], orders o [RANGE 1 SECOND] WHERE c.k = o.k"
    >>> query = parse_query("bought", sql, {"clicks": clicks, "orders": orders})
    >>> def at(seconds, k):
    ...     return pa.table({"ts": pa.array([seconds * 10**6], pa.int64()).cast(columns.field("ts").type), "k": [k]})
    >>> pushes = [{"clicks": at(1, 7)}, {"orders": at(6, 7)}, {"orders": at(7, 7)}]
    >>> expected(query, [clicks, orders], pushes).to_pylist()
    [{'k': 7}]
    """
    oracle = Oracle(streams)
    oracle.add_query(query)
    for batch in pushes:
        oracle.push(batch)
    return oracle.results_table(query.name)


def _matches(query: JoinQuery, inputs: Mapping[str, Sequence[_Tuple]]) -> Iterator[_Combination]:
    """Every combination of the inputs that is a result."""
    order = _connected_order(query)
    checks = _checks_by_step(query, order)
    windows = {ref.alias: ref.window for ref in query.refs}
    followers: _Followers = {
        alias: _followers(inputs[alias], window) for alias, window in windows.items() if isinstance(window, CountWindow)
    }

    def extend(bound: _Combination) -> Iterator[_Combination]:
        step = len(bound)
        if step == len(order):
            yield bound
            return
        for candidate in inputs[order[step]]:
            combination = {**bound, order[step]: candidate}
            if _inside_windows(combination, windows, followers) and _all_true(checks[step], combination):
                yield from extend(combination)

    return extend({})


def _inside_windows(combination: _Combination, windows: Mapping[str, Window], followers: _Followers) -> bool:
    """Whether each tuple is inside its window at the combination's latest event time.

    Of a partial combination this may be asked too: further tuples can only move the latest event time up, and a tuple
    that has left its window does not come back.
    """
    latest = max(member.ts for member in combination.values())
    for alias, member in combination.items():
        window = windows[alias]
        if isinstance(window, TimeWindow):
            if member.ts < latest - window.micros:
                return False
        elif isinstance(window, CountWindow) and window.rows <= sum(
            follower.ts <= latest for follower in followers[alias][member.number]
        ):
            return False
    return True


def _followers(tuples: Sequence[_Tuple], window: CountWindow) -> dict[int, list[_Tuple]]:
    """By tuple: those of its partition that come after it in (ts, row content) order."""
    partitions: dict[Any, list[_Tuple]] = {}
    for member in tuples:
        part = sort_key(member.row[window.partition_by]) if window.partition_by is not None else None
        partitions.setdefault(part, []).append(member)
    after = {}
    for partition in partitions.values():
        ordered = sorted(partition, key=lambda member: (member.ts, member.content))
        for place, member in enumerate(ordered):
            after[member.number] = ordered[place + 1 :]
    return after


def _all_true(checks: Iterable[Expression], combination: _Combination) -> bool:
    rows = _rows(combination)
    return all(evaluate(check, rows) is True for check in checks)


def _rows(combination: _Combination) -> dict[str, Row]:
    return {alias: member.row for alias, member in combination.items()}


def _predicates(query: JoinQuery) -> list[Expression]:
    predicates: list[Expression] = [condition.expression for condition in query.filters]
    predicates += [edge.expression for edge in query.equalities]
    return predicates + [condition.expression for condition in query.conditions]


def _connected_order(query: JoinQuery) -> list[str]:
    """The aliases, each connected to earlier ones by a predicate that can be checked there, where possible."""
    needed = [set(aliases(predicate)) for predicate in _predicates(query)]
    order = [query.aliases[0]]
    while len(order) < len(query.aliases):
        rest = [alias for alias in query.aliases if alias not in order]
        connected = (a for a in rest if any(len(n) > 1 and a in n and n <= {*order, a} for n in needed))
        order.append(next(connected, rest[0]))
    return order


def _checks_by_step(query: JoinQuery, order: Sequence[str]) -> list[list[Expression]]:
    """The predicates by the step at which the last of their aliases is bound."""
    steps: list[list[Expression]] = [[] for _ in order]
    for predicate in _predicates(query):
        steps[max((order.index(alias) for alias in aliases(predicate)), default=0)].append(predicate)
    return steps


def _contents(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [stored_values(column) for column in table.columns]
    return [tuple(map(sort_key, values)) for values in zip(*columns, strict=True)]
