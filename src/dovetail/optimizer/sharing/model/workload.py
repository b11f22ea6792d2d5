"""All queries by number, and what their sub-joins have in common.

A sub-join is a set of a query's inputs. Its `Signature` is its sources and the predicates between them, by name: sub-joins of
different queries are the same computation exactly if their signatures are equal. A `Target` is a signature with a window for each
source: something that an operator can produce. The expected size of a target, Πλ·T·Πσ, is a function of its set, and what is new
in it per second is its size times its `pace`, Σ 1/T: each of its tuples may be the latest (the readings of Alrahmani's sections
2.1.5 and 3.5: |S| = λW holds for base streams only, and algorithm 6's coalesced rate leaves out W).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import inf
from operator import or_

from dovetail.errors import PlanError, listed
from dovetail.optimizer.graph.indexed import Indexed, members
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.sharing.model.named import NamedGraph, named
from dovetail.plan.shared_plan import PlanSource


@dataclass(frozen=True, slots=True)
class Signature:
    """What a sub-join is, in any query."""

    sources: tuple[str, ...]
    """Sorted."""
    predicates: tuple[str, ...]
    """Sorted; common keys last."""


@dataclass(frozen=True, slots=True)
class Target:
    """A sub-join with its windows: what an operator produces. A target of one source is a base window as an operator sees it."""

    signature: int
    spans: tuple[float, ...]
    """Seconds by source, in the signature's order."""
    query: int = field(compare=False)
    """A query that has this sub-join; whichever it is, the numbers are the same."""
    mask: int = field(compare=False)
    """Its inputs in that query, as a set."""

    @property
    def is_base(self) -> bool:
        return self.mask & (self.mask - 1) == 0


class NumberedQuery:
    """One query, its inputs by number."""

    def __init__(self, name: str, given: NamedGraph) -> None:
        self.name = name
        self.graph: Indexed = given.graph.indexed
        names = self.graph.names
        self.sources: tuple[PlanSource, ...] = tuple(given.sources[alias] for alias in names)
        self.number = {source.name: number for number, source in enumerate(self.sources)}
        self.spans = {source.name: self.graph.windows[number] for number, source in enumerate(self.sources)}
        numbers = {alias: number for number, alias in enumerate(names)}
        self._predicates = [(_mask(numbers, each.inputs), each.text) for each in given.predicates]
        self._keys = [{numbers[alias]: text for alias, text in keys.items()} for keys in given.keys]
        self.paths: dict[int, list[list[int]]] = {}
        """The paths of joins over its own windows that were chosen before, by their inputs; places among these."""
        if given.orders is not None:
            self.choose(given.orders)
        self._sizes: dict[int, float] = {0: 1.0}
        self._near: dict[int, int] = {}
        self._linked: dict[int, int] = {}
        self.unstorable = sum(
            1 << number
            for number, source in enumerate(self.sources)
            if not source.storable or names[number] in given.unstorable
        )

    @property
    def all(self) -> int:
        return self.graph.all

    @cached_property
    def window(self) -> float:
        """The query's window, W in the thesis, which has one for all streams; of several the largest."""
        return max(self.graph.windows)

    def choose(self, orders: Mapping[str, Sequence[str]]) -> None:
        """Fix the probe orders of a join over some of the query's windows, by alias."""
        inside = [alias for alias in self.graph.names if alias in orders]
        places = {alias: place for place, alias in enumerate(inside)}
        mask = sum(1 << self.graph.names.index(alias) for alias in inside)
        self.paths[mask] = [[places[alias], *(places[other] for other in orders[alias])] for alias in inside]

    def signature(self, mask: int) -> Signature:
        """Say what the sub-join of a set of inputs is."""
        texts = sorted(text for needed, text in self._predicates if needed & mask == needed)
        inside = [sorted(keys[number] for number in keys if mask >> number & 1) for keys in self._keys]
        texts += sorted(" = ".join(each) for each in inside if len(each) > 1)
        names = sorted(self.sources[number].name for number in members(mask))
        return Signature(tuple(names), tuple(texts))

    def size(self, mask: int) -> float:
        """Give the expected composites of the inputs `mask`, within the query's own windows."""
        if mask not in self._sizes:
            lowest = mask & -mask
            rest = mask ^ lowest
            self._sizes[mask] = self.size(rest) * self.graph.extension(rest, lowest.bit_length() - 1)
            if not 0 < self._sizes[mask] < inf:
                raise PlanError(
                    f"query {self.name!r}: {listed(self.graph.names[number] for number in members(mask))} together are expected to "
                    f"have {self._sizes[mask]} matches; that is no number to plan with",
                    "check rates, windows and selectivities",
                )
        return self._sizes[mask]

    def neighbours(self, mask: int) -> int:
        """Give the inputs that an edge leads to from the set `mask`."""
        if mask not in self._near:
            self._near[mask] = _union(self.graph.near, mask) & ~mask
        return self._near[mask]

    def linked(self, mask: int) -> int:
        """Give the inputs that the set `mask` has a condition with, whether or not a probe can follow it."""
        if mask not in self._linked:
            self._linked[mask] = _union(self.graph.linked, mask)
        return self._linked[mask]

    def edges(self) -> list[int]:
        """Give the pairs of inputs that a probe can follow, as sets."""
        return [
            1 << first | 1 << second
            for first in range(self.graph.count)
            for second in members(self.graph.near[first])
            if first < second
        ]

    def connected_sets(self, most: int | None = None) -> list[int]:
        """Give the connected sets of two or more inputs, the smallest first; at most `most` of them."""
        layer, sets = {1 << number for number in range(self.graph.count)}, list[int]()
        while layer and (most is None or len(sets) < most):
            layer = {mask | 1 << number for mask in layer for number in members(self.neighbours(mask))}
            sets += sorted(layer)
        return sets[:most]


class QuerySet:
    """Queries that are planned together."""

    def __init__(self, queries: Mapping[str, NamedGraph]) -> None:
        self.queries = [NumberedQuery(name, given) for name, given in queries.items()]
        self.sources: dict[str, PlanSource] = {}
        self._rates: dict[str, float] = {}
        for query in self.queries:
            self._take_sources(query)
        self.signatures: list[Signature] = []
        self._numbers: dict[Signature, int] = {}
        self._by_mask: dict[tuple[int, int], int] = {}
        self._masks: dict[tuple[int, int], int] = {}

    def _take_sources(self, query: NumberedQuery) -> None:
        for number, source in enumerate(query.sources):
            rate = query.graph.rates[number]
            known = self.sources.setdefault(source.name, source)
            before = self._rates.setdefault(source.name, rate)
            if known != source or abs(before - rate) > 1e-9 * rate:
                raise PlanError(
                    f"query {query.name!r}: {source.name!r} has rate {rate!r}, and {before!r} in a query before it",
                    "inputs with equal names are the same stream: give them the same rate, or another name",
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(query.name for query in self.queries)

    def stream_rate(self, stream: str) -> float:
        """Give the tuples per second that the window of `stream` takes: its largest source; others are parts of these."""
        return max(rate for name, rate in self._rates.items() if self.sources[name].stream == stream)

    # -- sub-joins --------------------------------------------------------------------------------------------------------------

    def signature(self, query: int, mask: int) -> int:
        """Number the signature of the sub-join `mask` of `query`."""
        key = (query, mask)
        if key not in self._by_mask:
            signature = self.queries[query].signature(mask)
            number = self._numbers.setdefault(signature, len(self.signatures))
            if number == len(self.signatures):
                self.signatures.append(signature)
            self._by_mask[key] = number
        return self._by_mask[key]

    def mask(self, signature: int, query: int) -> int:
        """Give the set of inputs of `query` that a sub-join is, by its `signature`; 0 if the query does not have it."""
        key = (signature, query)
        if key not in self._masks:
            number = self.queries[query].number
            sources = self.signatures[signature].sources
            mask = _mask(number, sources) if all(source in number for source in sources) else 0
            self._masks[key] = mask if mask and self.signature(query, mask) == signature else 0
        return self._masks[key]

    def holders(self, signature: int, among: Iterable[int] | None = None) -> list[int]:
        """Give the queries that have a sub-join, all its edges and filters, by its `signature`."""
        candidates = range(len(self.queries)) if among is None else among
        return [query for query in candidates if self.mask(signature, query)]

    def target(self, query: int, mask: int, spans: Mapping[str, float] | None = None) -> Target:
        """Give the sub-join `mask` of `query` with the query's own windows, or with the windows `spans`."""
        signature = self.signature(query, mask)
        own = self.spans(query) if spans is None else spans
        return Target(signature, tuple(own[source] for source in self.signatures[signature].sources), query, mask)

    def widest(self, query: int, mask: int, among: Iterable[int]) -> Target:
        """Give the sub-join `mask` the largest windows that queries `among` have on it (largest window only, section 2.1.3)."""
        signature = self.signature(query, mask)
        spans = [self.target(other, self.mask(signature, other)).spans for other in self.holders(signature, among)]
        own = self.target(query, mask).spans
        largest = tuple(max(values) for values in zip(own, *spans, strict=True))
        return Target(signature, largest, query, mask)

    def spans(self, query: int) -> Mapping[str, float]:
        """Give the windows of `query` by source."""
        return self.queries[query].spans

    def spans_of(self, target: Target) -> dict[str, float]:
        return dict(zip(self.signatures[target.signature].sources, target.spans, strict=True))

    def serves(self, target: Target, query: int) -> bool:
        """Whether a target is all that a query asks for, in windows at least as large."""
        whole = self.queries[query].all
        return self.mask(target.signature, query) == whole and covers(target.spans, self.target(query, whole).spans)

    def fits(self, part: Target, inside: Target) -> int:
        """Give the inputs that `part` stands for if the producer of `inside` reads it; 0 if it cannot."""
        mask = self.mask(part.signature, inside.query)
        if not mask or mask & inside.mask != mask or mask == inside.mask:
            return 0
        wanted = self.spans_of(inside)
        needed = [wanted[source] for source in self.signatures[part.signature].sources]
        return mask if covers(part.spans, needed) else 0

    def size(self, target: Target) -> float:
        """Give the expected composites within the windows of `target`."""
        bound = self.queries[target.query]
        size = bound.size(target.mask)
        own = self.target(target.query, target.mask).spans
        for span, before in zip(target.spans, own, strict=True):
            if span != before:
                size *= span / before
        return size

    def rate(self, target: Target) -> float:
        """Give the new composites per second: Σ_i λ_i·Π_{j≠i} λ_jT_j·Πσ."""
        return self.size(target) * pace(target)


def pace(target: Target) -> float:
    """Give the share of `target` that is new each second: Σ 1/T."""
    return sum(1 / span for span in target.spans)


def covers(spans: Sequence[float], wanted: Sequence[float]) -> bool:
    return all(span >= needed for span, needed in zip(spans, wanted, strict=True))


def workload_of(queries: object) -> QuerySet:
    """Check what a user gave and number it: `{"q1": JoinGraph, ...}`, or pairs of a name and a graph."""
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
    return QuerySet({str(name): _checked(name, given) for name, given in pairs})


def _checked(name: object, given: object) -> NamedGraph:
    if not isinstance(name, str) or not isinstance(given, JoinGraph | NamedGraph):
        raise PlanError(f"plan_queries: got {name!r}: {given!r}; expected a name and a JoinGraph for each query")
    whole = given if isinstance(given, NamedGraph) else named(given)
    if len(whole.graph.rates) < 2:
        raise PlanError(f"query {name!r} has one input, {listed(whole.graph.rates)}; a join has two or more")
    return whole


def _mask(numbers: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(1 << numbers[name] for name in names)


def _union(sets: Sequence[int], mask: int) -> int:
    return reduce(or_, map(sets.__getitem__, members(mask)), 0)
