"""Which queries a shedding policy can judge the tuples of, and by which keys.

A *common key* is every class of equal columns that all aliases of a query are in. Results of such a query are counted by key: a tuple
completes as many as there are combinations of tuples with its key in the other windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from dovetail.config import SHEDDING, Shedding
from dovetail.errors import ConfigError, listed
from dovetail.query.model import EqualityClass, JoinQuery

Asks: TypeAlias = Literal["nothing", "an equality", "a common key"]
MOST_INPUTS = 12
"""Inputs of a query whose arrival orders are told apart: there are two to this power of patterns for each."""
ASKS: Mapping[str, Asks] = {
    "auto": "nothing",
    "arrival-order": "a common key",
    "frequency": "an equality",
    "frequency-own": "an equality",
    "output": "a common key",
    "random": "nothing",
    "fifo": "nothing",
}
"""By policy: what every alias must have."""


def common_key(query: JoinQuery) -> tuple[EqualityClass, ...]:
    """The classes of equal columns that all aliases are in."""
    return tuple(each for each in query.classes if {key.alias for key in each.keys} == set(query.aliases))


def check_sheddable(query: JoinQuery, shedding: Shedding) -> None:
    """Refuse a query whose tuples cannot be shed, or not by this policy."""
    place = f"query {query.name!r} with Shedding(policy={shedding.policy!r})"
    if query.has_count_window:
        raise ConfigError(
            f"{place}: it has a count window, which holds as many tuples as it says: a tuple that is shed would bring back one that "
            "had left",
            "use time windows, [RANGE n SECONDS], or leave shedding out",
        )
    asks, others = ASKS[shedding.policy], [name for name in SHEDDING if ASKS[name] == "nothing"]
    hint = f"use policy {listed(others)}"
    if asks == "a common key" and not common_key(query):
        raise ConfigError(f"{place}: no column is equal in all its aliases, {listed(query.aliases)}", hint)
    if asks == "an equality":
        bare = set(query.aliases) - {key.alias for each in query.classes for key in each.keys}
        if bare:
            raise ConfigError(f"{place}: no column of {listed(sorted(bare))} is equal to another's", hint)
    if shedding.policy == "arrival-order" and len(query.aliases) > MOST_INPUTS:
        raise ConfigError(
            f"{place}: it has {len(query.aliases)} aliases; arrival orders are told apart for at most {MOST_INPUTS}",
            hint,
        )
