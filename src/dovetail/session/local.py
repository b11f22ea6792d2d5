"""LocalSession: the engine in this process, Arrow tables in and Arrow tables out.

import dovetail as dt
session = dt.LocalSession()
session.stream("clicks", schema, event_time="ts", lateness="5 seconds")
session.query("pairs", "SELECT * FROM clicks a [RANGE 1 MINUTE], clicks b [RANGE 1 MINUTE] WHERE a.user = b.user")
results = session.push({"clicks": table})["pairs"]
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from threading import get_ident
from typing import NoReturn

import pyarrow as pa

from dovetail.config import Budget, Config
from dovetail.engine.persist.snapshot import read_snapshot, write_snapshot
from dovetail.engine.warm_up import warm_up, warm_up_shedding
from dovetail.errors import ConfigError, DovetailError, reading, warn
from dovetail.optimizer.ordering.problem import ProbeOrders
from dovetail.plan.execution import ExecutionPlan
from dovetail.query.catalog import check_names, stream_schema
from dovetail.session.arrow_input import SchemaLike, TableLike, as_schema, check_event_time
from dovetail.session.call_warnings import IMPORT_DATETIME, micros_of
from dovetail.session.inspection import InspectedJob
from dovetail.session.job import Job
from dovetail.session.job_html import job_html
from dovetail.session.job_json import job_from_json, job_to_json
from dovetail.session.local_job import LocalJob
from dovetail.session.options import check_options
from dovetail.session.registered_query import BackfillReach
from dovetail.session.synchronized import synchronized
from dovetail.session.unknown_names import LOCAL_ELSEWHERE, missing_attribute, reject_unknown_arguments

PIECE_ROWS = 1 << 12
"""Tuples that `push_iter` joins before it yields their results."""


def _refuse_restore(*_: object) -> NoReturn:
    raise ConfigError(
        "restore() returns another session and would leave this one as it is",
        "write session = dt.LocalSession.restore(blob)",
    )


@reject_unknown_arguments
class LocalSession(InspectedJob):
    """Declare streams, register queries, push batches, get results. Threads may share a session.

    Parameters
    ----------
    budget
        Limits on the CPU and memory that all queries use together, as estimated from declared rates and selectivities. A query that
        does not fit raises `BudgetError`.
    config
        How queries are run; results do not depend on it, except for shed tuples.

    Examples
    --------
    >>> import pyarrow as pa
    >>> schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("user", pa.int64())])
    >>> session = LocalSession()
    >>> session.stream("views", schema, event_time="ts")
    >>> session.stream("clicks", schema, event_time="ts")
    >>> session.query("seen", '''
    ...     SELECT v.user, c.ts AS clicked FROM views v [RANGE 10 SECONDS], clicks c [RANGE 10 SECONDS]
    ...     WHERE v.user = c.user''')
    >>> views = pa.table([[0, 5_000_000], [1, 2]], schema=schema)
    >>> clicks = pa.table([[9_000_000], [1]], schema=schema)
    >>> session.push({"views": views, "clicks": clicks})["seen"].column("user").to_pylist()
    [1]
    """

    def __init__(self, budget: Budget | None = None, config: Config | None = None) -> None:
        check_options("LocalSession", budget, config)
        warm_up()
        if config is not None and config.shedding is not None:
            warm_up_shedding()
        super().__init__(Job(config or Config(), budget))
        self.restore = _refuse_restore  # type: ignore[method-assign, assignment]

    def _repr_html_(self) -> str:
        metrics = None
        if self._is_running and self._user is None:
            with suppress(DovetailError):  # the session may be beyond repair
                metrics = self.metrics()
        return job_html(repr(self), self._job, metrics)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_attribute(LocalSession, name, LOCAL_ELSEWHERE)

    # -- declarations -------------------------------------------------------------------------------------------------------

    @synchronized
    def stream(
        self,
        name: str,
        schema: SchemaLike,
        event_time: str,
        lateness: str | float | timedelta = "0 seconds",
        rate: float | None = None,
        *,
        progress_by: str | None = None,
        idle_after: str | float | timedelta | None = None,
        max_ahead: str | float | timedelta | None = None,
    ) -> None:
        """Declare a stream.

        Parameters
        ----------
        name
            Its name in queries and in `push`.
        schema
            The Arrow schema of its tuples; or data that has it: a table, a DataFrame of pandas or Polars, a DuckDB relation; or its
            columns as text, such as `"ts timestamp, user bigint"`.
        event_time
            The timestamp column that windows are measured in.
        lateness
            How far a tuple may lag behind the largest event time of earlier batches. Later ones are dropped and counted.
        rate
            Expected tuples per second of event time; helps the planner.
        progress_by
            A column that identifies source partitions (Kafka partition, file): progress is the minimum over them.
        idle_after
            After this long without progress, by the clock given to `push`, the stream stops delaying expiry in the others.
        max_ahead
            Tuples further ahead of that clock are dropped and counted.
        """
        check_names(name, event_time, progress_by)
        columns = as_schema(name, schema)
        check_event_time(name, columns, event_time, schema)
        declared = stream_schema(
            name,
            columns,
            event_time,
            lateness,
            rate,
            progress_by,
            idle_after=idle_after,
            max_ahead=max_ahead,
        )
        job = self._job.with_stream(declared)
        with self._engine.savepoint(until_delivered=True):
            self._engine.add_stream(declared)
            self._job = job

    @synchronized
    def query(
        self, name: str, sql: str, probe_orders: ProbeOrders | None = None, *, backfill: bool = False
    ) -> BackfillReach | None:
        """Register a query. It sees the tuples pushed from now on.

        Queries registered before the first batch are planned together. A later one has a join of its own until it has caught up, that
        is, until no tuple from before its registration can still match, and the monitor plans it with the others.

        Parameters
        ----------
        name
            The key of its results in what `push` returns.
        sql
            The query; see docs/query-language.md.
        probe_orders
            Forces the order in which new tuples of an alias probe the other windows, e.g. `{"a": ("c", "b")}`.
        backfill
            Join new tuples also with those already in the windows, as far back as other queries kept what this one needs. Keys and
            filters are computed from columns that were kept. Results among old tuples alone are not produced.

        Returns
        -------
        With `backfill`, by alias the earliest event time that the query sees; None if it sees no earlier tuple.
        """
        return self._register(name, sql, probe_orders, backfill=backfill, is_deliberate=False)

    @synchronized
    def add_query(self, name: str, sql: str, *, backfill: bool = False) -> BackfillReach | None:
        """Register a query while data flows, as `RunningSession.add_query` does on Spark; see `query`."""
        return self._register(name, sql, None, backfill=backfill)

    @synchronized
    def drop_query(self, name: str) -> None:
        """Stop a query and free what only it needed."""
        job = self._job.without_query(name)
        if self._is_running:
            self._adopt(job, until_delivered=True)
        else:
            self._job = replace(job, adopted_plan=None)
        self._monitor.stats.drop_query(name)

    @synchronized
    def selectivity(self, condition: str, value: float) -> None:
        """Tell the planner which fraction of pairs meets a condition.

        An example is `selectivity("i.ad_id = c.ad_id", 0.001)`.

        It holds for queries registered afterwards that join those aliases, or those streams under any alias. A name that a query
        has both as an alias and as a stream means the alias. Under a budget, a selectivity that is not stated does not refuse a
        query: it is measured once tuples arrive.
        """
        self._job = self._job.with_hint(condition, value)

    # -- data ---------------------------------------------------------------------------------------------------------------

    @synchronized
    def push(
        self,
        batch: Mapping[str, TableLike],
        now: datetime | None = None,
        dropped: MutableMapping[str, pa.Table] | None = None,
    ) -> dict[str, pa.Table]:
        """Join one batch of tuples and return the results it completes, one table per query.

        A batch that is refused with an error changes nothing. After an interrupt, or when memory runs out, the next call rolls the
        batch back, and it can be pushed again. In the rare case that it cannot be rolled back, that call and all later ones raise
        `StateError`.

        Parameters
        ----------
        batch
            For each stream that has new tuples a table, or anything with `__arrow_c_stream__` or `__arrow_c_array__`: a DataFrame of
            pandas or Polars, a DuckDB relation. Values are converted to the declared types where none changes. A reader is refused,
            because a batch must be there to be pushed again: push `reader.read_all()`.
        now
            The clock for `idle_after` and `max_ahead`; the time of the call by default.
        dropped
            A dict to which the tuples that this push drops are added by stream, with their reason in `_reason`.
        """
        tables, time = self._prepare_push(batch, now), self._clock(now)
        results = self._engine.push(tables, time) if dropped is None else self._push_recording(tables, time, dropped)
        self._batch_time = _time_of(now)
        return results

    def push_iter(
        self, batch: Mapping[str, TableLike], now: datetime | None = None, piece_rows: int = PIECE_ROWS
    ) -> Iterator[tuple[str, pa.Table]]:
        """Join one batch like `push`; yield pairs of query name and table as results are found.

        `Config(driver_policy=...)` determines which come first. The batch is complete when the iterator is exhausted; until then the
        same thread cannot call this session. If iteration ends early, by `break`, `close()` or an error, the next call rolls the
        batch back: results yielded so far come again when it is pushed again.

        Parameters
        ----------
        batch, now
            As for `push`.
        piece_rows
            About how many tuples are joined before their results are yielded.

        Examples
        --------
        >>> session = LocalSession()
        >>> session.stream("a", schema := pa.schema({"ts": pa.timestamp("s", tz="UTC"), "k": pa.int64()}), event_time="ts")
        >>> session.query("pairs", "SELECT x.k FROM a x [RANGE 9 s], a y [RANGE 9 s] WHERE x.k = y.k AND x.ts < y.ts")
        >>> batch = {"a": pa.table([[1, 2, 3], [7, 7, 7]], schema=schema)}
        >>> [(name, table.num_rows) for name, table in session.push_iter(batch, piece_rows=2)]
        [('pairs', 1), ('pairs', 2)]
        """
        if not isinstance(piece_rows, int) or isinstance(piece_rows, bool) or piece_rows < 1:
            raise ConfigError(f"push_iter(piece_rows={piece_rows!r}): it must be at least 1, and whole")
        return self._pieces(batch, now, piece_rows)

    def _pieces(
        self, batch: Mapping[str, TableLike], now: datetime | None, piece_rows: int
    ) -> Iterator[tuple[str, pa.Table]]:
        caller = get_ident()
        while self._user is not None:
            self._wait("push_iter", caller)
        self._user = caller
        try:
            self._rollback_if_interrupted()
            inputs = self._prepare_push(batch, now)
            for part in self._engine.push_pieces(inputs, self._clock(now), piece_rows):
                for name, tables in part.items():
                    yield from ((name, table) for table in tables if table.num_rows)
            self._batch_time = _time_of(now)
        except BaseException:
            self._user = None
            raise
        self._engine.open_savepoint = None
        self._user = None

    def _prepare_push(self, batch: Mapping[str, TableLike], now: datetime | None) -> Mapping[str, TableLike]:
        """Return the tables of a push; begin, or switch to a better plan, before the batch."""
        if not isinstance(batch, Mapping):
            raise ConfigError(
                f"push got a {type(batch).__name__}; expected {{stream name: table}}",
                f"write push({{{next(iter(self._job.streams), 'stream')!r}: table}})",
            )
        if now is not None and not isinstance(now, datetime):
            raise ConfigError(
                f"push(now=...) is {now!r}; expected a datetime", f"write datetime.now(UTC){IMPORT_DATETIME}"
            )
        self._warns_of_no_queries = not self._job.registered
        streams = self._job.streams
        tables = {
            name: self._arrow_input.table(streams[name], data) if name in streams else data
            for name, data in batch.items()
        }
        self._begin()
        self._replan_if_due()
        return tables

    def _clock(self, now: datetime | None) -> int | None:
        """Return the time of a batch in microseconds; None if no stream needs one."""
        if now is not None:
            return self._time_arguments.clock(now)
        return _time_of(None) if self._engine.needs_clock else None

    @synchronized
    def advance(self, times: Mapping[str, datetime | int]) -> dict[str, pa.Table]:
        """Advance the event time of streams to `times` (datetimes, or microseconds since 1970) without tuples.

        Tuples expire and results are returned as if a tuple of that time had arrived.
        """
        micros = self._time_arguments.event_times(times, self._job.streams)
        for name, time in micros.items():
            for text in self._stream_warnings.warnings_of_advance(self._job.streams[name], time):
                warn(text)
        self._begin()
        return self._engine.advance(micros)

    # -- state --------------------------------------------------------------------------------------------------------------

    @synchronized
    def snapshot(self) -> bytes:
        """Return declarations, queries, progress and windows as bytes (Arrow and JSON, no pickle)."""
        return write_snapshot(self._engine, job_to_json(self._job))

    @classmethod
    @reading("the snapshot")
    def restore(cls, blob: bytes) -> LocalSession:
        """Return a session that continues where `snapshot` was taken; raise `StateError` on damaged bytes.

        The checksum detects accidental damage. It is no signature: restore only snapshots from a source that you trust.
        """
        stored = read_snapshot(blob)
        content = stored.content
        streams = [stream["schema"] for stream in content["streams"]]
        job = job_from_json(content["extra"], content["config"], streams)
        session = cls()
        LocalJob.__init__(session, job)
        stored.load_into(session._engine, ExecutionPlan.of(job.steps if job.has_adopted_plan else ()))
        return session


def _time_of(now: datetime | None) -> int:
    """Return the time of a push in microseconds since 1970."""
    return clock.time_ns() // 1000 if now is None else micros_of(now)
