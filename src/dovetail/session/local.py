"""LocalSession: the engine in this process, Arrow in and Arrow out.

import dovetail as dt
session = dt.LocalSession()
session.stream("clicks", schema, event_time="ts", lateness="5 seconds")
session.query("pairs", "SELECT * FROM clicks a [RANGE 1 MINUTE], clicks b [RANGE 1 MINUTE] WHERE a.user = b.user")
results = session.push({"clicks": table})["pairs"]
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from threading import get_ident
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from dovetail.calibrate import units_of
from dovetail.config import Budget, Config
from dovetail.engine.measure import measure
from dovetail.engine.persist.snapshot import read_snapshot, write_snapshot
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding.room import check_room
from dovetail.engine.time.progress import LATEST, Observed
from dovetail.engine.warm_up import warm_up, warm_up_shedding
from dovetail.errors import ConfigError, DovetailError, PlanError, StateError, listed, reading, warn
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.explain.execution import explain
from dovetail.plan.explain.shared import Explanation
from dovetail.plan.steps import JoinStep
from dovetail.query.catalog import check_name
from dovetail.schema import StreamSchema
from dovetail.session.losses import Losses
from dovetail.session.monitor import Meter, Monitor
from dovetail.session.registry import Orders, Registry
from dovetail.stats.history import History, Migration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PIECE_ROWS = 1 << 12
"""Tuples that are joined before `push_iter` gives their results."""
_MOMENT = 0.001
"""Seconds between two looks at whether the session is free."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Method = Callable[Concatenate["LocalSession", _P], _R]


def _in_turn(method: _Method[_P, _R]) -> _Method[_P, _R]:
    """Let calls from several threads take turns, each on a session that is whole.

    Python lets an interrupt or another thread in where a function is called or returns and where a loop begins again, and nowhere
    else. So a turn is taken and given back by assignment: a lock's `release` would let an interrupt in after the work was
    declared finished, and results that nobody got would be taken for delivered.
    """

    @wraps(method)
    def taking_turns(self: LocalSession, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        caller = get_ident()
        while self._user is not None:
            self._wait(method.__name__, caller)
        self._user = caller
        try:
            self._make_whole()
            result = method(self, *args, **kwargs)
        except BaseException:
            self._user = None
            raise
        self._engine.unfinished = None
        self._user = None
        return result

    return taking_turns


class LocalSession:
    """Declare streams, register queries, push batches, get results. Calls from several threads take turns.

    Parameters
    ----------
    budget
        CPU and memory that the queries may use together, as the planner expects it of the declared rates and selectivities. A query
        that does not fit raises `BudgetError`.
    config
        How queries are run; results never depend on it, but for what is shed.

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
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigError(f"LocalSession(budget=...) is a {type(budget).__name__}; expected a dovetail.Budget")
        if config is not None and not isinstance(config, Config):
            raise ConfigError(f"LocalSession(config=...) is a {type(config).__name__}; expected a dovetail.Config")
        warm_up()
        if config is not None and config.shedding is not None:
            warm_up_shedding()
        self._user: int | None = None
        """The thread whose turn it is."""
        self._losses = Losses()
        self._registry = Registry(config or Config(), budget)
        self._engine = self._new_engine()
        self._monitor, self._meter = Monitor(budget), Meter()

    def _new_engine(self) -> ShardEngine:
        engine = ShardEngine(self._registry.config, replan=Replanner(self._registry.config))
        engine.notice = self._notice
        engine.without_stored = self._without_stored
        for schema in self._registry.streams.values():
            engine.add_stream(schema)
        return engine

    @property
    def _is_running(self) -> bool:
        """Whether a batch has come: until then streams and queries are being declared, and nothing is planned."""
        return self._engine.batches > 0

    def _begin(self) -> None:
        """Start the queries that wait for the first batch."""
        if not self._is_running and not self._registry.cohorts:
            self._engine.unfinished = self._engine.mark()
            self._registry.begin()
            self._adopt()
            self._engine.unfinished = None

    def _adopt(self, steps: Sequence[JoinStep] | None = None) -> None:
        """Let the engine go on with the queries that are registered now, or with other steps, in the orders that it has come to."""
        plan = ExecutionPlan.of(self._registry.steps if steps is None else steps, self._engine.plan)
        self._engine.adopt(plan.in_orders_of(self._engine.plan))

    # -- the monitor --------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look now and then at what was measured; go on with another plan if that is better. Nothing has begun yet."""
        engine, registry, monitor = self._engine, self._registry, self._monitor
        arrived = sum([progress.arrived for progress in engine.progress.streams.values()])
        if not monitor.is_due(arrived) or not self._is_running:
            return
        if not registry.has_choice:
            monitor.wait(arrived)
            return
        measured = measure(engine, hot_values=False)
        watermarks = {name: progress.watermark for name, progress in engine.progress.streams.items()}
        late = registry.caught_up(watermarks) if registry.config.adaptive else []
        parts = [({0: measured}, [run.step for run in engine.runs])]
        cause, breaches = monitor.look(engine.batches, parts, self._meter.spent(measured.nodes), late=late)
        for breach in breaches:
            warn(f"{breach}\nHint: drop a query, shorten a window, or give the session a larger Budget")
        if cause is not None and registry.config.adaptive:
            began, proposal = clock.perf_counter(), None
            with suppress(PlanError):  # what cannot be planned again goes on as it is: a batch must not fail over that
                proposal = registry.proposal(monitor, cause, late)
            if proposal is not None:
                self._migrate(proposal, began)
            monitor.considered(helped=proposal is not None)

    def _migrate(self, proposal: Proposal, began: float) -> None:
        """Go on with another plan from the next batch on."""
        self._engine.unfinished = self._engine.mark()
        cohorts = self._registry.migrated(proposal)
        self._adopt([step for cohort in cohorts for step in cohort.steps])
        self._registry.migrate(proposal, cohorts)
        self._engine.unfinished = None
        seconds = clock.perf_counter() - began
        self._monitor.migrated(
            Migration(self._engine.batches, proposal.cause, proposal.before.cpu, proposal.after.cpu, seconds)
        )

    def _without_stored(self) -> ExecutionPlan:
        """The plan that the engine goes on with when there is no room for stored sub-joins."""
        self._registry.give_up_stored()
        return ExecutionPlan.of(self._registry.steps, self._engine.plan)

    def _make_whole(self) -> None:
        """After a call that was interrupted or ran out of memory: go back to before it, or refuse to go on."""
        mark = self._engine.unfinished
        if mark is None:
            return
        if not self._engine.rollback(mark):
            raise StateError(
                "an earlier call was interrupted, or ran out of memory, while this session's windows were being changed",
                "go on from a snapshot: dt.LocalSession.restore(blob), then push again what came after it",
            )
        self._registry.mend(self._engine.streams, self._engine.plan.answers if self._is_running else None)
        self._engine.unfinished = None

    def _wait(self, call: str, caller: int) -> None:
        """Let another thread work here for a moment."""
        if self._user == caller:
            raise StateError(
                f"{call}() was called while the session was at work for the same thread",
                "call it when the other call has returned, or all that push_iter() gives was taken; not from a signal handler or a "
                "filter for warnings",
            )
        clock.sleep(_MOMENT)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Announce a change of what is declared, and take that back if it is refused."""
        self._engine.unfinished = self._engine.mark()
        try:
            yield
        except DovetailError:  # which comes before the engine has changed
            if self._is_running:
                self._registry.keep(self._engine.plan.answers)
            self._engine.unfinished = None
            raise

    def _notice(self, schema: StreamSchema, seen: Observed) -> None:
        """Say once of a stream that tuples are lost. Nothing has changed yet: where warnings are errors, the batch can come again."""
        for text in self._losses.unsaid(schema, seen.late, seen.late_by, seen.refused):
            warn(text)

    # -- declarations -------------------------------------------------------------------------------------------------------

    @_in_turn
    def stream(
        self,
        name: str,
        schema: pa.Schema,
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
            The Arrow schema of its tuples.
        event_time
            The timestamp column that windows are measured in.
        lateness
            How far a tuple may lag behind the largest event time of earlier batches. Later ones are dropped and counted.
        rate
            Expected tuples per second of event time; helps the planner.
        progress_by
            A column whose values (files, partitions) are read out of step: progress is the minimum over them.
        idle_after
            Standing still for longer, by the clock given to `push`, the stream no longer holds the others' state.
        max_ahead
            Tuples further ahead of that clock are set aside and counted.
        """
        if not isinstance(schema, pa.Schema):
            raise ConfigError(
                f"stream {name!r}: got a {type(schema).__name__} as schema; expected a pyarrow.Schema",
                _schema_hint(schema),
            )
        check_name("stream", name)
        with self._changing():
            declared = self._registry.catalog.declare_stream(
                name, schema, event_time, lateness, rate, progress_by, idle_after=idle_after, max_ahead=max_ahead
            )
            self._engine.add_stream(declared)

    @_in_turn
    def query(self, name: str, sql: str, probe_orders: Orders | None = None, *, backfill: bool = False) -> None:
        """Register a query. It sees the tuples pushed from now on.

        Queries registered before the first batch are planned together; later ones are planned alone.

        Parameters
        ----------
        name
            The key of its results in what `push` returns.
        sql
            The query; see docs/query-language.md.
        probe_orders
            Forces the order in which the new tuples of an alias meet the other windows, e.g. `{"a": ("c", "b")}`.
        backfill
            Let new tuples also meet those that the windows hold already, as far as all that the query needs of them was kept for
            others; `explain` says how far back that is. Results whose tuples were all there before are not given.
        """
        if not isinstance(backfill, bool):
            raise ConfigError.choice("query(backfill=...)", backfill, (True, False))
        plan = self._registry.bind(name, sql, probe_orders)
        if (shedding := self._registry.config.shedding) is not None:
            check_room(shedding, self._registry.with_query(plan), self._registry.streams)
        for text in plan.query.warnings:
            warn(text)
        with self._changing():
            if self._is_running:
                heads = {name: progress.head for name, progress in self._engine.progress.streams.items()}
                self._registry.join_in(plan, probe_orders, self._engine.batches, heads, backfill=backfill)
                self._adopt()
            else:
                self._registry.declare(plan, probe_orders)

    def add_query(self, name: str, sql: str, *, backfill: bool = False) -> None:
        """Register a query while data flows, by the name that this has on Spark; see `query`."""
        self.query(name, sql, backfill=backfill)

    @_in_turn
    def drop_query(self, name: str) -> None:
        """Stop a query and free what only it needed."""
        with self._changing():
            self._registry.drop(name)
            self._monitor.picture.forget(name)
            if self._is_running:
                self._adopt()

    @_in_turn
    def selectivity(self, condition: str, value: float) -> None:
        """Tell the planner which share of pairs meets a condition, e.g. `selectivity("i.ad_id = c.ad_id", 0.001)`.

        It holds for queries registered afterwards that join those aliases.
        """
        self._registry.selectivity(condition, value)

    # -- data ---------------------------------------------------------------------------------------------------------------

    @_in_turn
    def push(self, batch: Mapping[str, pa.Table], now: datetime | None = None) -> dict[str, pa.Table]:
        """Join one batch of tuples and return the results it completes, one table per query.

        If anything is wrong with the batch an error says so and nothing has changed. After an interrupt, or when memory runs out,
        the next call goes back to before the batch, which can then be pushed again; in the rare case that it cannot go back
        it raises `StateError`, and so do all calls after it.

        Parameters
        ----------
        batch
            A table for each stream that has new tuples.
        now
            The clock for `idle_after` and `max_ahead`; the time of the call by default.
        """
        return self._engine.push(batch, self._clock(batch, now))

    def push_iter(
        self, batch: Mapping[str, pa.Table], now: datetime | None = None, piece_rows: int = PIECE_ROWS
    ) -> Iterator[tuple[str, pa.Table]]:
        """Join one batch like `push`, and give its results as they are found: a query's name and a table, many times.

        What comes first, `Config(driver_policy=...)` says. The batch is joined when the last table was taken; until then no other
        call on this session is possible from the same thread. If iteration ends early, by `break`, `close()` or an error, the next
        call goes back to before the batch: what it gave so far will come again when it is pushed again.

        Parameters
        ----------
        batch, now
            As for `push`.
        piece_rows
            About how many tuples are joined before their results are given.

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
        self, batch: Mapping[str, pa.Table], now: datetime | None, piece_rows: int
    ) -> Iterator[tuple[str, pa.Table]]:
        caller = get_ident()
        while self._user is not None:
            self._wait("push_iter", caller)
        self._user = caller
        try:
            self._make_whole()
            for part in self._engine.pieces(batch, self._clock(batch, now), piece_rows=piece_rows):
                for name, tables in part.items():
                    yield from ((name, table) for table in tables if table.num_rows)
            self._engine.complete()
        except BaseException:
            self._user = None
            raise
        self._engine.unfinished = None
        self._user = None

    def _clock(self, batch: Mapping[str, pa.Table], now: datetime | None) -> int | None:
        """The time of a batch, if streams need one; the first one lets the queries begin."""
        if not isinstance(batch, Mapping):
            raise ConfigError(f"push got a {type(batch).__name__}; expected {{stream name: table}}")
        if now is not None and not isinstance(now, datetime):
            raise ConfigError(f"push(now=...) is {now!r}; expected a datetime")
        if batch and not self._registry.queries:
            when = "when all queries had been dropped" if self._is_running else "before any query was registered"
            warn(
                f"push got tuples {when}: they are counted and gone, and no query will see them\nHint: call query() first"
            )
        self._begin()
        self._watch()
        if now is not None:
            return _micros(now)
        return clock.time_ns() // 1000 if self._engine.needs_clock else None

    @_in_turn
    def advance(self, times: Mapping[str, datetime | int]) -> dict[str, pa.Table]:
        """Tell streams that their event time has come to `times` (datetimes, or microseconds since 1970) without tuples.

        Old state is let go and settled results are returned, as if a tuple of that time had come.
        """
        if not isinstance(times, Mapping):
            raise ConfigError(f"advance got a {type(times).__name__}; expected {{stream name: time}}")
        unknown = [stream for stream in times if stream not in self._registry.streams]
        if unknown:
            raise ConfigError(f"advance names {listed(unknown)}; declared streams: {listed(self._registry.streams)}")
        micros = {}
        for stream, time in times.items():
            if not isinstance(time, int | datetime) or isinstance(time, bool):
                raise ConfigError(
                    f"advance: the time of {stream!r} is {time!r}; expected a datetime or microseconds since 1970"
                )
            micros[stream] = time if isinstance(time, int) else _micros(time)
            if abs(micros[stream]) > LATEST:
                raise ConfigError(f"advance: the time of {stream!r} is out of range: {time!r}")
        self._begin()
        return self._engine.advance(micros)

    # -- what it does -------------------------------------------------------------------------------------------------------

    @_in_turn
    def explain(self, form: str = "text") -> Explanation:
        """Show the plan: `text` for people, `dict` for programs, `mermaid` for a picture.

        Once tuples have been pushed it also shows what was measured, rows and microseconds per new tuple, beside what the plan's
        estimates and this machine's unit costs say.
        """
        registry, measured = self._registry, measure(self._engine) if self._is_running else None
        cohorts = registry.drafted()
        shown = [cohort.plan for cohort in cohorts if cohort.since == 0 and (registry.budget or not cohort.is_plain)]
        steps = [run.step for run in self._engine.runs] or [step for cohort in cohorts for step in cohort.steps]
        return explain(
            registry.catalog,
            steps,
            registry.config,
            form,
            measured=measured,
            units=units_of(measured) if measured is not None else None,
            plan=shown[0] if shown else None,
            history=History(self._engine.reached, self._monitor.migrations),
            together=[steps],
        )

    @_in_turn
    def metrics(self) -> dict[str, Any]:
        """Counters so far, by stream, by query and by part of the plan; what is used of the budget; and changes of the plan.

        Of a stream, `lateness_needed` is the lateness, in seconds, that would have kept every tuple. What is used of the budget was
        measured at the last look, some ten thousand tuples ago.
        """
        return {**measure(self._engine).to_json(), **self._monitor.to_json()}

    # -- state --------------------------------------------------------------------------------------------------------------

    @_in_turn
    def snapshot(self) -> bytes:
        """Everything needed to go on elsewhere: declarations, queries, progress and windows (Arrow and JSON, no pickle)."""
        return write_snapshot(self._engine, self._registry.to_json())

    @classmethod
    @reading("the snapshot")
    def restore(cls, blob: bytes) -> LocalSession:
        """A session that goes on where `snapshot` was taken; `StateError` if that cannot be had from these bytes.

        Their digest finds accidents and is no signature: who wrote them is for you to know.
        """
        stored = read_snapshot(blob)
        session, content = cls(), stored.content
        streams = [stream["schema"] for stream in content["streams"]]
        session._registry = Registry.from_json(content["extra"], content["config"], streams)
        session._engine, session._monitor = session._new_engine(), Monitor(session._registry.budget)
        stored.fill(session._engine, ExecutionPlan.of(session._registry.steps))
        return session


def _micros(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _schema_hint(given: object) -> str:
    """How to make a schema of what was given instead of one."""
    kind = f"{type(given).__module__}.{type(given).__name__}"
    if kind.startswith("pandas."):
        return "write pa.Schema.from_pandas(df, preserve_index=False)"
    if kind.startswith("polars."):
        return "write df.to_arrow().schema"
    if kind.startswith("pyspark."):
        return "write dt.Session(spark).stream(name, frame, ...) for streams on Spark"
    if isinstance(given, pa.Table | pa.RecordBatch):
        return "write table.schema"
    return "write pa.schema({'ts': pa.timestamp('us', tz='UTC'), 'k': pa.int64()}), a type for each column"
