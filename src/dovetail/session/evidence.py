"""Evidence about an expected result: the given rows, the content of windows, the dropped tuples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._display import html_text
from dovetail._typing import BoolArray
from dovetail.errors import ConfigError, listed, suggestion
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema
from dovetail.session.registered_query import QueryStart

Rows = Mapping[str, Mapping[str, Any]]
"""By alias, the values of some columns of a row."""
Drops = Sequence[tuple[str, int | None]]
"""Reason and batch of dropped tuples."""


@dataclass(frozen=True)
class Why:
    """The reason why a result is missing, or when it was given."""

    reason: str
    """`late`, `ahead`, `no event time`, `shed`, `expired`, `filtered`, `null key`, `no partner`, `before query`, `not there`,
    `waiting`, `given` or `unknown`."""
    sentence: str
    alias: str | None = None
    """The alias whose row decides it."""
    predicate: str | None = None
    """The condition that is not met."""
    batch: int | None = None
    """The batch in which the result was given, or the row dropped, where that is known."""

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"<Why: {self.reason}: {self.sentence}>"

    def _repr_html_(self) -> str:
        return html_text(repr(self))


@dataclass(frozen=True)
class Evidence:
    """Facts about a query and the tuples of its streams."""

    query: JoinQuery
    start: QueryStart
    streams: Mapping[str, StreamSchema]
    windows: Mapping[str, pa.Table]
    """By stream: what the query's window holds, see `LocalSession.windows`."""
    watermarks: Mapping[str, int]
    may_be_dropped: Mapping[str, Sequence[str]]
    """By stream: reasons for which tuples have been dropped."""
    drops: Callable[[StreamSchema, pa.Table], Drops] | None = None
    """Returns the dropped tuples with some values, if they were recorded."""
    given: Callable[[pa.Table], int | None] | None = None
    """Returns the batch in which a result was written, or None if it was not; it is None if the sink cannot tell."""


def check_rows(evidence: Evidence, rows: Rows) -> dict[str, pa.Table]:
    """Return each row as a table with its declared types; refuse unknown aliases and columns."""
    query = evidence.query
    example = f"why({query.name!r}, {{{query.aliases[0]!r}: {{...}}}})"
    if not isinstance(rows, Mapping) or not rows or not all(isinstance(row, Mapping) and row for row in rows.values()):
        raise ConfigError(
            f"why() needs a dict of columns for one or more aliases of {query.name!r}", f"write {example}"
        )
    unknown = [alias for alias in rows if alias not in query.aliases]
    if unknown:
        raise ConfigError(
            f"query {query.name!r} has no alias {unknown[0]!r}; it has {listed(query.aliases)}",
            suggestion(unknown[0], query.aliases, f"write {example}"),
        )
    tables = {}
    for alias in (alias for alias in query.aliases if alias in rows):
        schema, row = evidence.streams[query.ref(alias).stream], rows[alias]
        missing = [name for name in row if name not in schema.columns.names]
        if missing:
            raise ConfigError(
                f"the stream of {alias!r} has no column {missing[0]!r}; it has {listed(schema.columns.names)}",
                suggestion(missing[0], schema.columns.names, "give some of these columns"),
            )
        fields = [schema.columns.field(name) for name in row]
        try:
            values = [pa.array([row[item.name]], item.type) for item in fields]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ConfigError(f"the row of {alias!r} does not fit the types of its stream: {error}") from None
        tables[alias] = pa.table(values, schema=pa.schema(fields))
    return tables


def dropped_counts(late: int, ahead: int, refused: int, shed: int) -> list[str]:
    """Return the reasons for which tuples of a stream have been dropped, with their numbers."""
    counts = {"late": late, "ahead": ahead, "without an event time": refused, "shed": shed}
    return [f"{count:,} {reason}" for reason, count in counts.items() if count]


def known_query(queries: Mapping[str, Any], name: object) -> str:
    """Return the name of a query; refuse others."""
    if name not in queries:
        hint = suggestion(name, queries, f"queries: {listed(queries)}")
        raise ConfigError(f"why() got the query {name!r}; running: {listed(queries)}", hint)
    return str(name)


def matching(table: pa.Table, row: pa.Table) -> BoolArray:
    """Return which rows of a table have the values of a row, in the columns that both have."""
    mask = np.ones(table.num_rows, np.bool_)
    for name in (name for name in row.column_names if name in table.column_names):
        if pa.types.is_nested(row.column(name).type):
            continue
        right = pa.repeat(row.column(name)[0].cast(table.column(name).type), table.num_rows)
        values = table.column(name).combine_chunks()
        same = pc.or_(pc.fill_null(_equal(values, right), False), pc.and_(values.is_null(), right.is_null()))
        mask &= same.to_numpy(zero_copy_only=False)
    return mask


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    same = pc.equal(left, right)
    return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right))) if pa.types.is_floating(left.type) else same
