"""Base class of the ready-made workloads: frozen plain settings, from which the workload is built.

Settings are numbers, texts and booleans, so that keyword arguments, command lines and options of a Spark source can all express them.
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

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Scenario(ABC):
    """Settings of a ready-made workload."""

    seed: int = 0
    rate: float = 1000.0
    """Tuples per second of event time; the scenario says which tuples."""
    arrivals: str = "poisson"
    """Arrival pattern: uniform, poisson, fast-slow, slow-fast, sinusoid or b-model."""
    period: float = 60.0
    """Seconds after which the pattern repeats."""
    bias: float = 0.8
    """For the b-model: the fraction of the tuples in one half of any span."""
    turned: bool = False
    """For the b-model: whether that half is random instead of the first one."""
    lateness_seconds: float = 5.0
    """Declared lateness; tuples are out of order by less, in the mean by a fifth of it."""
    late_share: float = 0.0005
    """Fraction of tuples that are late."""
    late_by_seconds: float = 20.0
    """Late tuples exceed the lateness by one to two times this many seconds."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check(f"{type(self).__name__}: {setting.name}", getattr(self, setting.name), type(setting.default))
        _ = self.workload  # building it checks the rest

    @cached_property
    def workload(self) -> Workload:
        """The workload with these settings."""
        return self.build()

    @abstractmethod
    def build(self) -> Workload:
        """Build the workload."""

    @property
    def delay(self) -> Delay:
        """Delay of the tuples of all streams."""
        return Delay(self.lateness_seconds / 5, self.lateness_seconds, self.late_share, self.late_by_seconds)

    def arrival_process(self, rate: float) -> Arrivals:
        """Return the arrival process with these settings and a rate per second."""
        return Arrivals(rate, self.arrivals, self.period, self.bias, self.turned)

    @classmethod
    def from_texts(cls, where: str, texts: Mapping[str, str]) -> Scenario:
        """Return a scenario with settings given as texts; errors begin with `where`."""
        kinds = get_type_hints(cls)
        names = [setting.name for setting in fields(cls)]
        for name in texts:
            if name not in names:
                close = get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else None
                raise ConfigError(f"{where}: there is no setting {name!r}; allowed: {listed(names)}", hint)
        return cls(**{name: _value(f"{where}: {name}", text, kinds[name]) for name, text in texts.items()})


def _value(where: str, text: str, kind: type) -> Any:
    if kind is bool:
        checks.one_of(where, text.lower(), _BOOLEANS)
        return _BOOLEANS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{where} is {text!r}; it must be {what}") from None


def _check(where: str, value: object, kind: type) -> None:
    """Refuse a value of another type than the default, except for an int instead of a float."""
    if isinstance(value, kind if kind is not float else int | float) and (kind is bool or not isinstance(value, bool)):
        return
    what = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}[kind]
    raise ConfigError(f"{where} is {value!r}; it must be {what}")
