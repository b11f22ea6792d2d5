"""Network packets (Kwon, Lee, Kim, example 2): which pass all routers of a path, and in what time.

Packets enter at an end or in the middle of the path and continue in one direction, so that a packet first seen at an end is more
likely to pass all routers. Each packet has a unique number, and a router sees it once.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config import reject_unknown_options
from dovetail.workloads import checks
from dovetail.workloads.columns import Copied, Uniform, Zipf
from dovetail.workloads.orders import Order, Orders
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import KEY, Appears, Stream, Workload


@reject_unknown_options
@dataclass(frozen=True)
class Packets(Scenario):
    """Streams `r1`, `r2`, ... of the packets that each router of a path sees."""

    rate: float = 1000.0
    """Packets per second and router, in the mean over routers."""
    arrivals: str = "b-model"
    turned: bool = True
    lateness_seconds: float = 1.0
    late_by_seconds: float = 5.0
    routers: int = 4
    hop_seconds: float = 0.05
    """Mean time from one router to the next."""
    skew: float = 1.0
    """Zipf's exponent of the routes, of which the longest are the most likely."""

    def build(self) -> Workload:
        checks.whole("Packets: routers", self.routers, 2, 16)
        names = tuple(f"r{number}" for number in range(1, self.routers + 1))
        orders = Orders(names, routes(self.routers), self.arrival_process(self.rate), self.skew, self.hop_seconds)
        appears = Appears(orders.with_rate(self.arrival_process(self.rate)))
        columns = {"pid": Copied(KEY), "size": Uniform(1500), "destination": Zipf(1 << 16, 0.8)}
        sources = tuple(Stream(name, appears, columns, self.delay) for name in names)
        seconds = max(1, round(20 * self.hop_seconds * self.routers))
        first, last = names[0], names[-1]
        windows = ", ".join(f"{name} [RANGE {seconds} SECONDS]" for name in names)
        equalities = " AND ".join(f"{first}.pid = {name}.pid" for name in names[1:])
        sql = f"SELECT {first}.pid AS pid, {last}.ts - {first}.ts AS taken FROM {windows} WHERE {equalities}"  # noqa: S608
        return Workload("packets", sources, {"passed_all": sql}, seed=self.seed)


def routes(routers: int) -> tuple[Order, ...]:
    """Return every stretch of a path, in both directions, the longest first.

    >>> routes(3)
    ((0, 1, 2), (2, 1, 0), (0, 1), (1, 0), (1, 2), (2, 1), (0,), (1,), (2,))
    """
    stretches: list[Order] = []
    for length in range(routers, 0, -1):
        for first in range(routers - length + 1):
            stretch = tuple(range(first, first + length))
            stretches += dict.fromkeys((stretch, stretch[::-1]))
    return tuple(stretches)
