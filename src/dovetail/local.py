"""LocalSession: the engine in this process, Arrow in and Arrow out.

import dovetail as dt
session = dt.LocalSession()
session.stream("clicks", schema, event_time="ts", lateness="5 seconds")
session.query("pairs", "SELECT * FROM clicks a [RANGE 1 MINUTE], clicks b [RANGE 1 MINUTE] WHERE a.user = b.user")
results = session.push({"clicks": table})["pairs"]
"""

from __future__ import annotations

import time as clock
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import reduce, wraps
from math import isinf
from threading import get_ident
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from dovetail.calibrate import units_for, units_of
from dovetail.config import Budget, Config
from dovetail.engine.progress import LATEST, Observed
from dovetail.engine.shapes import reading
from dovetail.engine.shard import NO_WAY_BACK, Mark, ShardEngine
from dovetail.engine.snapshot import StoredShard, read_snapshot, take_snapshot, write_snapshot
from dovetail.engine.warm_up import warm_up
from dovetail.errors import BudgetError, ConfigError, DovetailError, DovetailWarning, StateError, listed
from dovetail.optimizer.hints import hints_for, parse_hint
from dovetail.optimizer.joint import JointPlan, Together
from dovetail.optimizer.multiquery import limits_of
from dovetail.optimizer.planner import PlanChoices, plan_query
from dovetail.optimizer.replan import Replanner
from dovetail.plan.explain import Explanation, explain
from dovetail.plan.global_part import part_of
from dovetail.plan.global_plan import Load
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.steps import JoinStep
from dovetail.query.catalog import Catalog, check_name
from dovetail.query.losses import Losses
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

Orders = Mapping[str, Sequence[str]]
SMALLEST = 1e-9
"""What is left of a budget that is used up."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
            if self._user == caller:
                raise StateError(
                    f"{method.__name__}() was called while the session was at work for the same thread",
                    "call it when the other call has returned, not from a signal handler or a filter for warnings",
                )
            clock.sleep(_MOMENT)
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
        How queries are run; results never depend on it.

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
        self._user: int | None = None
        """The thread whose turn it is."""
        self._losses = Losses()
        self._budget = budget
        self._config = config or Config()
        self._catalog = Catalog()
        self._hints: dict[frozenset[str], float] = {}
        self._choices: dict[str, PlanChoices] = {}
        self._plans: dict[str, QueryPlan] = {}
        """Each query's own plan, as it was registered."""
        self._joint: JointPlan | None = None
        """The plan of the queries that were there when the first batch came; None until then."""
        self._alone: dict[str, Load] = {}
        """Queries that were added later, and what they are expected to take of a budget."""
        self._make_engine()

    def _make_engine(self) -> None:
        self._inputs: dict[str, StreamSchema] = dict(self._catalog.streams)
        """Streams, and stored sub-joins as streams."""
        self._asked: dict[str, PlanChoices] = {}
        """What is known of each join."""
        self._replan = Replanner(self._inputs, self._config, self._asked)
        self._engine = ShardEngine(self._config, replan=self._replan)
        self._engine.notice = self._notice
        for schema in self._catalog.streams.values():
            self._engine.add_stream(schema)

    def _together(self, *names: str) -> Together:
        """All queries, or some of them, to be planned."""
        queries, streams = self._catalog.queries, self._catalog.streams
        chosen = {name: queries[name] for name in names or queries}
        units = units_for([self._plans[name] for name in chosen], streams) if self._budget is not None else None
        return Together(chosen, streams, self._config, self._choices, self._budget, units, plans=self._plans)

    def _begin(self) -> None:
        """Start the queries that wait for the first batch."""
        if self._joint is None and self._catalog.queries and not self._engine.batches:
            joint = self._together().plan()
            self._engine.unfinished = NO_WAY_BACK
            self._know(joint)
            self._engine.add_steps(joint.run.steps)
            self._engine.unfinished = None

    def _know(self, joint: JointPlan) -> None:
        self._joint = joint
        self._inputs.update(joint.run.states)
        self._asked.update(joint.run.choices)

    def _make_whole(self) -> None:
        """After a call that was interrupted or ran out of memory: go back to before it, or refuse to go on."""
        mark = self._engine.unfinished
        if mark is None:
            return
        if not self._engine.batches:  # no batch has been joined: all that there is has been declared
            self._wait()
            return
        if not self._engine.go_back(mark):
            raise StateError(
                "an earlier call was interrupted, or ran out of memory, while this session's windows were being changed",
                "go on from a snapshot: dt.LocalSession.restore(blob), then push again what came after it",
            )
        whole = self._resumed(take_snapshot(self._engine, self._extra()))
        kept = {"_user": self._user, "_losses": self._losses}
        vars(self).update({**vars(whole), **kept})
        self._engine.notice = self._notice

    def _notice(self, schema: StreamSchema, seen: Observed) -> None:
        """Say once of a stream that tuples are lost. Nothing has changed yet: where warnings are errors, the batch can come again."""
        for text in self._losses.unsaid(schema, seen.late, seen.late_by, seen.refused):
            warnings.warn(text, DovetailWarning, stacklevel=5)

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
        with self._declaring(self._engine.mark()):
            declared = self._catalog.declare_stream(
                name, schema, event_time, lateness, rate, progress_by, idle_after=idle_after, max_ahead=max_ahead
            )
        if self._engine.batches:
            self._engine.add_stream(declared)
            self._inputs[name] = declared
        else:
            self._wait()

    def _wait(self) -> None:
        """Back to where queries wait for the first batch."""
        if self._joint is not None:
            self._joint = None
            self._make_engine()
        for name, schema in self._catalog.streams.items():
            if name not in self._inputs:
                self._inputs[name] = schema
                self._engine.add_stream(schema)

    @_in_turn
    def query(self, name: str, sql: str, probe_orders: Orders | None = None) -> None:
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
        """
        check_name("query", name)
        query = parse_query(name, sql, self._catalog.streams)
        self._catalog.check_new_query(name)
        for text in query.warnings:
            warnings.warn(text, DovetailWarning, stacklevel=3)
        choices = PlanChoices(hints_for(self._hints, query.aliases), probe_orders)
        plan = plan_query(query, self._catalog.streams, self._config, choices)
        if self._engine.batches:
            self._add_alone(plan, choices)
        self._catalog.add_query(query)
        self._choices[name], self._plans[name] = choices, plan
        if not self._engine.batches:
            self._wait()
            self._check_plan(name)

    def _check_plan(self, newest: str) -> None:
        """Refuse a query that cannot be planned, or does not fit, with those before it."""
        try:
            if self._budget is not None or self._config.strategy == "exact":
                self._together().check()
            else:
                self._together(newest).check()
        except BaseException:
            self._drop(newest)
            raise

    def _add_alone(self, plan: QueryPlan, choices: PlanChoices) -> None:
        name = plan.query.name
        if any(name in group.runs for group in self._engine.groups):
            raise ConfigError(f"query {name!r} has the name of a join in the plan", "give it another name")
        load = Load()
        if self._budget is not None:
            streams, config = self._catalog.streams, replace(self._config, strategy="mjoin")
            alone = Together(
                {name: plan.query},
                streams,
                config,
                {name: choices},
                self._left(self._budget),
                units_for([plan], streams),
            )
            try:
                load = alone.plan().plan.load
            except BudgetError as error:
                raise BudgetError(f"running queries leave too little of the budget: {error}") from None
        self._engine.unfinished = self._engine.mark()
        self._engine.add_query(plan)
        self._alone[name], self._asked[name] = load, choices

    def _left(self, budget: Budget) -> Budget:
        """What running queries leave of the budget."""
        together = [name for name in self._catalog.queries if name not in self._alone]
        used = self._joint.load(together) if self._joint is not None else Load()
        used = reduce(Load.plus, self._alone.values(), used)
        limits = limits_of(budget)
        cpu, memory = max(limits.cpu - used.cpu, SMALLEST), max(limits.memory - used.memory, SMALLEST)
        return Budget(None if isinf(cpu) else cpu, None if isinf(memory) else memory)

    @_in_turn
    def drop_query(self, name: str) -> None:
        """Stop a query and free what only it needed."""
        self._drop(name)

    @contextmanager
    def _declaring(self, mark: Mark) -> Iterator[None]:
        """Announce a change of what is declared, and take that back if it is refused."""
        self._engine.unfinished = mark
        try:
            yield
        except DovetailError:
            self._engine.unfinished = None
            raise

    def _drop(self, name: str) -> None:
        with self._declaring(NO_WAY_BACK):
            self._catalog.drop_query(name)
        del self._choices[name], self._plans[name]
        if self._engine.batches:
            self._engine.drop_query(name)
            self._alone.pop(name, None)
        else:
            self._wait()

    @_in_turn
    def selectivity(self, condition: str, value: float) -> None:
        """Tell the planner which share of pairs meets a condition, e.g. `selectivity("i.ad_id = c.ad_id", 0.001)`.

        It holds for queries registered afterwards that join those aliases.
        """
        self._hints.update(parse_hint(condition, value))

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
        if not isinstance(batch, Mapping):
            raise ConfigError(f"push got a {type(batch).__name__}; expected {{stream name: table}}")
        if batch and not self._catalog.queries:
            when = "when all queries had been dropped" if self._engine.batches else "before any query was registered"
            warnings.warn(
                f"push got tuples {when}: they are counted and gone, and no query will see them\nHint: call query() first",
                DovetailWarning,
                stacklevel=3,
            )
        self._begin()
        if now is not None:
            if not isinstance(now, datetime):
                raise ConfigError(f"push(now=...) is {now!r}; expected a datetime")
            return self._engine.push(batch, _micros(now))
        return self._engine.push(batch, clock.time_ns() // 1000 if self._engine.needs_clock else None)

    @_in_turn
    def advance(self, times: Mapping[str, datetime | int]) -> dict[str, pa.Table]:
        """Tell streams that their event time has come to `times` (datetimes, or microseconds since 1970) without tuples.

        Old state is let go and settled results are returned, as if a tuple of that time had come.
        """
        if not isinstance(times, Mapping):
            raise ConfigError(f"advance got a {type(times).__name__}; expected {{stream name: time}}")
        unknown = [stream for stream in times if stream not in self._catalog.streams]
        if unknown:
            raise ConfigError(f"advance names {listed(unknown)}; declared streams: {listed(self._catalog.streams)}")
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
        self._begin()
        plan = None
        if self._joint is not None and (self._budget or not self._joint.is_plain):
            plan = part_of(self._joint.plan, (name for name in self._catalog.queries if name not in self._alone))
        measured = self._engine.metrics() if self._engine.batches else None
        steps = [run.step for group in self._engine.groups for run in group.runs.values()]
        units = units_of(measured)
        return explain(self._catalog, steps, self._config, form, measured=measured, units=units, plan=plan)

    @_in_turn
    def metrics(self) -> dict[str, dict[str, dict[str, object]]]:
        """Counters so far, by stream, by query and by part of the plan.

        Of a stream, `lateness_needed` is the lateness, in seconds, that would have kept every tuple.
        """
        self._begin()
        return self._engine.metrics()

    # -- state --------------------------------------------------------------------------------------------------------------

    @_in_turn
    def snapshot(self) -> bytes:
        """Everything needed to go on elsewhere: declarations, queries, progress and windows (Arrow and JSON, no pickle)."""
        self._begin()
        return write_snapshot(self._engine, self._extra())

    def _extra(self) -> dict[str, object]:
        """What a snapshot holds beside the engine's state."""
        return {
            "hints": [[sorted(pair), value] for pair, value in self._hints.items()],
            "choices": {name: choice.to_json() for name, choice in self._choices.items()},
            "budget": None if self._budget is None else asdict(self._budget),
            "joint": None if self._joint is None else self._joint.to_json(),
            "alone": self._alone,
        }

    @classmethod
    @reading("the snapshot")
    def restore(cls, blob: bytes) -> LocalSession:
        """A session that goes on where `snapshot` was taken; `StateError` if that cannot be had from these bytes.

        Their digest finds accidents and is no signature: who wrote them is for you to know.
        """
        return cls._resumed(read_snapshot(blob))

    @classmethod
    def _resumed(cls, stored: StoredShard) -> LocalSession:
        extra = stored.extra
        session = cls(None if extra["budget"] is None else Budget(**extra["budget"]), stored.config)
        session._hints = {frozenset(pair): value for pair, value in extra["hints"]}
        known = dict(stored.queries)  # adding one more may have come to nothing
        session._alone = {name: Load(*load) for name, load in extra["alone"].items() if name in known}
        for schema in stored.streams:
            session._catalog.add_stream(schema)
        session._make_engine()
        streams, steps = session._catalog.streams, {}
        for name, sql in stored.queries:
            query = parse_query(name, sql, streams)
            session._catalog.add_query(query)
            choices = session._choices[name] = PlanChoices.from_json(extra["choices"][name])
            session._plans[name] = plan_query(query, streams, stored.config, choices)
        if extra["joint"] is not None:
            joint = JointPlan.from_json(extra["joint"], streams, stored.config)
            session._know(joint)
            steps = {step.name: step for step in joint.run.steps}
        for name in session._alone:
            session._asked[name] = session._choices[name]
            steps[name] = JoinStep.single(session._plans[name])
        stored.fill(session._engine, steps)
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
