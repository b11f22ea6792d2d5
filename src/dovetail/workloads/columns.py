"""Column generators: one class per distribution, each vectorised over many tuples.

A column first draws plain numbers, which streams that follow this one may copy, and converts them to an Arrow array at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ConfigError
from dovetail.workloads import checks
from dovetail.workloads.arrivals import Reals

Values: TypeAlias = NDArray[Any]


@lru_cache(maxsize=64)
def zipf_chances(count: int, exponent: float) -> Reals:
    """Return the probabilities of ranks by Zipf's law: that of rank n is proportional to n ** -exponent.

    >>> zipf_chances(3, 1.0).round(3).tolist()
    [0.545, 0.273, 0.182]
    """
    chances: Reals = np.asarray(1.0 / np.arange(1, count + 1) ** exponent, np.float64)
    chances /= chances.sum()
    chances.flags.writeable = False
    return chances


class GeneratedColumn(ABC):
    """A column of a generated stream."""

    type: ClassVar[pa.DataType] = pa.int64()

    @abstractmethod
    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        """Draw one number per tuple; `seconds` are their event times since the start."""

    def finish(self, values: Values) -> pa.Array:
        """Convert drawn numbers to an Arrow array of the column's type."""
        return pa.array(values, self.type)


@dataclass(frozen=True)
class Uniform(GeneratedColumn):
    """Integers from 0 to below `values`, all equally likely: two tuples match with chance 1 / values."""

    values: int

    def __post_init__(self) -> None:
        checks.whole("Uniform: values", self.values, 1)

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        return rng.integers(0, self.values, len(seconds))


@dataclass(frozen=True)
class Zipf(GeneratedColumn):
    """Integers from 0 to below `values`, where n has a probability proportional to (n + 1) ** -exponent."""

    values: int
    exponent: float = 1.0

    def __post_init__(self) -> None:
        checks.whole("Zipf: values", self.values, 1, 1 << 27)
        checks.within("Zipf: exponent", self.exponent, 0)

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        return np.searchsorted(_zipf_bounds(self.values, self.exponent), rng.random(len(seconds)), side="right")


@lru_cache(maxsize=16)
def _zipf_bounds(values: int, exponent: float) -> Reals:
    """Return the upper bounds of all values but the last, as cumulative probabilities."""
    return np.cumsum(zipf_chances(values, exponent))[:-1]


@dataclass(frozen=True)
class Normal(GeneratedColumn):
    """Integers, normally distributed and rounded."""

    mean: float = 100.0
    deviation: float = 5.0

    def __post_init__(self) -> None:
        checks.above("Normal: deviation", self.deviation)

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        return np.rint(rng.normal(self.mean, self.deviation, len(seconds))).astype(np.int64)


@dataclass(frozen=True)
class Matching(GeneratedColumn):
    """Integers of which any two are equal with probability `selectivity`.

    The column has the fewest values n that allow this, all equally likely except the first, whose probability q solves
    q^2 + (1 - q)^2 / (n - 1) = selectivity.
    """

    selectivity: float

    def __post_init__(self) -> None:
        checks.within("Matching: selectivity", self.selectivity, 1e-15, 1)

    @property
    def values(self) -> int:
        """Number of values."""
        return ceil(1 / self.selectivity - 1e-9)

    @property
    def first(self) -> float:
        """Probability of the first value."""
        count = self.values
        return (1 + sqrt(max(0.0, (count - 1) * (count * self.selectivity - 1)))) / count

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        other = rng.integers(1, max(2, self.values), len(seconds))
        return np.where(rng.random(len(seconds)) < self.first, 0, other)


@dataclass(frozen=True)
class Amounts(GeneratedColumn):
    """Prices: lognormally distributed, with two decimals."""

    type: ClassVar[pa.DataType] = pa.float64()
    mean: float = 3.0
    """Mean of the logarithm."""
    deviation: float = 1.0

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        return np.round(rng.lognormal(self.mean, self.deviation, len(seconds)), 2)


@dataclass(frozen=True)
class Words(GeneratedColumn):
    """Texts from a list, all equally likely."""

    type: ClassVar[pa.DataType] = pa.string()
    words: tuple[str, ...]

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        return rng.integers(0, len(self.words), len(seconds))

    def finish(self, values: Values) -> pa.Array:
        return pa.array(self.words).take(pa.array(values))


@dataclass(frozen=True)
class Switch(GeneratedColumn):
    """One column until `at`, in seconds since the start, and another from then on."""

    before: GeneratedColumn
    after: GeneratedColumn
    at: float

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        early = self.before.draw(rng, seconds)
        return np.where(seconds < self.at, early, self.after.draw(rng, seconds))


@dataclass(frozen=True)
class Copied(GeneratedColumn):
    """Copies of column `name` of the followed tuple, or, as `Copied("key")`, of the key that appears."""

    name: str

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:  # noqa: ARG002
        raise ConfigError(
            f"column Copied({self.name!r}) of a stream that follows no other", "use it with Follows or with Appears"
        )
