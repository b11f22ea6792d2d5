"""Validation of `JoinGraph`'s arguments; errors name the parameter, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite
from numbers import Real
from typing import Any

from dovetail.errors import PlanError, listed


def validate_numbers(
    parameter: str, values: Mapping[str, float], names: Collection[str] | None = None
) -> dict[str, float]:
    """Return `values` as floats by name; each must be above 0, and each of `names`, if any, must have one."""
    _check_mapping(parameter, values, "{'A': 10.0, ...}")
    if names is None and not values:
        raise PlanError(
            "JoinGraph: rates is empty; it must name at least one input", "JoinGraph({'A': 10.0, ...}, ...)"
        )
    for name, value in values.items():
        if names is not None and name not in names:
            raise _unknown(f"{parameter}[{name!r}]", [name], names)
        if not (_is_real(value) and value > 0):
            raise PlanError(
                f"JoinGraph: {parameter}[{name!r}] is {value!r}; it must be a finite number above 0",
                "leave out an input that never sends anything"
                if parameter == "rates"
                else "give the window in seconds",
            )
    missing = [name for name in names or () if name not in values]
    if missing:
        raise PlanError(
            f"JoinGraph: {parameter} has no value for {listed(missing)}; it must have one for each of {listed(names or ())}"
        )
    return {name: float(values[name]) for name in names or values}


def validate_sizes(rates: Mapping[str, float], windows: Mapping[str, float]) -> None:
    """Reject a window whose expected number of tuples overflows or underflows."""
    for name, rate in rates.items():
        if not 0 < rate * windows[name] < inf:
            raise PlanError(
                f"JoinGraph: {name!r} has rate {rate!r} and window {windows[name]!r}: that window would hold "
                f"{rate * windows[name]!r} tuples; it must be a finite number above 0",
                "rates are tuples per second, windows are seconds",
            )


def validate_pairs(parameter: str, values: Mapping[Any, float], names: Collection[str]) -> dict[frozenset[str], float]:
    """Return the selectivities in `values` by pair of inputs; keys are tuples in any order or frozensets."""
    _check_mapping(parameter, values, "{('A', 'B'): 0.1, ...}")
    pairs: dict[frozenset[str], float] = {}
    for key, value in values.items():
        spelled = f"{parameter}[{_shown(key)}]"
        if not isinstance(key, tuple | frozenset) or not 1 <= len(key) <= 2:
            raise PlanError(f"JoinGraph: {spelled}: the key must be a pair of inputs", "write ('A', 'B'): 0.1")
        _check_known(spelled, key, names)
        pair = frozenset(key)
        if len(pair) == 1:
            raise PlanError(
                f"JoinGraph: {spelled} joins {key!r} to itself; an edge joins two inputs",
                "give each side of a self-join a name of its own, as a query's aliases do",
            )
        if not (_is_real(value) and 0 < value <= 1):
            raise PlanError(
                f"JoinGraph: {spelled} is {value!r}; it must be above 0 and at most 1",
                "a selectivity is a fraction: matching pairs divided by all pairs",
            )
        if pairs.get(pair, value) != value:
            raise PlanError(f"JoinGraph: {spelled} is {value!r}, and {pairs[pair]!r} the other way round; give it once")
        pairs[pair] = float(value)
    return pairs


def validate_classes(
    groups: Sequence[Collection[str]] | None, distinct: Mapping[Any, float] | None, names: Collection[str]
) -> tuple[tuple[str, ...], ...]:
    """Return the classes as tuples of inputs; without `groups`, the inputs in `distinct` form one class."""
    if groups is None:
        if distinct is None:
            return ()
        _check_mapping("distinct", distinct, "{'A': 500, ...}")
        if not distinct:
            return ()
        groups = [dict.fromkeys(key[0] if isinstance(key, tuple) and key else key for key in distinct)]
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        raise PlanError(
            f"JoinGraph: classes is {groups!r}; expected groups of inputs", "write classes=[('A', 'B', 'C')]"
        )
    classes = []
    for index, inputs in enumerate(groups):
        if isinstance(inputs, str) or not isinstance(inputs, Collection):
            raise PlanError(f"JoinGraph: classes[{index}] is {inputs!r}; expected a group of inputs, e.g. ('A', 'B')")
        members = tuple(dict.fromkeys(inputs))
        _check_known(f"classes[{index}]", members, names)
        if len(members) < 2:
            raise PlanError(f"JoinGraph: classes[{index}] is {listed(members)}; a common key has at least two inputs")
        classes.append(members)
    return tuple(classes)


def validate_counts(classes: Sequence[Sequence[str]], distinct: Mapping[Any, float]) -> dict[tuple[str, int], float]:
    """Return the distinct count of every input of every class."""
    _check_mapping("distinct", distinct, "{'A': 500, ...}")
    members = [(name, index) for index, inputs in enumerate(classes) for name in inputs]
    counts: dict[tuple[str, int], float] = {}
    for key, value in distinct.items():
        selected = [member for member in members if key in (member, member[0])]
        if not selected:
            class_inputs = sorted({name for name, _ in members})
            raise PlanError(
                f"JoinGraph: distinct[{_shown(key)}] does not name an input of a class; those are {listed(class_inputs)}",
                "the key is 'A', or ('A', 1) for its second class alone",
            )
        if not (_is_real(value) and value >= 1):
            raise PlanError(f"JoinGraph: distinct[{_shown(key)}] is {value!r}; it must be finite and at least 1")
        for member in selected:
            if isinstance(key, tuple) or member not in distinct:
                counts[member] = float(value)
    for name, index in members:
        if (name, index) not in counts:
            raise PlanError(
                f"JoinGraph: {name!r} of classes[{index}] has no distinct count",
                f"add distinct={{({name!r}, {index}): ...}}, or a selectivity between it and another input of the class",
            )
    return {member: counts[member] for member in members}


def require_connected(names: Collection[str], pairs: Collection[frozenset[str]]) -> None:
    """Raise `PlanError` unless `pairs` connect all inputs."""
    first = next(iter(names))
    connected = connected_to(first, pairs)
    unconnected = [name for name in names if name not in connected]
    if unconnected:
        raise PlanError(
            f"JoinGraph: no edge leads from {listed(name for name in names if name in connected)} to {listed(unconnected)}; "
            "the graph must be connected",
            f"add a selectivity, e.g. ({first!r}, {unconnected[0]!r}): 0.1; 1.0 stands for a cross product",
        )


def connected_to(start: str, pairs: Collection[frozenset[str]]) -> set[str]:
    """Return the inputs that `pairs` connect with `start`, including itself."""
    neighbours: dict[str, set[str]] = {}
    for pair in pairs:
        for name in pair:
            neighbours.setdefault(name, set()).update(pair)
    connected, frontier = {start}, [start]
    while frontier:
        new = neighbours.get(frontier.pop(), set()) - connected
        connected |= new
        frontier += new
    return connected


def _check_known(parameter: str, used: Collection[str], names: Collection[str]) -> None:
    if unknown := [name for name in used if name not in names]:
        raise _unknown(parameter, unknown, names)


def _unknown(parameter: str, unknown: Collection[str], names: Collection[str]) -> PlanError:
    return PlanError(f"JoinGraph: {parameter} names {listed(unknown)}; the inputs in rates are {listed(names)}")


def _check_mapping(parameter: str, argument: object, example: str) -> None:
    if not isinstance(argument, Mapping):
        raise PlanError(f"JoinGraph: {parameter} is {argument!r}; expected a mapping", f"write {parameter}={example}")


def _is_real(value: object) -> bool:
    # Unlike `is_number`, this accepts NumPy's integers.
    return type(value) is not bool and isinstance(value, Real) and isfinite(value)


def _shown(key: object) -> str:
    return repr(tuple(sorted(key, key=str))) if isinstance(key, frozenset) else repr(key)
