"""Selectivity hints of the user, by pair of aliases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeAlias

from dovetail.config import is_number
from dovetail.errors import ConfigError

MIN_HINT = 1e-30
Selectivity: TypeAlias = Annotated[float, (MIN_HINT, 1)]
_QUALIFIED = re.compile(r"([A-Za-z_]\w*)\s*\.\s*[A-Za-z_`]")


def hints_for(hints: Mapping[frozenset[str], float], aliases: Iterable[str]) -> dict[frozenset[str], float]:
    """Return the hints whose aliases are both among `aliases`."""
    names = set(aliases)
    return {pair: value for pair, value in hints.items() if pair <= names}


def parse_hint(condition: str, value: float) -> dict[frozenset[str], float]:
    """Return the hint by the pair of aliases that `condition`, such as `i.ad_id = c.ad_id`, names."""
    if not (is_number(value) and MIN_HINT <= value <= 1):
        raise ConfigError(
            f"selectivity({condition!r}, {value!r}): the value must be above 0 and at most 1, and no less than {MIN_HINT:g}"
        )
    pair = frozenset(_QUALIFIED.findall(condition)) if isinstance(condition, str) else frozenset()
    if len(pair) != 2:
        raise ConfigError(
            f"selectivity({condition!r}, ...): it must name two aliases",
            "write it as in the query, e.g. 'i.ad_id = c.ad_id'",
        )
    return {pair: value}
