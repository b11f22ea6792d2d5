"""Shareable prefixes: the parts of probe paths that a probe tree can run once for several joins.

The paths are those of one stream's new tuples. The *shareable prefix* of a path is the part that other paths can share: from the new
tuples on, as long as windows are probed by hash and no condition over several windows is checked in between. Its *shared prefix* is
the part that another path begins with, too. Filters and window lengths differ between queries without ending the prefix: they clear
the query's bit of a partial match. Prefixes are derived from the steps of a plan, which does not store them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from dovetail.plan.needs import KeyId, column_name, key_id
from dovetail.plan.query_plan import ProbePath
from dovetail.plan.steps import JoinStep
from dovetail.query.model import JoinQuery, TimeWindow


class Probe(NamedTuple):
    """A stage of a shareable prefix: equal probes after equal stages are done once."""

    stream: str
    """The stream whose window is probed."""
    key: KeyId
    key_values: tuple[tuple[int, str], ...]
    """For each part of the key: the stage whose tuple has the value (0 for the driver), and the value's name there."""
    sources: tuple[str, ...]
    """The streams of these tuples."""
    old: bool
    """Whether the probe skips new tuples: the window is that of the driver's stream, under a later alias."""


ShareablePrefix: TypeAlias = tuple[Probe, ...]
"""The stages after the new tuples."""
MIN_SAVED_STAGES = 8
"""Minimum number of stages that a probe tree must save, new tuples included: a stage in a tree costs a little more."""
PathName: TypeAlias = tuple[str, str]
"""A step, and the driver of one of its paths."""


def shareable_prefix(query: JoinQuery, path: ProbePath) -> ShareablePrefix:
    """Return the part of a path that can be shared.

    It is empty for joins that read materialized joins or count windows.
    """
    if not all(isinstance(ref.window, TimeWindow) for ref in query.refs):
        return ()
    if path.stages[0].access != "new" or path.stages[0].conditions:
        return ()
    refs = {ref.alias: (position, ref.stream) for position, ref in enumerate(query.refs)}
    depths = {alias: depth for depth, alias in enumerate(path.order)}
    driver_position, driver_stream = refs[path.driver]
    probes = []
    for stage in path.stages[1:]:
        if stage.access != "hash":
            break
        key_values = tuple((depths[part.source.alias], column_name(part.source.expression)) for part in stage.key)
        position, stream = refs[stage.alias]
        sources = tuple(refs[part.source.alias][1] for part in stage.key)
        skips_new = stream == driver_stream and position > driver_position
        probes.append(Probe(stream, key_id(stage), key_values, sources, skips_new))
        if stage.conditions:
            break  # conditions are checked per join
    return tuple(probes)


def shareable_prefixes(steps: Iterable[JoinStep]) -> dict[str, dict[PathName, ShareablePrefix]]:
    """Return the shareable prefixes of all paths by stream, where sharing pays off (see `group_prefixes`)."""
    return group_prefixes(
        (step.plan.query.ref(path.driver).stream, (step.name, path.driver), shareable_prefix(step.plan.query, path))
        for step in steps
        for path in step.plan.paths
    )


def group_prefixes(
    paths: Iterable[tuple[str, PathName, ShareablePrefix]],
) -> dict[str, dict[PathName, ShareablePrefix]]:
    """Group prefixes by stream; omit empty prefixes, and streams whose paths share too few stages."""
    by_stream: dict[str, dict[PathName, ShareablePrefix]] = {}
    for stream, name, prefix in paths:
        if prefix:
            by_stream.setdefault(stream, {})[name] = prefix
    return {stream: prefixes for stream, prefixes in by_stream.items() if _is_worth_sharing(prefixes)}


def can_share(paths: Sequence[tuple[str, int]]) -> bool:
    """Whether paths of one stream could share enough stages in some orders.

    Each path is given as its step and number of inputs.
    """
    lengths = [inputs for _, inputs in paths]
    return len({step for step, _ in paths}) > 1 and sum(lengths) - max(lengths) >= MIN_SAVED_STAGES


def _is_worth_sharing(prefixes: Mapping[PathName, ShareablePrefix]) -> bool:
    stages = sum(1 + len(prefix) for prefix in prefixes.values())
    distinct = {prefix[:length] for prefix in prefixes.values() for length in range(len(prefix) + 1)}
    return len({step for step, _ in prefixes}) > 1 and stages - len(distinct) >= MIN_SAVED_STAGES


def sharing_steps(prefixes: Mapping[PathName, ShareablePrefix]) -> dict[PathName, list[list[str]]]:
    """Return, by path and stage of its prefix, the other steps that share the stage.

    The paths are those of one stream.
    """
    users: dict[ShareablePrefix, dict[str, None]] = {}
    for (step, _), prefix in prefixes.items():
        for length in range(1, len(prefix) + 1):
            users.setdefault(prefix[:length], {})[step] = None
    return {
        (step, driver): [
            sorted(other for other in users[prefix[:length]] if other != step) for length in range(1, len(prefix) + 1)
        ]
        for (step, driver), prefix in prefixes.items()
    }
