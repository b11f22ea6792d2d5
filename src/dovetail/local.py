"""LocalSession: the engine in this process, Arrow in and Arrow out.

import dovetail as dt
session = dt.LocalSession()
session.stream("clicks", schema, event_time="ts", lateness="5 seconds")
session.query("pairs", "SELECT * FROM clicks a [RANGE 1 MINUTE], clicks b [RANGE 1 MINUTE] WHERE a.user = b.user")
results = session.push({"clicks": table})["pairs"]
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from dovetail.calibrate import calibrate
from dovetail.config import Budget, Config
from dovetail.engine.intake import LATEST
from dovetail.engine.shard import ShardEngine
from dovetail.engine.snapshot import read_snapshot, write_snapshot
from dovetail.engine.warm_up import warm_up
from dovetail.errors import ConfigError, listed
from dovetail.optimizer.hints import hints_for, parse_hint
from dovetail.optimizer.planner import PlanChoices, plan_query
from dovetail.optimizer.replan import Replanner
from dovetail.plan.explain import Explanation, explain
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.steps import JoinStep
from dovetail.query.catalog import Catalog
from dovetail.query.sql import parse_query

Orders = Mapping[str, Sequence[str]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LocalSession:
    """Declare streams, register queries, push batches, get results.

    Parameters
    ----------
    budget
        Must be None: CPU and memory limits are not enforced by this release.
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
        if budget is not None:
            raise ConfigError(
                f"LocalSession(budget={budget!r}): budgets are not enforced by this release",
                "leave the budget out; metrics() shows the state that queries hold",
            )
        if config is not None and not isinstance(config, Config):
            raise ConfigError(f"LocalSession(config=...) is a {type(config).__name__}; expected a dovetail.Config")
        warm_up()
        self._config = config or Config()
        self._catalog = Catalog()
        self._hints: dict[frozenset[str], float] = {}
        self._choices: dict[str, PlanChoices] = {}
        self._replan = Replanner(self._catalog.streams, self._config, self._choices)
        self._engine = ShardEngine(self._config, replan=self._replan)

    # -- declarations -------------------------------------------------------------------------------------------------------

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
                "for a table use table.schema",
            )
        _check_name("stream", name)
        declared = self._catalog.declare_stream(
            name, schema, event_time, lateness, rate, progress_by, idle_after=idle_after, max_ahead=max_ahead
        )
        self._engine.add_stream(declared)

    def query(self, name: str, sql: str, probe_orders: Orders | None = None) -> None:
        """Register a query. It sees the tuples pushed from now on.

        Parameters
        ----------
        name
            The key of its results in what `push` returns.
        sql
            The query; see docs/query-language.md.
        probe_orders
            Forces the order in which the new tuples of an alias meet the other windows, e.g. `{"a": ("c", "b")}`.
        """
        _check_name("query", name)
        query = parse_query(name, sql, self._catalog.streams)
        self._catalog.check_new_query(name)
        choices = PlanChoices(hints_for(self._hints, query.aliases), probe_orders)
        plan = plan_query(query, self._catalog.streams, self._config, choices)
        self._engine.add_query(plan)
        self._catalog.add_query(query)
        self._choices[name] = choices

    def drop_query(self, name: str) -> None:
        """Stop a query and free what only it needed."""
        self._catalog.drop_query(name)
        del self._choices[name]
        self._engine.drop_query(name)

    def selectivity(self, condition: str, value: float) -> None:
        """Tell the planner which share of pairs meets a condition, e.g. `selectivity("i.ad_id = c.ad_id", 0.001)`.

        It holds for queries registered afterwards that join those aliases.
        """
        self._hints.update(parse_hint(condition, value))

    # -- data ---------------------------------------------------------------------------------------------------------------

    def push(self, batch: Mapping[str, pa.Table], now: datetime | None = None) -> dict[str, pa.Table]:
        """Join one batch of tuples and return the results it completes, one table per query.

        If anything is wrong with the batch an error says so and nothing has changed.

        Parameters
        ----------
        batch
            A table for each stream that has new tuples.
        now
            The clock for `idle_after` and `max_ahead`; the time of the call by default.
        """
        if not isinstance(batch, Mapping):
            raise ConfigError(f"push got a {type(batch).__name__}; expected {{stream name: table}}")
        if now is not None:
            if not isinstance(now, datetime):
                raise ConfigError(f"push(now=...) is {now!r}; expected a datetime")
            return self._engine.push(batch, _micros(now))
        return self._engine.push(batch, clock.time_ns() // 1000 if self._engine.needs_clock else None)

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
        return self._engine.advance(micros)

    # -- what it does -------------------------------------------------------------------------------------------------------

    def explain(self, form: str = "text") -> Explanation:
        """Show the plan: `text` for people, `dict` for programs, `mermaid` for a picture.

        Once tuples have been pushed it also shows what was measured, rows and microseconds per new tuple, beside what the plan's
        estimates and this machine's unit costs say.
        """
        if not self._engine.batches:
            return explain(self._catalog.streams, self._plans(), self._config, form)
        measured = self._engine.metrics()["queries"]
        return explain(self._catalog.streams, self._plans(), self._config, form, measured, calibrate())

    def metrics(self) -> dict[str, dict[str, dict[str, object]]]:
        """Counters so far, by stream and by query."""
        return self._engine.metrics()

    def _plans(self) -> list[QueryPlan]:
        return [self._engine.run_of(name).plan for name in self._catalog.queries]

    # -- state --------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything needed to go on elsewhere: declarations, queries, progress and windows (Arrow and JSON, no pickle)."""
        hints = [[sorted(pair), value] for pair, value in self._hints.items()]
        choices = {name: choice.to_json() for name, choice in self._choices.items()}
        return write_snapshot(self._engine, {"hints": hints, "choices": choices})

    @classmethod
    def restore(cls, blob: bytes) -> LocalSession:
        """A session that goes on where `snapshot` was taken."""
        stored = read_snapshot(blob)
        session = cls(config=stored.config)
        session._hints = {frozenset(pair): value for pair, value in stored.extra["hints"]}
        for schema in stored.streams:
            session._catalog.add_stream(schema)
            session._engine.add_stream(schema)
        steps = {}
        for name, sql in stored.queries:
            query = parse_query(name, sql, session._catalog.streams)
            choices = PlanChoices.from_json(stored.extra["choices"][name])
            steps[name] = JoinStep.single(plan_query(query, session._catalog.streams, session._config, choices))
            session._catalog.add_query(query)
            session._choices[name] = choices
        stored.fill(session._engine, steps)
        return session


def _micros(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the name of a {kind} is {name!r}; it must be text")
