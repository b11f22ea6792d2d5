"""Packets through routers along a network path: which passed all of them, and how long did it take?

Kwon, Lee, Kim, example 2. Packets enter at one end or in the middle and go on in one direction, so that one that is first seen at an
end is likelier to pass all routers. Each packet has a number of its own, and is seen once by a router.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config import names_checked
from dovetail.workloads import checks
from dovetail.workloads.columns import Copied, Uniform, Zipf
from dovetail.workloads.orders import Order, Orders
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import KEY, Appears, Stream, Workload


@names_checked
@dataclass(frozen=True)
class Packets(Scenario):
    """Routers `r1`, `r2`, ... along a path, each of which reports the packets that pass."""

    rate: float = 1000.0
    """Packets that a router sees per second, in the mean over routers."""
    arrivals: str = "b-model"
    turned: bool = True
    lateness_seconds: float = 1.0
    late_by_seconds: float = 5.0
    routers: int = 4
    hop_seconds: float = 0.05
    """From one router to the next, in the mean."""
    skew: float = 1.0
    """Zipf's exponent over routes, of which the longest are the likeliest."""

    def made(self) -> Workload:
        checks.whole("Packets: routers", self.routers, 2, 16)
        names = tuple(f"r{number}" for number in range(1, self.routers + 1))
        orders = Orders(names, routes(self.routers), self.coming(self.rate), self.skew, self.hop_seconds)
        appears = Appears(orders.rated(self.coming(self.rate)))
        columns = {"pid": Copied(KEY), "size": Uniform(1500), "destination": Zipf(1 << 16, 0.8)}
        sources = tuple(Stream(name, appears, columns, self.delay) for name in names)
        seconds = max(1, round(20 * self.hop_seconds * self.routers))
        first, last = names[0], names[-1]
        windows = ", ".join(f"{name} [RANGE {seconds} SECONDS]" for name in names)
        equal = " AND ".join(f"{first}.pid = {name}.pid" for name in names[1:])
        sql = f"SELECT {first}.pid AS pid, {last}.ts - {first}.ts AS taken FROM {windows} WHERE {equal}"  # noqa: S608
        return Workload("packets", sources, {"passed_all": sql}, seed=self.seed)


def routes(routers: int) -> tuple[Order, ...]:
    """Every stretch of a path, in both directions, the longest first.

    >>> routes(3)
    ((0, 1, 2), (2, 1, 0), (0, 1), (1, 0), (1, 2), (2, 1), (0,), (1,), (2,))
    """
    found: list[Order] = []
    for length in range(routers, 0, -1):
        for first in range(routers - length + 1):
            stretch = tuple(range(first, first + length))
            found += dict.fromkeys((stretch, stretch[::-1]))
    return tuple(found)
