"""News sites (Kwon, Lee, Kim, example 1): articles that are posted on all of several sites.

An article is posted on some of the sites, once on each. Sites are numbered by prominence, and an article that begins on a prominent
site is more likely to appear on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config import reject_unknown_options
from dovetail.workloads import checks
from dovetail.workloads.columns import Copied, Words
from dovetail.workloads.orders import Order, Orders, all_orders
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import KEY, Appears, Stream, Workload

SECTIONS = ("business", "culture", "politics", "science", "sports", "weather")


@reject_unknown_options
@dataclass(frozen=True)
class News(Scenario):
    """Streams `site1`, `site2`, ... of the articles that each site posts."""

    rate: float = 10.0
    """Articles per second and site, in the mean over sites."""
    arrivals: str = "sinusoid"
    period: float = 3600.0
    lateness_seconds: float = 30.0
    late_by_seconds: float = 60.0
    sites: int = 5
    gap_seconds: float = 20.0
    """Mean time from one site to the next."""
    skew: float = 1.0
    """Zipf's exponent of the orders of sites."""

    def build(self) -> Workload:
        checks.whole("News: sites", self.sites, 2, 7)
        names = tuple(f"site{number}" for number in range(1, self.sites + 1))
        orders = Orders(names, by_prominence(self.sites), self.arrival_process(self.rate), self.skew, self.gap_seconds)
        appears = Appears(orders.with_rate(self.arrival_process(self.rate)))
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
    """Return every order of some sites; long orders that begin at prominent sites come first.

    >>> by_prominence(2)
    ((0, 1), (0,), (1, 0), (1,))
    """
    return tuple(sorted(all_orders(sites), key=lambda order: (order[0] - len(order), order)))
