"""What was computed, counted and timed of the joins of Golab and Özsu, by experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from experiments.golab import Point
from experiments.significance import TINY, Band, Numbers

Results: TypeAlias = Mapping[Point, Mapping[str, Any]]
PRINTED = 0.005
"""By how much our number may differ from a printed one."""
NEAR = 0.05
"""What “nearly”, “good” and “as good as” allow."""
ROUGHLY = 0.2
EQUAL: Band = (1 - TINY, 1 + TINY)


def settings(results: Results, experiment: str) -> list[int]:
    """What an experiment was run for: numbers of streams, or tau."""
    return sorted({point.x for point in results if point.experiment == experiment})


def one(results: Results, experiment: str, x: int) -> Mapping[str, Any]:
    """A result that does not depend on the draw."""
    return next(result for point, result in results.items() if (point.experiment, point.x) == (experiment, x))


def drawn(results: Results, experiment: str, x: int, *path: str) -> Numbers:
    """A number of each draw, and how to get to it."""
    found: list[Any] = [result for point, result in results.items() if (point.experiment, point.x) == (experiment, x)]
    for step in path:
        found = [each[step] for each in found]
    return np.array(found)


def random_streams(results: Results, experiment: str, name: str) -> Numbers:
    """A number of all random streams of an experiment."""
    return np.concatenate([one(results, experiment, x)[name] for x in settings(results, experiment)])
