"""Methods of a session in this process that show its plan, its counters and its tuples."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import cast

import pyarrow as pa

from dovetail.calibrate import unit_times_for
from dovetail.engine.contents import check_added_column, empty_window, window_contents
from dovetail.engine.measure import count_last_batch, measure
from dovetail.engine.time.drops import REASON, DropRecorder, dropped_on_arrival
from dovetail.errors import ConfigError
from dovetail.plan.explain.describe import explain
from dovetail.plan.explain.explanation import Explanation
from dovetail.plan.names import window_name
from dovetail.schema import StreamSchema
from dovetail.session.arrow_input import TableLike
from dovetail.session.evidence import Drops, Evidence, Rows, Why, dropped_counts, known_query, matching
from dovetail.session.local_job import LocalJob
from dovetail.session.metrics import SessionMetrics, last_batch, session_metrics
from dovetail.session.synchronized import synchronized
from dovetail.session.why import explain_missing
from dovetail.stats.history import History


class InspectedJob(LocalJob):
    """A job and its engine, with methods that show them."""

    @synchronized
    def windows(self) -> dict[str, pa.Table]:
        """Return the tuples that later results can contain, as one table per window.

        The keys are the names of windows in `explain()`: the stream, or `stream settled` for queries with count windows, which have
        windows of their own. A table has the columns that the window keeps, those that results need, and `_queries`, the
        queries that can still give a result with the tuple. There are no windows before the first batch.

        Examples
        --------
        >>> import dovetail as dt
        >>> session = dt.LocalSession()
        >>> session.stream("a", schema := pa.schema({"ts": pa.timestamp("s", tz="UTC"), "k": pa.int64()}), event_time="ts")
        >>> session.query("pairs", "SELECT x.k FROM a x [RANGE 9 s], a y [RANGE 9 s] WHERE x.k = y.k AND x.ts < y.ts")
        >>> _ = session.push({"a": pa.table([[1, 20], [7, 8]], schema=schema)})
        >>> session.windows()["a"].select(["k", "_queries"]).to_pylist()
        [{'k': 8, '_queries': ['pairs']}]
        """
        return window_contents(self._engine)

    @synchronized
    def explain(self) -> Explanation:
        """Return the plan: `print` shows its text, `to_dict()` and `mermaid()` give data and a diagram.

        Once tuples have been pushed it also shows measured rows and microseconds per new tuple beside the estimates.
        """
        job, measured = self._job, measure(self._engine) if self._is_running else None
        steps = [run.step for run in self._engine.runs] or list(job.steps)
        return explain(
            job,
            steps,
            job.config,
            measured=measured,
            units=unit_times_for(measured) if measured is not None else None,
            plan=job.explained_plan,
            history=History(self._engine.earliest_visible, self._monitor.migrations, self._engine.rates),
            groups=[steps],
        )

    @synchronized
    def metrics(self) -> SessionMetrics:
        """Return counters by stream, query and node of the plan, use of the budget, and changes of the plan.

        They are plain dictionaries; `print` and notebooks show tables. The use of the budget is as of the monitor's last check, some
        ten thousand tuples ago.
        """
        job, engine, number = self._job, self._engine, self._engine.batches
        content = session_metrics(
            measure(engine),
            job.streams,
            job.queries,
            self._monitor,
            self._batch_time,
            batches=number,
            last_batch=last_batch(number - 1 if number else None, count_last_batch(engine), job.streams, job.queries),
        )
        return cast("SessionMetrics", content)

    @synchronized
    def why(self, query: str, rows: Rows, dropped: Mapping[str, pa.Table] | None = None) -> Why:
        """Return why a query has no result with some rows, or that it was given.

        Parameters
        ----------
        query
            The name of the query.
        rows
            For one or more of its aliases a dict with the values of some columns, enough to identify the row. The more is given, the
            more can be said; give the event time.
        dropped
            What `push(batch, dropped=dropped)` has collected. Without it nobody knows whether a row that is in no window was dropped.

        Examples
        --------
        >>> import dovetail as dt
        >>> session = dt.LocalSession()
        >>> session.stream("a", schema := pa.schema({"ts": pa.timestamp("s", tz="UTC"), "k": pa.int64()}), event_time="ts")
        >>> session.query("pairs", "SELECT x.k FROM a x [RANGE 9 s], a y [RANGE 9 s] WHERE x.k = y.k AND x.ts < y.ts")
        >>> _ = session.push({"a": pa.table([[1, 2, 20], [7, 8, 8]], schema=schema)})
        >>> print(session.why("pairs", {"x": {"k": 7}, "y": {"k": 8}}))
        the rows of x and y do not meet x.k = y.k
        """
        registered = self._job.registered[known_query(self._job.registered, query)]
        bound, engine = registered.plan.query, self._engine
        contents, windows = window_contents(engine), dict[str, pa.Table]()
        for stream in {ref.stream for ref in bound.refs}:
            name = window_name(stream, settled=bound.has_count_window)
            names = [other for other in contents if other == name or other.startswith(f"{name} of ")]
            tables = [
                contents[other] for other in names if other == name or query in other.partition(" of ")[2].split(", ")
            ]
            windows[stream] = tables[0] if tables else empty_window(engine.streams[stream])
        shed = engine.joined.shedder.counts if engine.joined.shedder is not None else {}
        progress = engine.progress.streams
        evidence = Evidence(
            bound,
            registered.start,
            engine.streams,
            windows,
            engine.progress.watermarks,
            {
                name: dropped_counts(stream.late, stream.ahead, stream.refused, shed.get(name, (0, 0))[0])
                for name, stream in progress.items()
            },
            None if dropped is None else partial(_find_drops, dropped),
        )
        return explain_missing(evidence, rows)

    def _push_recording(
        self, tables: Mapping[str, TableLike], now: int | None, dropped: MutableMapping[str, pa.Table]
    ) -> dict[str, pa.Table]:
        """Push a batch, and add to `dropped` the tuples that this drops."""
        if not isinstance(dropped, MutableMapping):
            raise ConfigError(
                f"push(dropped=...) is a {type(dropped).__name__}; expected a dict, to which tables are added by stream",
                "write dropped = {}, then push(batch, dropped=dropped)",
            )
        engine, recorder = self._engine, DropRecorder(self._engine)
        for schema in engine.streams.values():
            check_added_column(schema, REASON)
            if schema.name in tables:
                arrived = dropped_on_arrival(tables[schema.name], engine.progress[schema.name], now)
                recorder.add(schema.name, arrived)
        shedder = engine.joined.shedder
        if shedder is not None:
            shedder.on_shed = recorder.add_shed
        try:
            results = engine.push(tables, now)
        finally:
            if shedder is not None:
                shedder.on_shed = None
        recorder.deliver(dropped)
        return results


def _find_drops(dropped: Mapping[str, pa.Table], schema: StreamSchema, row: pa.Table) -> Drops:
    """Return why the rows of a stream with some values were dropped."""
    table = dropped.get(schema.name)
    if table is None:
        return ()
    reasons = table.filter(pa.array(matching(table, row))).column(REASON).to_pylist()
    return [(reason, None) for reason in reasons]
