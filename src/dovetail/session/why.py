"""The reason why an expected result is missing, from windows and records of dropped tuples.

A row is given by the values of some of its columns. What follows from these values alone comes first: filters, keys that are NULL,
windows, conditions between the given rows. Then the rows are looked up in the windows, and partners for them. Nothing is guessed:
where no record can tell, the reason is `unknown`, and the sentence says what to record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
import pyarrow as pa

from dovetail._display import count_of, iso_time, short_time
from dovetail._typing import BoolArray
from dovetail.engine.contents import QUERIES
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.query.durations import format_duration
from dovetail.query.expressions import Column, Expression, columns
from dovetail.query.model import CountWindow, JoinQuery, TimeWindow
from dovetail.schema import StreamSchema
from dovetail.session.evidence import Evidence, Rows, Why, check_rows, matching

_MAX_COMBINATIONS = 1000
"""Partial results that are extended when two or more rows are looked for."""


def explain_missing(evidence: Evidence, rows: Rows) -> Why:
    """Return why a query has no result with these rows, by alias; each is a dict of some of its columns."""
    return _Search(evidence, check_rows(evidence, rows)).answer()


@dataclass
class _Search:
    """The search for the reason."""

    evidence: Evidence
    rows: dict[str, pa.Table]
    held: dict[str, pa.Table | None] = field(default_factory=dict)
    """By given alias: the row as its window holds it, or None."""

    @property
    def query(self) -> JoinQuery:
        return self.evidence.query

    def answer(self) -> Why:
        for alias, row in self.rows.items():
            window = self.evidence.windows[self.query.ref(alias).stream]
            at = np.flatnonzero(matching(window, row))
            self.held[alias] = window.slice(int(at[0]), 1) if len(at) else None
            if len(at):
                for name in (name for name in window.column_names[:] if name not in (*row.column_names, QUERIES)):
                    self.rows[alias] = self.rows[alias].append_column(name, window.column(name).slice(int(at[0]), 1))
        for step in (self._dropped, self._invisible, self._combination, self._given, self._absent, self._unseen):
            reason = step()
            if reason is not None:
                return reason
        return self._partners()

    # -- one row --------------------------------------------------------------------------------------------------------------

    def _dropped(self) -> Why | None:
        """Return why a row was dropped, if that was recorded."""
        for alias, row in self.rows.items():
            schema = self._schema(alias)
            if schema.event_time in row.column_names and row.column(schema.event_time).null_count:
                text = f"the row of {alias} has no event time: such rows are dropped"
                return Why("no event time", text, alias)
            drops = self.evidence.drops
            recorded = drops(schema, row) if drops is not None and self.held[alias] is None else ()
            for reason, batch in recorded:
                when = f" in batch {batch}" if batch is not None else ""
                return Why(reason, f"the row of {alias} was dropped{when}: {_MEANING[reason]}", alias, batch=batch)
        return None

    def _invisible(self) -> Why | None:
        """Return the filter that a row fails, or its key that is NULL."""
        for alias in self.rows:
            for condition in self.query.filters:
                value = self._value(condition.expression) if condition.aliases == (alias,) else True
                if value is not None and value is not True:
                    text = f"the row of {alias} fails the filter {condition.text}"
                    return Why("filtered", text, alias, condition.text)
            for edge in self.query.equalities:
                for key in (key for key in (edge.left, edge.right) if key.alias == alias):
                    if self._can_evaluate(key.expression) and not self._evaluated(key.expression)[0].is_valid:
                        text = f"the key of {alias} in {edge.text} is NULL, which equals nothing"
                        return Why("null key", text, alias, edge.text)
        return None

    def _value(self, expression: Expression) -> bool | None:
        """Return whether a condition is true for the rows; None if they lack columns."""
        return bool(is_true(self._evaluated(expression))[0]) if self._can_evaluate(expression) else None

    def _can_evaluate(self, expression: Expression) -> bool:
        return all(c.alias in self.rows and c.name in self.rows[c.alias].column_names for c in columns(expression))

    def _evaluated(self, expression: Expression) -> pa.Array:
        return evaluate(expression, lambda c: self.rows[c.alias].column(c.name).combine_chunks(), 1)

    # -- the given rows together ----------------------------------------------------------------------------------------------

    @cached_property
    def _times(self) -> dict[str, int]:
        return self._times_of(self.rows)

    def _times_of(self, rows: Mapping[str, pa.Table]) -> dict[str, int]:
        """Return event times in microseconds, where they are known."""
        times = {}
        for alias, row in rows.items():
            name = self._schema(alias).event_time
            if name in row.column_names:
                micros = row.column(name).cast(pa.timestamp("us", row.column(name).type.tz), safe=False)
                times[alias] = micros.cast(pa.int64())[0].as_py()
        return times

    def _combination(self) -> Why | None:
        """Return which of the given rows are not together in windows, or do not meet a condition."""
        for alias, time in self._times.items():
            other, latest = max(self._times.items(), key=lambda item: item[1])
            window = self.query.ref(alias).window
            if isinstance(window, TimeWindow) and time < latest - window.micros:
                text = (
                    f"the window of {alias} had passed: its row is {_span(latest - time)} before that of {other}, and the window is "
                    f"{_span(window.micros)}"
                )
                return Why("expired", text, alias)
        for predicate, text in self._predicates:
            aliases = sorted({column.alias for column in columns(predicate)})
            if self._value(predicate) is False:
                return Why("no partner", f"the rows of {' and '.join(aliases)} do not meet {text}", aliases[0], text)
        return None

    @cached_property
    def _predicates(self) -> list[tuple[Expression, str]]:
        """Conditions between aliases."""
        edges = [(edge.expression, edge.text) for edge in self.query.equalities]
        return edges + [(condition.expression, condition.text) for condition in self.query.conditions]

    def _given(self) -> Why | None:
        """Return when the result was given, if the sink can tell."""
        find = self.evidence.given
        if find is None or not all(self._can_evaluate(output.expression) for output in self.query.outputs):
            return None
        if set(self.rows) != set(self.query.aliases):
            return None
        outputs = [self._evaluated(output.expression) for output in self.query.outputs]
        batch = find(pa.table(outputs, schema=self.query.schema))
        if batch is None:
            return None
        return Why(
            "given", f"the result was given in batch {batch}: its sink holds a row with these values", batch=batch
        )

    # -- rows that windows lack -----------------------------------------------------------------------------------------------

    def _absent(self) -> Why | None:
        """Return what is known of a row that is in no window."""
        for alias in (alias for alias, held in self.held.items() if held is None):
            given = self.rows[alias].column_names
            needed = [self._schema(alias).event_time, *self._hiding_columns(alias)]
            if unknown := [name for name in dict.fromkeys(needed) if name not in given]:
                text = f"no window holds such a row of {alias}. Give its {' and '.join(unknown)}, too: {_HIDDEN}"
                return Why("unknown", text, alias)
            return self._reason_of_absence(alias)
        return None

    def _hiding_columns(self, alias: str) -> Iterator[str]:
        """Yield the columns that can keep a row out of windows: those of filters and keys."""
        keys = [key for edge in self.query.equalities for key in (edge.left, edge.right)]
        filters = [condition.expression for condition in self.query.filters if condition.aliases == (alias,)]
        for expression in [*filters, *(key.expression for key in keys if key.alias == alias)]:
            yield from (column.name for column in columns(expression))

    def _reason_of_absence(self, alias: str) -> Why:
        stream, time, end = self.query.ref(alias).stream, self._times[alias], self._bound(alias)
        where = f"no window holds such a row of {alias}"
        reasons = () if self.evidence.drops is not None else self.evidence.may_be_dropped[stream]
        start, schema = self.evidence.start, self._schema(alias)
        before = start.max_event_times.get(stream, LONG_AGO) - schema.lateness if start.first_batch else LONG_AGO
        if time < before and not start.backfill:
            what = "before query", "its event time is before all that the stream accepted once the query was added"
        elif end is None:
            what = "unknown", "rows leave a count window when others come, and no record says when"
        elif time < end:
            passed = f"its window has passed, as rows of the other streams are after {_time(end + self._micros(alias))}"
            what = "expired", f"{passed}. If it came in time, it was joined while it was there"
        else:
            what = "not there", "its window has not passed, so it did not come, or its values are others"
        if reasons and what[0] != "unknown":
            text = f"{where}: {what[1]}; or it was dropped, as other tuples of stream {stream!r}: {', '.join(reasons)}. {_RECORD}"
            return Why("unknown", text, alias)
        return Why(what[0], f"{where}: {what[1]}", alias)

    def _micros(self, alias: str) -> int:
        window = self.query.ref(alias).window
        return window.micros if isinstance(window, TimeWindow) else 0

    def _bound(self, alias: str) -> int | None:
        """Return the event time before which rows have left a time window; None for a count window."""
        if isinstance(self.query.ref(alias).window, CountWindow):
            return None
        others = [self.evidence.watermarks[ref.stream] for ref in self.query.refs if ref.alias != alias]
        return max(LONG_AGO, min(others) - self._micros(alias))

    def _unseen(self) -> Why | None:
        """Return why a query does not see a row that its window holds."""
        for alias, held in self.held.items():
            assert held is not None  # noqa: S101 - `_absent` has answered
            if self.query.name not in held.column(QUERIES)[0].as_py():
                bound = self._bound(alias)
                if bound is not None and self._times[alias] < bound:
                    text = f"the row of {alias} is held for other queries; the window of this one has passed"
                    return Why("expired", text, alias)
                text = f"the row of {alias} came before the query was added: it is held for other queries"
                return Why("before query", text, alias)
        return None

    # -- partners -------------------------------------------------------------------------------------------------------------

    def _partners(self) -> Why:
        """Return the alias without a partner for the given rows, or that there is one for each."""
        missing = [alias for alias in self.query.aliases if alias not in self.rows]
        for alias in missing:
            if (reason := self._no_partner(alias)) is not None:
                return reason
        complete = next(self._extended(missing), None) if missing else self.rows
        if complete is None:
            text = f"rows of {' and '.join(missing)} match the given ones, but none of those examined match each other"
            return Why("no partner", text, missing[0])
        return self._complete(complete)

    def _complete(self, rows: Mapping[str, pa.Table]) -> Why:
        """Return what is known of a combination that meets everything."""
        latest = max(self._times_of(rows).values())
        frontier = [self.evidence.watermarks[r.stream] for r in self.query.refs if isinstance(r.window, CountWindow)]
        if frontier and latest >= min(frontier):
            return Why("waiting", "the rows wait until no earlier one can come: then count windows are decided")
        if frontier:
            return Why(
                "unknown", "all rows are in their windows; no record says whether they were within the counts together"
            )
        if self.evidence.given is not None and set(self.rows) == set(self.query.aliases):
            text = (
                "the rows match and are in their windows, but the sink holds no such result: was it changed by others?"
            )
            return Why("unknown", text)
        start = self.evidence.start
        if start.first_batch and start.backfill:
            return Why(
                "unknown", "the rows match; the result was given unless all of them came before the query was added"
            )
        return Why("given", "the rows match and are in their windows: the result was given when the last of them came")

    def _no_partner(self, alias: str) -> Why | None:
        """Return why no row of an alias matches the given ones."""
        given = " and ".join(self.rows)
        table, text = self._visible(alias), None
        count = table.num_rows
        table = table.filter(pa.array(self._is_together(alias, table, self.rows)))
        note = self._expired_note(alias)
        if not table.num_rows:
            what = f"none of the {count_of(count, 'row', 'rows')} of {alias} is in a window together with {given}"
            return Why("no partner", what + note, alias)
        inside = table.num_rows
        for predicate, text in self._predicates:
            used = {column.alias for column in columns(predicate)}
            if alias in used and used <= {alias, *self.rows}:
                mask = self._mask(predicate, alias, table, self.rows)
                if mask is None:
                    return Why("unknown", f"windows do not keep the columns that {text} compares", alias, text)
                table = table.filter(pa.array(mask))
                if not table.num_rows:
                    what = f"none of the {count_of(inside, 'row', 'rows')} of {alias} in its window meets {text} with {given}"
                    return Why("no partner", what + note, alias, text)
        return None

    def _expired_note(self, alias: str) -> str:
        """Return what to add if a partner may have left its window."""
        bound = self._bound(alias)
        if bound is None:
            return ". A partner may have left its count window"
        earliest = max(self._times.values(), default=LONG_AGO) - self._micros(alias)
        if bound <= earliest:
            return ""
        return (
            f". Rows of {alias} before {_time(bound)} have left it; if one of them matched, the result was given then"
        )

    def _visible(self, alias: str) -> pa.Table:
        """Return the rows of an alias that the query sees."""
        table = self.evidence.windows[self.query.ref(alias).stream]
        name = self.query.name
        mask = [name in names for names in table.column(QUERIES).to_pylist()]
        return table.filter(pa.array(mask, pa.bool_()))

    def _is_together(self, alias: str, table: pa.Table, rows: Mapping[str, pa.Table]) -> BoolArray:
        """Return which rows of an alias are in time windows together with others."""
        name = self._schema(alias).event_time
        micros = table.column(name).cast(pa.timestamp("us", table.column(name).type.tz), safe=False).cast(pa.int64())
        ts, mask = micros.to_numpy(), np.ones(table.num_rows, np.bool_)
        window = self.query.ref(alias).window
        for other, time in self._times_of(rows).items():
            if isinstance(window, TimeWindow):
                mask &= ts >= time - window.micros
            if isinstance(other_window := self.query.ref(other).window, TimeWindow):
                mask &= time >= ts - other_window.micros
        return mask

    def _mask(
        self, predicate: Expression, alias: str, table: pa.Table, rows: Mapping[str, pa.Table]
    ) -> BoolArray | None:
        """Return which rows of an alias meet a condition with others; None if columns are missing."""

        def resolve(column: Column) -> pa.Array:
            if column.alias == alias:
                return table.column(column.name).combine_chunks()
            return pa.repeat(rows[column.alias].column(column.name)[0], table.num_rows)

        tables = {**rows, alias: table}
        if any(column.name not in tables[column.alias].column_names for column in columns(predicate)):
            return None
        return is_true(evaluate(predicate, resolve, table.num_rows))

    def _extended(self, missing: Sequence[str]) -> Iterator[dict[str, pa.Table]]:
        """Yield combinations of the given rows with rows of the missing aliases."""
        combinations: Iterator[dict[str, pa.Table]] = iter([self.rows])
        for alias in missing:
            combinations = self._extend(islice(combinations, _MAX_COMBINATIONS), alias)
        return combinations

    def _extend(self, combinations: Iterator[dict[str, pa.Table]], alias: str) -> Iterator[dict[str, pa.Table]]:
        for rows in combinations:
            table = self._visible(alias)
            table = table.filter(pa.array(self._is_together(alias, table, rows)))
            for predicate, _ in self._predicates:
                used = {column.alias for column in columns(predicate)}
                if alias in used and used <= {alias, *rows}:
                    mask = self._mask(predicate, alias, table, rows)
                    table = table if mask is None else table.filter(pa.array(mask))
            for index in range(table.num_rows):
                yield {**rows, alias: table.slice(index, 1)}

    def _schema(self, alias: str) -> StreamSchema:
        return self.evidence.streams[self.query.ref(alias).stream]


_MEANING = {
    "late": "it was late, its event time was before the stream's watermark",
    "ahead": "it was further ahead of the clock than max_ahead allows",
    "no event time": "it had no usable event time",
    "shed": "it was shed, as windows were full",
}
_HIDDEN = "its window may have passed, and windows do not hold rows that fail a filter or have a key that is NULL"
_RECORD = "To know, record dropped tuples: push(batch, dropped=tables), on Spark start(..., dropped=sink)"


def _time(micros: int) -> str:
    return str(short_time(iso_time(micros)))


def _span(micros: int) -> str:
    return format_duration(micros)
