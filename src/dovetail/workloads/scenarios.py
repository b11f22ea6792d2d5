"""Registry of the ready-made workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail.workloads.ad_funnel import AdFunnel
from dovetail.workloads.drift import Drift
from dovetail.workloads.graphs import Join
from dovetail.workloads.news import News
from dovetail.workloads.overlap import Overlap
from dovetail.workloads.packets import Packets
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.sensors import Sensors
from dovetail.workloads.workload import Workload

SCENARIOS: dict[str, type[Scenario]] = {
    "ad_funnel": AdFunnel,
    "packets": Packets,
    "sensors": Sensors,
    "news": News,
    "join": Join,
    "drift": Drift,
    "overlap": Overlap,
}


def scenario(name: str, **settings: Any) -> Workload:
    """Return a ready-made workload.

    >>> workload = scenario("packets", seed=1, rate=100, routers=3)
    >>> [stream.name for stream in workload.streams]
    ['r1', 'r2', 'r3']
    """
    return scenario_class(name)(**settings).workload


def parse_scenario(name: str, texts: Mapping[str, str]) -> Workload:
    """Return a ready-made workload with settings given as texts."""
    return scenario_class(name).from_texts(f"scenario {name!r}", texts).workload


def scenario_class(name: str) -> type[Scenario]:
    """Return the class of a ready-made workload's settings."""
    if name not in SCENARIOS:
        raise ConfigError.choice("the scenario", name, SCENARIOS)
    return SCENARIOS[name]
