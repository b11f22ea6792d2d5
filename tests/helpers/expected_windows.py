"""The content of windows by definition: one tuple at a time, from what the oracle has accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from dovetail.query.model import CountWindow, JoinQuery, TimeWindow
from dovetail.testing import Oracle
from dovetail.testing.values import evaluate, sort_key

BEGINNING = -(1 << 62)


class ExpectedWindows:
    """The windows of some queries over the oracle's input."""

    def __init__(self, oracle: Oracle, queries: Iterable[JoinQuery]) -> None:
        self.oracle, self.queries = oracle, list(queries)

    def watermark(self, stream: str) -> int:
        watermark = self.oracle._streams[stream].watermark
        return BEGINNING if watermark is None else watermark

    def readers(self) -> dict[str, list[JoinQuery]]:
        """Return the queries that read each window, by its name."""
        windows: dict[tuple[str, frozenset[str]], list[JoinQuery]] = {}
        for query in self.queries:
            counted = frozenset(ref.stream for ref in query.refs if isinstance(ref.window, CountWindow))
            for stream in dict.fromkeys(ref.stream for ref in query.refs):
                windows.setdefault((stream, counted), []).append(query)
        names = {}
        for (stream, counted), queries in windows.items():
            is_one_of_several = sum(other == stream and bool(group) for other, group in windows) > 1
            readers = f" of {', '.join(sorted(query.name for query in queries))}"
            names[stream + (" settled" + readers * is_one_of_several) * bool(counted)] = queries
        return names

    def table(self, stream: str, queries: list[JoinQuery]) -> pa.Table:
        """Return the tuples in the window that `queries` read of a stream, and which of them see each."""
        positions, names = self.content(stream, queries)
        table = self.oracle._streams[stream].table().take(pa.array(positions, pa.int64()))
        return table.append_column("_queries", pa.array(names, pa.list_(pa.string())))

    def content(self, stream: str, queries: list[JoinQuery]) -> tuple[list[int], list[list[str]]]:
        """Return the positions of the tuples in a stream's window, and the queries that see each."""
        tuples = self.oracle._streams[stream].tuples
        positions, names = [], []
        for member in tuples:
            seen, has_place = [], False
            for query in queries:
                aliases = [alias for alias in query.aliases if query.ref(alias).stream == stream]
                inside = [alias for alias in aliases if self._is_inside(query, alias, member, tuples)]
                has_place |= any(isinstance(query.ref(alias).window, CountWindow) for alias in inside)
                if any(_sees(query, alias, member.row) for alias in inside):
                    seen.append(query.name)
            if seen or has_place:
                positions.append(member.number)
                names.append(sorted(seen))
        return positions, names

    def _is_inside(self, query: JoinQuery, alias: str, member: Any, tuples: list[Any]) -> bool:
        """Whether a result whose latest tuple is still to come, or to settle, can contain a tuple."""
        others = [self.watermark(other.stream) for other in query.refs if other.alias != alias]
        counted = [self.watermark(ref.stream) for ref in query.refs if isinstance(ref.window, CountWindow)]
        earliest, window = min([*others, *counted]), query.ref(alias).window
        if isinstance(window, TimeWindow):
            return bool(member.ts >= earliest - window.micros)
        assert isinstance(window, CountWindow)
        part = window.partition_by
        rank = (member.ts, member.content)
        followers = sorted(
            (other.ts, other.content, other.number)
            for other in tuples
            if (*rank, member.number) < (other.ts, other.content, other.number) < (min(counted),)  # settled ones only
            and (part is None or _same(other.row[part], member.row[part]))
        )
        return len(followers) < window.rows or followers[window.rows - 1][0] > earliest


def _same(left: Any, right: Any) -> bool:
    return bool(left == right or (left != left and right != right))  # noqa: PLR0124 - NaN equals NaN


def _sees(query: JoinQuery, alias: str, row: Mapping[str, Any]) -> bool:
    filters = [condition.expression for condition in query.filters if condition.aliases == (alias,)]
    for group in query.classes:
        values = [evaluate(key, {alias: row}) for key in group.of(alias)]
        if None in values or len(set(map(sort_key, values))) > 1:  # two keys that a third one makes equal
            return False
    return all(evaluate(condition, {alias: row}) is True for condition in filters)
