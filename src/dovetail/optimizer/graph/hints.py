"""Selectivity hints of the user, by pair of aliases or streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Annotated, TypeAlias

from dovetail.config import is_number
from dovetail.errors import ConfigError, QueryError
from dovetail.query.binder import check_column
from dovetail.query.model import StreamRef
from dovetail.schema import StreamSchema

MIN_HINT = 1e-30
Selectivity: TypeAlias = Annotated[float, (MIN_HINT, 1)]
_NAME = r"([A-Za-z_]\w*|`[^`]+`)"
_QUALIFIED = re.compile(rf"{_NAME}\s*\.\s*{_NAME}")


def hints_for(hints: Mapping[frozenset[str], float], refs: Iterable[StreamRef]) -> dict[frozenset[str], float]:
    """Return the hints that apply to a query, by pair of its aliases.

    A name that is no alias of the query is the name of a stream, and means all aliases of that stream. A hint that names both aliases
    of a pair precedes those that name streams.
    """
    by_name: dict[str, list[str]] = {ref.alias: [ref.alias] for ref in refs}
    streams: dict[str, list[str]] = {}
    for ref in refs:
        streams.setdefault(ref.stream, []).append(ref.alias)
    names, chosen = {**streams, **by_name}, dict[frozenset[str], float]()
    for pair, value in sorted(hints.items(), key=lambda item: len(item[0] & by_name.keys())):
        first, second = (names.get(name, []) for name in sorted(pair))
        chosen |= {frozenset(aliases): value for aliases in product(first, second) if len(set(aliases)) == 2}
    return chosen


def parse_hint(condition: str, value: float, streams: Mapping[str, StreamSchema]) -> dict[frozenset[str], float]:
    """Return the hint by the pair of aliases or streams that `condition` names; check its columns.

    An example is `i.ad_id = c.ad_id`. A name that is no stream is an alias of any stream, by queries to come.
    """
    if not (is_number(value) and MIN_HINT <= value <= 1):
        raise ConfigError(
            f"selectivity({condition!r}, {value!r}): the value must be above 0 and at most 1, and no less than {MIN_HINT:g}"
        )
    matches = list(_QUALIFIED.finditer(condition)) if isinstance(condition, str) else []
    pair = frozenset(match[1].strip("`") for match in matches)
    if len(pair) != 2:
        raise ConfigError(
            f"selectivity({condition!r}, ...): it must name two aliases or streams",
            "write it as in the query, e.g. 'i.ad_id = c.ad_id'",
        )
    for match in matches:
        try:
            check_column(match[1].strip("`"), match[2].strip("`"), streams)
        except QueryError as error:
            start, end = match.span()
            raise QueryError(error.message, error.hint, sql=condition, start=start, end=end) from None
    return {pair: value}
