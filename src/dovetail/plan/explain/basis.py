"""The basis of a plan's estimates: rates and selectivities that were declared, assumed or measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Literal, Protocol, TypeAlias

from dovetail._display import name_some
from dovetail.plan.query_plan import DEFAULT_CONDITION, DEFAULT_EQUALITY, DEFAULT_RATE, QueryPlan
from dovetail.schema import StreamSchema

Basis: TypeAlias = Literal["declared", "assumed", "measured"]
_ORDER: tuple[Basis, ...] = ("declared", "assumed", "measured")


class DeclaredStatistics(Protocol):
    """Rates and selectivities that users declared."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]: ...

    @property
    def hints(self) -> Mapping[frozenset[str], float]: ...


def describe_basis(plan: QueryPlan, declared: DeclaredStatistics, *, is_individual: bool) -> dict[str, Any]:
    """Describe the basis of a join's estimates: rates and, in an individual plan, selectivities.

    An entry `is_measured` is true once an engine has planned with its own measurements instead.
    """
    if plan.estimate.is_measured:
        return {"is_measured": True, "rates": {}, "selectivities": []}
    rates = {
        ref.alias: {"per_second": plan.stats.rates[ref.alias], "basis": basis}
        for ref in plan.query.refs
        if (basis := _basis_of_rate(plan.stats.rates.get(ref.alias), declared.streams.get(ref.stream))) is not None
    }
    return {
        "is_measured": False,
        "rates": rates,
        "selectivities": list(_selectivities(plan, declared.hints)) if is_individual else [],
    }


def _basis_of_rate(rate: float | None, stream: StreamSchema | None) -> Basis | None:
    """Return what the rate of an alias rests on; None for a materialized join, whose rate is derived."""
    if rate is None or stream is None:
        return None
    if stream.rate is None:
        return "assumed" if rate == DEFAULT_RATE else "measured"
    return "declared" if rate == stream.rate else "measured"


def _selectivities(plan: QueryPlan, hints: Mapping[frozenset[str], float]) -> Iterable[dict[str, Any]]:
    query, given = plan.query, plan.stats.selectivities
    names = {ref.alias: (ref.alias, ref.stream) for ref in query.refs}
    for pair, value in given.items():
        named = (hints.get(frozenset(two)) for two in product(*(names[alias] for alias in pair)))
        basis: Basis = "declared" if value in named else "measured"
        yield {"of": ", ".join(alias for alias in query.aliases if alias in pair), "value": value, "basis": basis}
    for group in query.classes:
        aliases = {key.alias for key in group.keys}
        if len(aliases) > 1 and not any(pair <= aliases for pair in given):
            equality = " = ".join(str(key.expression) for key in group.keys)
            yield {"of": equality, "value": DEFAULT_EQUALITY, "basis": "assumed"}
    for condition in query.conditions:
        if frozenset(condition.aliases) not in given:
            yield {"of": condition.text, "value": DEFAULT_CONDITION, "basis": "assumed"}


def assumes_rates(basis: Mapping[str, Any]) -> bool:
    """Whether estimates rest on the assumed rate of a stream, so that only their ratios mean something."""
    return basis.get("reads_assumed", False) or any(rate["basis"] == "assumed" for rate in basis["rates"].values())


def mark_dependent_joins(joins: Iterable[dict[str, Any]]) -> None:
    """Mark the joins that read a materialized join whose rate may follow from an assumed one."""
    bases = [(join["basis"], len(join["inputs"])) for join in joins if "basis" in join]
    if any(assumes_rates(basis) for basis, _ in bases):
        for basis, inputs in bases:
            if len(basis["rates"]) < inputs and not basis["is_measured"]:
                basis["reads_assumed"] = True


def basis_lines(basis: Mapping[str, Any]) -> list[str]:
    """Return a line each about what was declared, assumed and measured, but for the streams' own lines."""
    if basis["is_measured"]:
        return ["measured: rates and selectivities"]
    lines = []
    for kind in _ORDER:
        rates: dict[float, list[str]] = {}
        for alias, rate in basis["rates"].items():
            if rate["basis"] == kind != "declared":
                rates.setdefault(rate["per_second"], []).append(alias)
        parts = [f"rate {rate:.4g}/s of {name_some(aliases)}" for rate, aliases in rates.items()]
        chosen: dict[float, list[str]] = {}
        for entry in basis["selectivities"]:
            if entry["basis"] == kind:
                chosen.setdefault(entry["value"], []).append(entry["of"])
        parts += [f"selectivity {value:.3g} of {' and '.join(texts)}" for value, texts in chosen.items()]
        if parts:
            lines.append(f"{kind}: {'; '.join(parts)}")
    return lines
