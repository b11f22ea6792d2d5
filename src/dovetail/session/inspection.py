"""Methods of a session in this process that say where its tuples are."""

from __future__ import annotations

import pyarrow as pa

from dovetail.engine.contents import window_contents
from dovetail.session.local_job import LocalJob
from dovetail.session.synchronized import synchronized


class InspectedJob(LocalJob):
    """A job and its engine, with methods that say where tuples are."""

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
