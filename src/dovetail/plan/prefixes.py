"""Which stages probe paths have in common: paths of one stream's new tuples that begin alike are probed once, as far as they do.

The *stem* of a path is the part of it that can be shared: from its new tuples on, as long as windows are probed by hash and nothing is
checked in between that is not a matter of one window's rows. What differs between queries without being part of a stem, filters and
the lengths of windows, clears the query's bit of a partial match and does not end what is shared. Stems follow from a plan's steps, so
a plan says nothing of them: the engine and `explain` ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from dovetail.plan.needs import KeyId, key_id, stored_name
from dovetail.plan.query_plan import ProbePath
from dovetail.plan.steps import JoinStep
from dovetail.query.model import JoinQuery, TimeWindow


class Probe(NamedTuple):
    """A stage of a stem: equal ones, after equal stages, are one."""

    stream: str
    """Whose window is met."""
    key: KeyId
    wanted: tuple[tuple[int, str], ...]
    """For each part of the key the stage whose tuple has the value, the driver's being 0, and the value's name there."""
    sources: tuple[str, ...]
    """The streams of these tuples."""
    old: bool
    """Whether only rows from before the new tuples are met: their own stream's, under an alias after the driver's."""


Stem: TypeAlias = tuple[Probe, ...]
"""The stages after the new tuples."""
LEAST_SAVED = 8
"""Stages, new tuples included, that a tree has to spare a stream's paths: a stage of a tree costs a little more than another."""
PathName: TypeAlias = tuple[str, str]
"""A step, and the driver of one of its paths."""


def stem(query: JoinQuery, path: ProbePath) -> Stem:
    """Give what can be shared of a path of a join; nothing of joins that read stored matches or wait for watermarks."""
    if not all(isinstance(ref.window, TimeWindow) for ref in query.refs):
        return ()
    if path.stages[0].access != "new" or path.stages[0].conditions:
        return ()
    refs = {ref.alias: (place, ref.stream) for place, ref in enumerate(query.refs)}
    depths = {alias: depth for depth, alias in enumerate(path.order)}
    place, stream = refs[path.driver]
    found = []
    for stage in path.stages[1:]:
        if stage.access != "hash":
            break
        wanted = tuple((depths[part.source.alias], stored_name(part.source.expression)) for part in stage.key)
        own, met = refs[stage.alias]
        sources = tuple(refs[part.source.alias][1] for part in stage.key)
        found.append(Probe(met, key_id(stage), wanted, sources, met == stream and own > place))
        if stage.conditions:
            break  # they are checked of the join's own partial matches
    return tuple(found)


def stems(steps: Iterable[JoinStep]) -> dict[str, dict[PathName, Stem]]:
    """By stream, the stems of the paths that its new tuples take, as far as they are `together`."""
    return together(
        (step.plan.query.ref(path.driver).stream, (step.name, path.driver), stem(step.plan.query, path))
        for step in steps
        for path in step.plan.paths
    )


def together(paths: Iterable[tuple[str, PathName, Stem]]) -> dict[str, dict[PathName, Stem]]:
    """Put the stems of each stream's paths together; left out are paths without one, and where little is shared."""
    found: dict[str, dict[PathName, Stem]] = {}
    for stream, name, shared in paths:
        if shared:
            found.setdefault(stream, {})[name] = shared
    return {stream: paths for stream, paths in found.items() if _are_enough(paths)}


def may_share(paths: Sequence[tuple[str, int]]) -> bool:
    """Whether paths of one stream could share enough, whatever their orders: for each its step, and how many inputs that has."""
    lengths = [inputs for _, inputs in paths]
    return len({step for step, _ in paths}) > 1 and sum(lengths) - max(lengths) >= LEAST_SAVED


def _are_enough(paths: Mapping[PathName, Stem]) -> bool:
    stages = sum(1 + len(whole) for whole in paths.values())
    shared = {whole[:length] for whole in paths.values() for length in range(len(whole) + 1)}
    return len({step for step, _ in paths}) > 1 and stages - len(shared) >= LEAST_SAVED


def sharers(paths: Mapping[PathName, Stem]) -> dict[PathName, list[list[str]]]:
    """For each path of one stream, and each stage of its stem, the other steps that share the stage."""
    users: dict[Stem, dict[str, None]] = {}
    for (step, _), whole in paths.items():
        for length in range(1, len(whole) + 1):
            users.setdefault(whole[:length], {})[step] = None
    return {
        (step, driver): [
            sorted(other for other in users[whole[:length]] if other != step) for length in range(1, len(whole) + 1)
        ]
        for (step, driver), whole in paths.items()
    }
