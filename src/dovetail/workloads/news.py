"""News on several sites: which articles were posted on all of them?

Kwon, Lee, Kim, example 1. An article is posted on some of the sites, on each once. Sites are declared from the most prominent on, and
what begins on a prominent one is likelier to be on all.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config import names_checked
from dovetail.workloads import checks
from dovetail.workloads.columns import Copied, Words
from dovetail.workloads.orders import Order, Orders, all_orders
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import KEY, Appears, Stream, Workload

SECTIONS = ("business", "culture", "politics", "science", "sports", "weather")


@names_checked
@dataclass(frozen=True)
class News(Scenario):
    """Sites `site1`, `site2`, ..., each of which posts articles."""

    rate: float = 10.0
    """Articles that a site posts per second, in the mean over sites."""
    arrivals: str = "sinusoid"
    period: float = 3600.0
    lateness_seconds: float = 30.0
    late_by_seconds: float = 60.0
    sites: int = 5
    gap_seconds: float = 20.0
    """From one site to the next, in the mean."""
    skew: float = 1.0
    """Zipf's exponent over orders of sites."""

    def made(self) -> Workload:
        checks.whole("News: sites", self.sites, 2, 7)
        names = tuple(f"site{number}" for number in range(1, self.sites + 1))
        orders = Orders(names, by_prominence(self.sites), self.coming(self.rate), self.skew, self.gap_seconds)
        appears = Appears(orders.rated(self.coming(self.rate)))
        sources = tuple(
            Stream(name, appears, {"article": Copied(KEY), "section": Words(SECTIONS)}, self.delay) for name in names
        )
        seconds = max(1, round(4 * self.gap_seconds * self.sites))
        windows = ", ".join(f"{name} [RANGE {seconds} SECONDS]" for name in names)
        equal = " AND ".join(f"site1.article = {name}.article" for name in names[1:])
        times = ", ".join(f"{name}.ts AS on_{name}" for name in names)
        sql = f"SELECT site1.article AS article, {times} FROM {windows} WHERE {equal}"  # noqa: S608
        return Workload("news", sources, {"on_all": sql}, seed=self.seed)


def by_prominence(sites: int) -> tuple[Order, ...]:
    """Every order of some of the sites, those first that begin early in the list and are long.

    >>> by_prominence(2)
    ((0, 1), (0,), (1, 0), (1,))
    """
    return tuple(sorted(all_orders(sites), key=lambda order: (order[0] - len(order), order)))
