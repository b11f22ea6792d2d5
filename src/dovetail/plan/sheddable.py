"""Checks that a shedding policy can rank the tuples of a query.

A *common key* is every class of equal columns that includes all aliases of a query. Results of such a query can be counted by key: a
tuple completes one result per combination of tuples with its key in the other windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from dovetail.config import SHEDDING, Shedding
from dovetail.errors import ConfigError, listed
from dovetail.query.model import EqualityClass, JoinQuery

KeyRequirement: TypeAlias = Literal["nothing", "an equality", "a common key"]
MAX_ARRIVAL_INPUTS = 12
"""Maximum number of inputs for the policy `arrival-order`: each input has two to this power of patterns."""
KEY_REQUIREMENTS: Mapping[str, KeyRequirement] = {
    "auto": "nothing",
    "arrival-order": "a common key",
    "frequency": "an equality",
    "frequency-own": "an equality",
    "output": "a common key",
    "random": "nothing",
    "fifo": "nothing",
}
"""Requirement of each policy on every alias."""


def common_key(query: JoinQuery) -> tuple[EqualityClass, ...]:
    """Return the classes of equal columns that include all aliases."""
    return tuple(group for group in query.classes if {key.alias for key in group.keys} == set(query.aliases))


def check_sheddable(query: JoinQuery, shedding: Shedding) -> None:
    """Raise `ConfigError` if the policy cannot shed tuples of a query."""
    subject = f"query {query.name!r} with Shedding(policy={shedding.policy!r})"
    if query.has_count_window:
        raise ConfigError(
            f"{subject}: it has a count window, where shedding a tuple would bring back an older one",
            "use time windows, [RANGE n SECONDS], or leave shedding out",
        )
    requirement = KEY_REQUIREMENTS[shedding.policy]
    hint = f"use policy {listed(name for name in SHEDDING if KEY_REQUIREMENTS[name] == 'nothing')}"
    if requirement == "a common key" and not common_key(query):
        raise ConfigError(f"{subject}: no column is equal in all its aliases, {listed(query.aliases)}", hint)
    if requirement == "an equality":
        keyless = set(query.aliases) - {key.alias for group in query.classes for key in group.keys}
        if keyless:
            raise ConfigError(f"{subject}: no column of {listed(sorted(keyless))} is equal to another's", hint)
    if shedding.policy == "arrival-order" and len(query.aliases) > MAX_ARRIVAL_INPUTS:
        raise ConfigError(
            f"{subject}: it has {len(query.aliases)} aliases; this policy allows at most {MAX_ARRIVAL_INPUTS}", hint
        )
