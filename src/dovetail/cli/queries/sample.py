"""A sample of rows that are likely to match.

The oracle is for hundreds of rows, of which random ones would hardly join. Any rows are a valid input for engine and oracle alike, so
a sample needs no guarantee. It begins with rows of the smallest input of a query and follows the equalities from there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_COLUMN = re.compile(r"(?P<alias>\w+): (?P=alias)\.(\w+)")
"""A column of an alias in the equalities of `explain`; expressions are not followed."""
_BATCHES = 3
_OTHERS = 4
"""A sample also has some rows that were not chosen to match: a quarter of the limit."""


def sample_batches(tables: Mapping[str, pa.Table], plan: Mapping[str, Any], limit: int) -> list[dict[str, pa.Table]]:
    """Return batches of about `limit` rows of each stream; `plan` is `explain().to_dict()`."""
    tables = _common_span(tables, {name: stream["event_time"] for name, stream in plan["streams"].items()})
    chosen: dict[str, set[int]] = {name: set() for name in tables}
    for query in plan["queries"].values():
        streams = {alias: entry["stream"] for alias, entry in query["inputs"].items()}
        columns = [_columns(texts) for texts in query["equal"]]
        for alias, rows in _linked_rows(streams, columns, tables, max(1, limit // len(plan["queries"]))).items():
            chosen[streams[alias]].update(rows.to_pylist())
    for name, rows in chosen.items():
        rows.update(_spread(tables[name].num_rows, limit // _OTHERS).to_pylist())
    sample = {name: tables[name].take(pa.array(sorted(rows), pa.int64())) for name, rows in chosen.items()}
    return [{name: _part(table, number) for name, table in sample.items()} for number in range(_BATCHES)]


def _columns(texts: Sequence[str]) -> dict[str, str]:
    """Return the column of each alias in an equality."""
    matches = [match for match in map(_COLUMN.fullmatch, texts) if match is not None]
    return {match[1]: match[2] for match in matches}


def _common_span(tables: Mapping[str, pa.Table], event_times: Mapping[str, str]) -> dict[str, pa.Table]:
    """Return the rows up to the event time that the first rows of all streams reach."""
    times = {
        name: table.column(event_times[name])
        .cast(pa.timestamp("us", _zone(table, event_times[name])), safe=False)
        .cast(pa.int64())
        for name, table in tables.items()
    }
    latest = [pc.max(values).as_py() for values in times.values()]
    end = min((time for time in latest if time is not None), default=0)
    return {name: table.filter(pc.less_equal(times[name], end)) for name, table in tables.items()}


def _zone(table: pa.Table, column: str) -> str | None:
    zone: str | None = table.schema.field(column).type.tz
    return zone


def _linked_rows(
    streams: Mapping[str, str], equalities: Sequence[Mapping[str, str]], tables: Mapping[str, pa.Table], limit: int
) -> dict[str, pa.Array]:
    """Return numbers of rows by alias: some of the smallest stream, and rows of others equal to them."""
    aliases = sorted(streams, key=lambda alias: tables[streams[alias]].num_rows)
    rows = {aliases[0]: _spread(tables[streams[aliases[0]]].num_rows, limit)}
    while missing := [alias for alias in aliases if alias not in rows]:
        linked = [
            alias for alias in missing if any(alias in columns and rows.keys() & columns for columns in equalities)
        ]
        alias = (linked or missing)[0]
        table = tables[streams[alias]]
        is_equal = pa.repeat(pa.scalar(value=True), table.num_rows)
        for columns in equalities:
            for other in rows.keys() & columns if alias in columns else ():
                values = tables[streams[other]].column(columns[other]).take(rows[other])
                dtype = table.schema.field(columns[alias]).type
                is_equal = pc.and_(
                    is_equal, pc.is_in(table.column(columns[alias]), values.cast(dtype, safe=False).combine_chunks())
                )
        matches = pc.indices_nonzero(is_equal)
        rows[alias] = matches.take(_spread(len(matches), limit))
    return rows


def _spread(count: int, limit: int) -> pa.Array:
    """Return up to `limit` numbers below `count`, evenly spread."""
    chosen = min(count, limit)
    return pa.array([number * count // chosen for number in range(chosen)], pa.int64())


def _part(table: pa.Table, number: int) -> pa.Table:
    first, end = (table.num_rows * bound // _BATCHES for bound in (number, number + 1))
    return table.slice(first, end - first)
