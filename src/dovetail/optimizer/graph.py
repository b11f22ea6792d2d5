"""The join graph: how fast each input comes, how much its window holds, and how selective each edge is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from dovetail.query.model import CountWindow, JoinQuery
from dovetail.schema import StreamSchema

DEFAULT_RATE = 1.0
DEFAULT_EQUALITY = 0.01
DEFAULT_CONDITION = 0.3
MICROS_PER_SECOND = 1_000_000


@dataclass(frozen=True)
class JoinGraph:
    """Inputs and edges of one query."""

    rates: Mapping[str, float]
    """Tuples per second."""
    windows: Mapping[str, float]
    """Seconds."""
    selectivities: Mapping[frozenset[str], float]
    """The share of pairs that match, for each pair of inputs joined by a condition."""

    def connected(self, joined: Iterable[str], candidate: str) -> bool:
        return any(frozenset((other, candidate)) in self.selectivities for other in joined)

    def extension(self, joined: Iterable[str], candidate: str) -> float:
        """Expected matches of one partial result over `joined` in the window of `candidate`."""
        matches = self.rates[candidate] * self.windows[candidate]
        for other in joined:
            matches *= self.selectivities.get(frozenset((other, candidate)), 1.0)
        return matches


def join_graph(
    query: JoinQuery, streams: Mapping[str, StreamSchema], hints: Mapping[frozenset[str], float]
) -> JoinGraph:
    """The graph of a query, from declared rates and the user's selectivity hints (by pair of aliases)."""
    rates = {ref.alias: streams[ref.stream].rate or DEFAULT_RATE for ref in query.refs}
    windows = {}
    for ref in query.refs:
        if isinstance(ref.window, CountWindow):
            windows[ref.alias] = ref.window.rows / rates[ref.alias]
        else:
            windows[ref.alias] = ref.window.micros / MICROS_PER_SECOND
    selectivities: dict[frozenset[str], float] = {}
    for condition in query.conditions:
        for pair in combinations(condition.aliases, 2):
            _multiply(selectivities, pair, DEFAULT_CONDITION)
    for group in query.classes:
        members = dict.fromkeys(key.alias for key in group.keys)
        for pair in combinations(members, 2):
            _multiply(selectivities, pair, DEFAULT_EQUALITY)
    return JoinGraph(rates, windows, {**selectivities, **{k: v for k, v in hints.items() if k in selectivities}})


def _multiply(selectivities: dict[frozenset[str], float], pair: Sequence[str], factor: float) -> None:
    edge = frozenset(pair)
    selectivities[edge] = selectivities.get(edge, 1.0) * factor
