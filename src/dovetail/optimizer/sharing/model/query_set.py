"""Numbered queries, and the sub-joins that they have in common.

A sub-join is a set of a query's inputs. Its `Signature` is its sources and the predicates between them, by name: sub-joins of
different queries are the same computation exactly if their signatures are equal. A `SubJoin` is a signature with a window for each
source: something that an operator can produce. The expected size of a sub-join, Πλ·T·Πσ, is a function of its set. Its new matches per
second are its size times its `pace`, Σ 1/T, because each of its tuples may be the latest. (So we read Alrahmani's sections 2.1.5 and
3.5: |S| = λW holds for base streams only, and algorithm 6's coalesced rate omits W.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import inf
from operator import or_

from dovetail.errors import PlanError, listed
from dovetail.optimizer.graph.indexed import IndexedGraph, members
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.sharing.model.named import NamedGraph, name_graph
from dovetail.plan.shared_plan import PlanSource


@dataclass(frozen=True, slots=True)
class Signature:
    """Identity of a sub-join across queries: its sources and the predicates between them."""

    sources: tuple[str, ...]
    """Sorted."""
    predicates: tuple[str, ...]
    """Sorted; common keys last."""


@dataclass(frozen=True, slots=True)
class SubJoin:
    """A sub-join with its windows: the output of an operator. A sub-join of one source is a base window."""

    signature: int
    window_seconds: tuple[float, ...]
    """Seconds by source, in the signature's order."""
    query: int = field(compare=False)
    """A query that contains this sub-join; size and rate are the same in all of them."""
    mask: int = field(compare=False)
    """Set of its inputs in that query."""

    @property
    def is_base(self) -> bool:
        return self.mask & (self.mask - 1) == 0


class NumberedQuery:
    """One query with numbered inputs."""

    def __init__(self, name: str, named: NamedGraph) -> None:
        self.name = name
        self.graph: IndexedGraph = named.graph.indexed
        names = self.graph.names
        self.sources: tuple[PlanSource, ...] = tuple(named.sources[alias] for alias in names)
        self.indexes = {source.name: index for index, source in enumerate(self.sources)}
        """Index of each source's input."""
        self.window_seconds = {source.name: self.graph.windows[index] for index, source in enumerate(self.sources)}
        indexes = {alias: index for index, alias in enumerate(names)}
        self._predicates = [(_mask(indexes, predicate.inputs), predicate.text) for predicate in named.predicates]
        self._keys = [{indexes[alias]: text for alias, text in keys.items()} for keys in named.keys]
        self.paths: dict[int, list[list[int]]] = {}
        """Fixed paths of joins over the query's own windows, by set of inputs; entries are positions in that set."""
        if named.orders is not None:
            self.fix_orders(named.orders)
        self._sizes: dict[int, float] = {0: 1.0}
        self._neighbours: dict[int, int] = {}
        self._linked: dict[int, int] = {}
        self.unmaterializable = sum(
            1 << index
            for index, source in enumerate(self.sources)
            if not source.materializable or names[index] in named.unmaterializable
        )

    @property
    def all(self) -> int:
        return self.graph.all

    @property
    def has_count_windows(self) -> bool:
        """Whether it has a count window; then no join over its sources is materialized."""
        return not all(source.materializable for source in self.sources)

    @cached_property
    def window(self) -> float:
        """The query's largest window: W in the thesis, where all streams of a query have the same."""
        return max(self.graph.windows)

    def fix_orders(self, orders: Mapping[str, Sequence[str]]) -> None:
        """Fix the probe orders of a join over some of the query's windows, by alias."""
        aliases = [alias for alias in self.graph.names if alias in orders]
        positions = {alias: position for position, alias in enumerate(aliases)}
        mask = sum(1 << self.graph.names.index(alias) for alias in aliases)
        self.paths[mask] = [[positions[alias], *(positions[other] for other in orders[alias])] for alias in aliases]

    def signature(self, mask: int) -> Signature:
        """Return the signature of the sub-join of a set of inputs."""
        texts = sorted(text for needed, text in self._predicates if needed & mask == needed)
        equal_keys = [sorted(keys[index] for index in keys if mask >> index & 1) for keys in self._keys]
        texts += sorted(" = ".join(keys) for keys in equal_keys if len(keys) > 1)
        names = sorted(self.sources[index].name for index in members(mask))
        return Signature(tuple(names), tuple(texts))

    def size(self, mask: int) -> float:
        """Return the expected matches of the sub-join `mask`, within the query's own windows."""
        if mask not in self._sizes:
            lowest = mask & -mask
            rest = mask ^ lowest
            self._sizes[mask] = self.size(rest) * self.graph.extension(rest, lowest.bit_length() - 1)
            if not 0 < self._sizes[mask] < inf:
                raise PlanError(
                    f"query {self.name!r}: {listed(self.graph.names[index] for index in members(mask))} together are expected to "
                    f"have {self._sizes[mask]} matches; it must be a finite number above 0",
                    "check rates, windows and selectivities",
                )
        return self._sizes[mask]

    def neighbours(self, mask: int) -> int:
        """Return the inputs that an edge leads to from the set `mask`."""
        if mask not in self._neighbours:
            self._neighbours[mask] = _union(self.graph.neighbours, mask) & ~mask
        return self._neighbours[mask]

    def linked(self, mask: int) -> int:
        """Return the inputs that have a predicate with the set `mask`, whether or not a probe can follow it."""
        if mask not in self._linked:
            self._linked[mask] = _union(self.graph.linked, mask)
        return self._linked[mask]

    def edges(self) -> list[int]:
        """Return the pairs of inputs that a probe can follow, as sets."""
        return [
            1 << first | 1 << second
            for first in range(self.graph.count)
            for second in members(self.graph.neighbours[first])
            if first < second
        ]

    def connected_sets(self, limit: int | None = None) -> list[int]:
        """Return up to `limit` connected sets of two or more inputs, smallest first."""
        layer, sets = {1 << index for index in range(self.graph.count)}, list[int]()
        while layer and (limit is None or len(sets) < limit):
            layer = {mask | 1 << index for mask in layer for index in members(self.neighbours(mask))}
            sets += sorted(layer)
        return sets[:limit]


class QuerySet:
    """Queries to be planned together, their sources and signatures."""

    def __init__(self, queries: Mapping[str, NamedGraph]) -> None:
        self.queries = [NumberedQuery(name, named) for name, named in queries.items()]
        self.sources: dict[str, PlanSource] = {}
        self._rates: dict[str, float] = {}
        for query in self.queries:
            self._add_sources(query)
        self.signatures: list[Signature] = []
        self._signature_indexes: dict[Signature, int] = {}
        self._by_mask: dict[tuple[int, int], int] = {}
        self._masks: dict[tuple[int, int], int] = {}

    def _add_sources(self, query: NumberedQuery) -> None:
        for index, source in enumerate(query.sources):
            rate = query.graph.rates[index]
            first_source = self.sources.setdefault(source.name, source)
            first_rate = self._rates.setdefault(source.name, rate)
            if first_source != source or abs(first_rate - rate) > 1e-9 * rate:
                raise PlanError(
                    f"query {query.name!r}: {source.name!r} has rate {rate!r}, and {first_rate!r} in a query before it",
                    "inputs with equal names are the same stream: give them the same rate, or another name",
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(query.name for query in self.queries)

    @property
    def has_count_windows(self) -> bool:
        """Whether a query has count windows, with which shedding is refused."""
        return any(query.has_count_windows for query in self.queries)

    def stream_rate(self, stream: str) -> float:
        """Return the tuples per second that enter the window of `stream`: the rate of its fastest source."""
        return max(rate for name, rate in self._rates.items() if self.sources[name].stream == stream)

    # -- sub-joins --------------------------------------------------------------------------------------------------------------

    def signature(self, query: int, mask: int) -> int:
        """Return the index of the signature of the sub-join `mask` of `query`."""
        key = (query, mask)
        if key not in self._by_mask:
            signature = self.queries[query].signature(mask)
            index = self._signature_indexes.setdefault(signature, len(self.signatures))
            if index == len(self.signatures):
                self.signatures.append(signature)
            self._by_mask[key] = index
        return self._by_mask[key]

    def mask(self, signature: int, query: int) -> int:
        """Return the inputs of `query` that form the sub-join `signature`; 0 if the query does not contain it."""
        key = (signature, query)
        if key not in self._masks:
            indexes = self.queries[query].indexes
            sources = self.signatures[signature].sources
            mask = _mask(indexes, sources) if all(source in indexes for source in sources) else 0
            self._masks[key] = mask if mask and self.signature(query, mask) == signature else 0
        return self._masks[key]

    def holders(self, signature: int, among: Iterable[int] | None = None) -> list[int]:
        """Return the queries that contain the sub-join `signature` with all its edges and filters."""
        candidates = range(len(self.queries)) if among is None else among
        return [query for query in candidates if self.mask(signature, query)]

    def sub_join(self, query: int, mask: int, window_seconds: Mapping[str, float] | None = None) -> SubJoin:
        """Return the sub-join `mask` of `query` with the windows `window_seconds`, by default the query's own."""
        signature = self.signature(query, mask)
        window_seconds = self.window_seconds(query) if window_seconds is None else window_seconds
        return SubJoin(
            signature, tuple(window_seconds[source] for source in self.signatures[signature].sources), query, mask
        )

    def widest(self, query: int, mask: int, among: Iterable[int]) -> SubJoin:
        """Return the sub-join `mask` with the largest windows of queries `among` (largest window only, 2.1.3)."""
        signature = self.signature(query, mask)
        window_seconds = [
            self.sub_join(other, self.mask(signature, other)).window_seconds for other in self.holders(signature, among)
        ]
        largest = tuple(
            max(values) for values in zip(self.sub_join(query, mask).window_seconds, *window_seconds, strict=True)
        )
        return SubJoin(signature, largest, query, mask)

    def window_seconds(self, query: int) -> Mapping[str, float]:
        """Return the windows of `query` by source."""
        return self.queries[query].window_seconds

    def window_seconds_of(self, sub_join: SubJoin) -> dict[str, float]:
        return dict(zip(self.signatures[sub_join.signature].sources, sub_join.window_seconds, strict=True))

    def serves(self, sub_join: SubJoin, query: int) -> bool:
        """Whether a sub-join is the whole join of a query, with windows at least as large."""
        mask = self.queries[query].all
        return self.mask(sub_join.signature, query) == mask and covers(
            sub_join.window_seconds, self.sub_join(query, mask).window_seconds
        )

    def fits(self, part: SubJoin, whole: SubJoin) -> int:
        """Return the inputs that `part` covers if the producer of `whole` can read it; else 0."""
        mask = self.mask(part.signature, whole.query)
        if not mask or mask & whole.mask != mask or mask == whole.mask:
            return 0
        window_seconds = self.window_seconds_of(whole)
        needed = [window_seconds[source] for source in self.signatures[part.signature].sources]
        return mask if covers(part.window_seconds, needed) else 0

    def size(self, sub_join: SubJoin) -> float:
        """Return the expected matches within the windows of `sub_join`."""
        size = self.queries[sub_join.query].size(sub_join.mask)
        query_seconds = self.sub_join(sub_join.query, sub_join.mask).window_seconds
        for seconds, own_seconds in zip(sub_join.window_seconds, query_seconds, strict=True):
            if seconds != own_seconds:
                size *= seconds / own_seconds
        return size

    def rate(self, sub_join: SubJoin) -> float:
        """Return the new matches per second: Σ_i λ_i·Π_{j≠i} λ_jT_j·Πσ."""
        return self.size(sub_join) * pace(sub_join)


def pace(sub_join: SubJoin) -> float:
    """Return the fraction of `sub_join` that is new each second: Σ 1/T."""
    return sum(1 / seconds for seconds in sub_join.window_seconds)


def covers(window_seconds: Sequence[float], needed_seconds: Sequence[float]) -> bool:
    return all(seconds >= needed for seconds, needed in zip(window_seconds, needed_seconds, strict=True))


def number_queries(queries: object) -> QuerySet:
    """Validate and number a user's queries: `{"q1": JoinGraph, ...}`, or pairs of a name and a graph."""
    if isinstance(queries, Mapping):
        pairs: list[tuple[object, object]] = list(queries.items())
    elif isinstance(queries, Iterable) and not isinstance(queries, str):
        pairs = [pair if isinstance(pair, tuple) and len(pair) == 2 else (pair, None) for pair in queries]
    else:
        pairs = [(queries, None)]
    names = [name for name, _ in pairs]
    if not pairs:
        raise PlanError("plan_queries: there are no queries", "give at least one: {'q1': dt.JoinGraph(...)}")
    if repeated := sorted({str(name) for name in names if names.count(name) > 1}):
        raise PlanError(f"plan_queries: {listed(repeated)} is the name of two queries; names must differ")
    return QuerySet({str(name): _validate(name, graph) for name, graph in pairs})


def _validate(name: object, graph: object) -> NamedGraph:
    if not isinstance(name, str) or not isinstance(graph, JoinGraph | NamedGraph):
        raise PlanError(f"plan_queries: got {name!r}: {graph!r}; expected a name and a JoinGraph for each query")
    named = graph if isinstance(graph, NamedGraph) else name_graph(graph)
    if len(named.graph.rates) < 2:
        raise PlanError(f"query {name!r} has one input, {listed(named.graph.rates)}; a join has two or more")
    return named


def _mask(indexes: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(1 << indexes[name] for name in names)


def _union(sets: Sequence[int], mask: int) -> int:
    return reduce(or_, map(sets.__getitem__, members(mask)), 0)
