"""Sensors in a building: readings at many locations, and smoke that spreads from room to room.

Three queries from the papers:

- `same_place`: temperature and humidity at one location within 60 seconds, Alrahmani's query 1 as printed;
- `same_room`: a smoke sensor of a bedroom compared with all other sensors of that room, Q1 of Raghavan et al.: a clique;
- `smoke_path`: the path of smoke from the bedroom through the building, Q2: each room has a router that aggregates its sensors, and
  the routers of rooms with a door between them are joined on the smoke level at that door: a tree, like the floor plan.

Smoke rises and falls in waves. Readings follow it with noise, and with a delay that grows with the distance from the fire.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.config import reject_unknown_options
from dovetail.workloads import checks
from dovetail.workloads.arrivals import Reals
from dovetail.workloads.columns import GeneratedColumn, Uniform, Values, Words
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import Stream, Workload

DOORS = (("bedroom1", "hall"), ("hall", "bedroom2"), ("hall", "living"), ("living", "kitchen"), ("living", "entry"))
"""Doors of the building, which form a tree; the fire is in the first room."""
_SPREAD = 20.0
"""Time that smoke takes from one room to the next, in seconds."""
_WAVE = 300.0
"""Time from one wave of smoke to the next, in seconds."""
QUERY_1 = """Select *
From Temperature T, Humidity H [Range 60 sec]
Where T.locationID = H.locationID"""


@dataclass(frozen=True)
class Level(GeneratedColumn):
    """Smoke level from 0 to below `levels`: a wave delayed by `behind` seconds, with noise."""

    levels: int
    behind: float = 0.0
    noise: float = 0.05

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        smoke = 0.5 + 0.4 * np.sin(2 * np.pi * (seconds - self.behind) / _WAVE)
        read = smoke + rng.normal(0, self.noise, len(seconds))
        return np.clip(read * self.levels, 0, self.levels - 1).astype(np.int64)


@dataclass(frozen=True)
class Reading(GeneratedColumn):
    """Measured value, normally distributed, with one decimal."""

    type: ClassVar[pa.DataType] = pa.float64()
    mean: float
    deviation: float

    def draw(self, rng: np.random.Generator, seconds: Reals) -> Values:
        return np.round(rng.normal(self.mean, self.deviation, len(seconds)), 1)


@reject_unknown_options
@dataclass(frozen=True)
class Sensors(Scenario):
    """Streams `Temperature`, `Humidity`, smoke sensors `smoke1`, `smoke2`, ..., and a router per room."""

    rate: float = 200.0
    """Readings per second of `Temperature` and of `Humidity`; a smoke sensor or a router reports a fiftieth as often."""
    arrivals: str = "uniform"
    lateness_seconds: float = 2.0
    late_by_seconds: float = 10.0
    locations: int = 5000
    smoke_sensors: int = 5
    levels: int = 100
    """Number of smoke levels that sensors and routers report."""

    def build(self) -> Workload:
        checks.whole("Sensors: smoke_sensors", self.smoke_sensors, 2, 16)
        checks.whole("Sensors: levels", self.levels, 2)
        location = Uniform(self.locations)
        climate = {"Temperature": Reading(21, 2), "Humidity": Reading(45, 8)}
        frequent, rare = self.arrival_process(self.rate), self.arrival_process(self.rate / 50)
        sources = [
            Stream(name, frequent, {"locationID": location, "value": value}, self.delay)
            for name, value in climate.items()
        ]
        smoke = [f"smoke{number}" for number in range(1, self.smoke_sensors + 1)]
        for number, name in enumerate(smoke):
            # The last sensor is faulty: its noise hides most of the signal.
            noise = 0.3 if number == len(smoke) - 1 else 0.02 * (number + 1)
            columns = {"sid": Words((name,)), "level": Level(self.levels, noise=noise)}
            sources.append(Stream(name, rare, columns, self.delay))
        sources += [Stream(room, rare, self._doors_of(room), self.delay) for room in ROOMS]
        queries = {"same_place": QUERY_1, "same_room": _same_room(smoke), "smoke_path": _smoke_path()}
        return Workload(
            "sensors", tuple(sources), queries, {"T.locationID = H.locationID": 1 / self.locations}, self.seed
        )

    def _doors_of(self, room: str) -> dict[str, GeneratedColumn]:
        """Return the smoke level at each door of a room, delayed by the nearer room's distance from the fire."""
        return {
            f"door_{other}": Level(self.levels, _SPREAD * min(ROOMS[room], ROOMS[other]))
            for door in DOORS
            if room in door
            for other in door
            if other != room
        }


def _distances() -> dict[str, int]:
    distances = {DOORS[0][0]: 0}
    for near, far in DOORS:
        distances[far] = distances[near] + 1
    return distances


ROOMS = _distances()
"""By room: the number of doors between it and the fire."""


def _same_room(sensors: list[str]) -> str:
    windows = ", ".join(f"{name} [RANGE 5 SECONDS]" for name in sensors)
    equalities = " AND ".join(f"{a}.level = {b}.level" for a, b in combinations(sensors, 2))
    times = ", ".join(f"{name}.ts AS {name}_ts" for name in sensors)
    return f"SELECT {sensors[0]}.level AS level, {times} FROM {windows} WHERE {equalities}"  # noqa: S608


def _smoke_path() -> str:
    windows = ", ".join(f"{room} [RANGE 5 SECONDS]" for room in ROOMS)
    equalities = " AND ".join(f"{near}.door_{far} = {far}.door_{near}" for near, far in DOORS)
    times = ", ".join(f"{room}.ts AS {room}_ts" for room in ROOMS)
    return f"SELECT {times} FROM {windows} WHERE {equalities}"  # noqa: S608
