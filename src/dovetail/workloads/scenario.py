"""What all ready-made workloads have in common: a frozen set of plain settings, and the workload that follows from it.

Settings are numbers, texts and booleans, so that a command line, an option of a Spark source and a keyword say the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from typing import Any, get_type_hints

from dovetail.errors import ConfigError, listed
from dovetail.workloads import checks
from dovetail.workloads.arrivals import Arrivals
from dovetail.workloads.delays import Delay
from dovetail.workloads.workload import Workload

_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class Scenario(ABC):
    """Settings of a ready-made workload."""

    seed: int = 0
    rate: float = 1000.0
    """Tuples per second of event time; each scenario says of what."""
    arrivals: str = "poisson"
    """How tuples come: uniform, poisson, fast-slow, slow-fast, sinusoid or b-model."""
    period: float = 60.0
    """Seconds after which that repeats."""
    bias: float = 0.8
    """Of the b-model: the share of the tuples in one half of any span."""
    turned: bool = False
    """Of the b-model: whether chance says which half that is, instead of the first one."""
    lateness_seconds: float = 5.0
    """Seconds that streams should allow for; tuples are out of order by less, a fifth of it in the mean."""
    late_share: float = 0.0005
    """Of tuples that arrive later than that."""
    late_by_seconds: float = 20.0
    """Seconds, once to twice as many, by which they do."""

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(f"{type(self).__name__}: {each.name}", getattr(self, each.name), type(each.default))
        _ = self.workload  # its parts check the rest

    @cached_property
    def workload(self) -> Workload:
        """The workload that these settings make."""
        return self.made()

    @abstractmethod
    def made(self) -> Workload:
        """Make the workload."""

    @property
    def delay(self) -> Delay:
        """How tuples are delayed."""
        return Delay(self.lateness_seconds / 5, self.lateness_seconds, self.late_share, self.late_by_seconds)

    def coming(self, rate: float) -> Arrivals:
        """How tuples come, so many per second."""
        return Arrivals(rate, self.arrivals, self.period, self.bias, self.turned)

    @classmethod
    def parsed(cls, place: str, texts: Mapping[str, str]) -> Scenario:
        """Make a scenario of settings that are given as texts."""
        kinds = get_type_hints(cls)
        known = [each.name for each in fields(cls)]
        for name in texts:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else None
                raise ConfigError(f"{place}: there is no setting {name!r}; allowed: {listed(known)}", hint)
        return cls(**{name: _value(f"{place}: {name}", text, kinds[name]) for name, text in texts.items()})


def _value(place: str, text: str, kind: type) -> Any:
    if kind is bool:
        checks.one_of(place, text.lower(), _TRUTHS)
        return _TRUTHS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{place} is {text!r}; it must be {what}") from None


def _check(place: str, value: object, kind: type) -> None:
    """Refuse a value of another type than the default's; a whole number is a number."""
    if isinstance(value, kind if kind is not float else int | float) and (kind is bool or not isinstance(value, bool)):
        return
    what = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}[kind]
    raise ConfigError(f"{place} is {value!r}; it must be {what}")
