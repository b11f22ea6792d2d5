"""The oracle: computes a query's results from their definition, by nested loops over plain tuples.

A combination of one tuple per alias is a result if and only if all equalities, conditions and filters are true for it and
every tuple is inside its window at the event time of the combination's latest tuple. Arrival order and batches do not
matter, with two exceptions: a *late* tuple is never accepted, and a result over a count window is emitted only when the
window can no longer change.

The oracle shares no code with the engine. It keeps all input and recomputes everything for each call, so use it for
hundreds of tuples, not for millions. It has no clock, so it ignores `idle_after`: where idleness raised a stream's
progress, call `Oracle.advance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from dovetail.errors import ConfigError, QueryError, SchemaError, listed
from dovetail.query.expressions import Column, Expression, aliases
from dovetail.query.model import CountWindow, JoinQuery, TimeWindow, Window
from dovetail.schema import StreamSchema
from dovetail.testing.values import Row, arrow_column, evaluate, rows_of, sort_key, stored_values


@dataclass(frozen=True, eq=False, slots=True)
class _Tuple:
    """A tuple that its stream accepted."""

    number: int
    """Position among all tuples that the stream accepted."""
    ts: int
    row: Row
    content: tuple[Any, ...]
    """Sort keys of the whole row, which order tuples of equal `ts`."""


_Combination: TypeAlias = dict[str, _Tuple]
_Followers: TypeAlias = dict[str, dict[int, list[_Tuple]]]


class Oracle:
    """A reference session that computes results from their definition.

    Make the same `push` calls as on a real session, then compare `results_table` with all results of that session so far.
    """

    def __init__(self, streams: Iterable[StreamSchema]) -> None:
        self._streams = {schema.name: _Stream(schema) for schema in streams}
        self._queries: dict[str, tuple[JoinQuery, dict[str, int]]] = {}
        self._held: dict[str, Mapping[str, tuple[int, int]]] = {}

    def add_query(self, query: JoinQuery, held: Mapping[str, int | tuple[int, int]] | None = None) -> None:
        """Start a query with empty windows, or with the earlier tuples that `held` gives.

        `held` maps a stream to the earliest event time, in microseconds, of the earlier tuples that the query sees; a pair
        (time, n) also skips the stream's first n tuples. Every result contains at least one tuple that arrives after the query.
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
        """Process one micro-batch; `now`, in microseconds, is the clock for streams with `max_ahead`."""
        for name, table in batch.items():
            self._stream(name).push(table, now)

    def advance(self, progress: Mapping[str, int]) -> None:
        """Raise the progress of streams to event times in microseconds, without tuples; it never decreases."""
        for name, ts in progress.items():
            self._stream(name).advance(ts)

    @property
    def late(self) -> dict[str, int]:
        """Tuples dropped as late, by stream."""
        return {name: stream.late for name, stream in self._streams.items()}

    @property
    def ahead(self) -> dict[str, int]:
        """Tuples dropped as too far in the future, by stream."""
        return {name: stream.ahead for name, stream in self._streams.items()}

    @property
    def progress(self) -> dict[str, int | None]:
        """Largest event time of each stream, None before the first; with `progress_by`, the least part's."""
        return {name: stream.progress for name, stream in self._streams.items()}

    def results(self, name: str) -> list[tuple[Any, ...]]:
        """Return every result that the query must have emitted so far, as tuples of values, in any order."""
        query, _ = self._query(name)
        return [
            tuple(evaluate(output.expression, _rows(combination)) for output in query.outputs)
            for combination in self._combinations(name)
        ]

    def results_table(self, name: str) -> pa.Table:
        """Return the results as a table with the query's schema; plain columns keep their values exactly."""
        query, _ = self._query(name)
        combinations = list(self._combinations(name))
        columns = [self._output(query, output.expression, combinations) for output in query.outputs]
        return pa.Table.from_arrays(columns, schema=query.schema)

    def _output(
        self, query: JoinQuery, expression: Expression, combinations: Sequence[_Combination]
    ) -> pa.ChunkedArray:
        if not isinstance(expression, Column):
            values = [evaluate(expression, _rows(combination)) for combination in combinations]
            return pa.chunked_array([arrow_column(values, expression.type)])
        column = self._stream(query.ref(expression.alias).stream).table().column(expression.name)
        return column.take(pa.array([combination[expression.alias].number for combination in combinations], pa.int64()))

    def _combinations(self, name: str) -> Iterator[_Combination]:
        query, start = self._query(name)
        held, inputs = self._held[name], {}
        for ref in query.refs:
            tuples, first = self._stream(ref.stream).tuples, start[ref.stream]
            earliest, skipped = held.get(ref.stream, (0, first))
            backfilled = [old for old in tuples[skipped:first] if old.ts >= earliest]
            inputs[ref.alias] = [*backfilled, *tuples[first:]]
        first_new = {ref.alias: start[ref.stream] for ref in query.refs}
        return (
            match
            for match in _matches(query, inputs)
            if self._is_final(query, match) and any(match[alias].number >= first for alias, first in first_new.items())
        )

    def _is_final(self, query: JoinQuery, combination: _Combination) -> bool:
        """Whether no future tuple can push a tuple of the combination out of its count window."""
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
    """Accepted tuples and progress of one stream."""

    schema: StreamSchema
    tuples: list[_Tuple] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    progress: int | None = None
    largest: dict[Any, int] = field(default_factory=dict)
    """Largest event time by value of `progress_by`; a single entry without that option."""
    late: int = 0
    ahead: int = 0

    @property
    def watermark(self) -> int | None:
        """Event time below which every further tuple is late."""
        return None if self.progress is None else self.progress - self.schema.lateness

    def table(self) -> pa.Table:
        """Return all accepted tuples, in order of their numbers."""
        return pa.concat_tables([self.schema.columns.empty_table(), *self.tables])

    def push(self, table: pa.Table, now: int | None) -> None:
        table = self._as_declared(table)
        rows, contents = rows_of(table), _contents(table)
        watermark = self.watermark  # all tuples of a batch are compared with the watermark before it
        accepted = []
        for position, row in enumerate(rows):
            ts = row[self.schema.event_time]
            if now is not None and self.schema.max_ahead is not None and ts > now + self.schema.max_ahead:
                self.ahead += 1
                continue
            part = sort_key(row[self.schema.progress_by]) if self.schema.progress_by is not None else None
            self.largest[part] = max(ts, self.largest.get(part, ts))
            if watermark is not None and ts < watermark:
                self.late += 1
                continue
            self.tuples.append(_Tuple(len(self.tuples), ts, row, contents[position]))
            accepted.append(position)
        self.tables.append(table.take(pa.array(accepted, pa.int64())))
        if self.largest:
            self.advance(min(self.largest.values()))

    def advance(self, ts: int) -> None:
        # With progress_by, a value seen for the first time may be behind the others. Emitted results and expired tuples
        # cannot be undone, so progress never decreases.
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


def expected(session: Any, batches: Iterable[Mapping[str, Any]]) -> dict[str, pa.Table]:
    """Return all rows that each query of a session must produce for these batches.

    The oracle computes them. It reads the streams and queries that were declared with the session, and does not change the session;
    every query counts from the first batch on. Tuples without an event time are left out, as a session does. Results over count
    windows are included up to the watermark. `idle_after` and `max_ahead` are ignored: the oracle has no clock.

    Parameters
    ----------
    session
        A `dt.LocalSession` or `dt.Session`, running or not.
    batches
        The batches in order: tables by stream name, as pyarrow Tables, pandas DataFrames or other Arrow-compatible tables.

    Examples
    --------
    >>> import dovetail as dt
    >>> columns = pa.schema({"ts": pa.timestamp("us", "UTC"), "user": pa.int64()})
    >>> session = dt.LocalSession()
    >>> session.stream("views", columns, event_time="ts")
    >>> session.stream("clicks", columns, event_time="ts")
    >>> session.query("seen", '''
    ...     SELECT v.user FROM views v [RANGE 9 SECONDS], clicks c [RANGE 9 SECONDS] WHERE v.user = c.user''')
    >>> views = pa.table([[0, 5_000_000], [1, 2]], schema=columns)
    >>> clicks = pa.table([[9_000_000, 15_000_000], [1, 2]], schema=columns)
    >>> expected(session, [{"views": views}, {"clicks": clicks}])["seen"].to_pylist()
    [{'user': 1}]
    """
    job: Any = getattr(session, "_job", None)  # both sessions have one
    if not (hasattr(job, "streams") and hasattr(job, "queries")):
        raise ConfigError(f"expected() got a {type(session).__name__}; expected a dt.LocalSession or a dt.Session")
    if isinstance(batches, Mapping):
        raise ConfigError(
            "expected() got one batch; expected a list of batches, in order", "write expected(session, [batch])"
        )
    oracle = Oracle(job.streams.values())
    for query in job.queries.values():
        oracle.add_query(query)
    for batch in batches:
        oracle.push({name: _with_event_times(table, job.streams.get(name)) for name, table in batch.items()})
    return {name: oracle.results_table(name) for name in job.queries}


def _with_event_times(table: Any, stream: StreamSchema | None) -> pa.Table:
    table = table if isinstance(table, pa.Table) else pa.table(table)
    if stream is None or stream.event_time not in table.column_names:
        return table  # `Oracle.push` refuses it
    return table.filter(table.column(stream.event_time).is_valid())


def _matches(query: JoinQuery, inputs: Mapping[str, Sequence[_Tuple]]) -> Iterator[_Combination]:
    """Yield every combination of the inputs that is a result."""
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

    The test also prunes partial combinations: further tuples can only raise the latest event time, and a tuple that has left
    its window never returns to it.
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
    """Return, by tuple number, the tuples of the same partition that follow in (ts, row content) order."""
    partitions: dict[Any, list[_Tuple]] = {}
    for member in tuples:
        part = sort_key(member.row[window.partition_by]) if window.partition_by is not None else None
        partitions.setdefault(part, []).append(member)
    after = {}
    for partition in partitions.values():
        ordered = sorted(partition, key=lambda member: (member.ts, member.content))
        for position, member in enumerate(ordered):
            after[member.number] = ordered[position + 1 :]
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
    """Order the aliases so that each, where possible, completes a predicate with earlier ones."""
    needed = [set(aliases(predicate)) for predicate in _predicates(query)]
    order = [query.aliases[0]]
    while len(order) < len(query.aliases):
        rest = [alias for alias in query.aliases if alias not in order]
        connected = (a for a in rest if any(len(n) > 1 and a in n and n <= {*order, a} for n in needed))
        order.append(next(connected, rest[0]))
    return order


def _checks_by_step(query: JoinQuery, order: Sequence[str]) -> list[list[Expression]]:
    """Group the predicates by the step at which the last of their aliases is bound."""
    steps: list[list[Expression]] = [[] for _ in order]
    for predicate in _predicates(query):
        steps[max((order.index(alias) for alias in aliases(predicate)), default=0)].append(predicate)
    return steps


def _contents(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [stored_values(column) for column in table.columns]
    return [tuple(map(sort_key, values)) for values in zip(*columns, strict=True)]
