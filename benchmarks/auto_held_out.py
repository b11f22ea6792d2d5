"""How close `auto` comes to the best policy on settings that it was not shaped on.

`python benchmarks/auto_held_out.py` runs 16 written settings with three seeds each; with `drawn 2026` behind it, it runs 200 settings
that are drawn with that seed. The generator is that of `make reproduce PAPER=kwon`, with other seeds and values.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine import save

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.kwon import POLICIES, Grid, Point, run_point

GRID = Grid(seed=7919)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"memory": 150},
    {"memory": 350},
    {"memory": 700, "gap": 12.0},
    {"skew": 0.3, "gap": 8.0},
    {"skew": 0.8, "gap": 15.0},
    {"skew": 1.3, "gap": 30.0},
    {"skew": 1.7, "gap": 70.0, "orders": 12},
    {"orders": 5, "gap": 40.0},
    {"orders": 50, "gap": 10.0, "skew": 0.5},
    {"streams": 3, "memory": 200, "gap": 25.0},
    {"streams": 4, "memory": 250, "rate": 20.0},
    {"streams": 6, "memory": 800, "gap": 3.0},
    {"streams": 2, "memory": 300, "gap": 60.0},
    {"streams": 3, "memory": 30, "variance": 60.0},
    {"streams": 3, "memory": 70, "variance": 400.0},
    {"streams": 2, "memory": 40, "variance": 3000.0},
)


def drawn_settings(seed: int, count: int = 200) -> list[dict[str, Any]]:
    """Draw settings: two thirds have keys that occur at most once in each stream, the others keys of a normal distribution."""
    rng = random.Random(seed)  # noqa: S311 - settings are no secret
    settings: list[dict[str, Any]] = []
    for _ in range(count):
        streams = rng.choice((2, 3, 4, 5, 6))
        if rng.random() < 1 / 3:
            variance = round(10 ** rng.uniform(1.2, 5), 1)
            streams = min(3, streams)
            settings.append({"streams": streams, "memory": rng.randrange(25, 120), "variance": variance})
            continue
        rate = rng.choice((5.0, 10.0, 15.0, 20.0))
        memory = int(rng.uniform(0.08, 0.7) * 100 * rate)
        gap = round(10 ** rng.uniform(0, 1.9), 1)
        skew = rng.choice((0.0, round(rng.uniform(0.2, 2), 2)))
        orders = rng.choice((0, 0, rng.randrange(3, 60)))
        settings.append(
            {"streams": streams, "rate": rate, "memory": memory, "gap": gap, "skew": skew, "orders": orders}
        )
    return settings


def shares_of(number: int, setting: Mapping[str, Any], seeds: int) -> dict[str, float]:
    """Return the share of all results that each policy keeps, the median over seeds."""
    shares: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for seed in range(seeds):
        figure = "10" if "variance" in setting else "held-out"
        found = run_point(Point(figure, float(number), 1000 + seed, **setting), GRID, dead_keys_first=True)
        for policy, each in found["policies"].items():
            shares[policy].append(each["results"] / max(1, found["all"]))
    return {policy: float(np.median(each)) for policy, each in shares.items()}


def main() -> None:
    """Measure, print and keep."""
    draws = int(sys.argv[2]) if sys.argv[1:2] == ["drawn"] else None
    settings = SETTINGS if draws is None else drawn_settings(draws)
    runs = list[dict[str, Any]]()
    for number, setting in enumerate(settings):
        shares = shares_of(number, setting, seeds=3 if draws is None else 1)
        best = max((policy for policy in POLICIES if policy != "auto"), key=shares.__getitem__)
        ratio = shares["auto"] / shares[best] if shares[best] else 1.0
        text = ", ".join(f"{name} {value:g}" for name, value in setting.items())
        print(f"{text:40} best {best:14} {shares[best]:.3f}   auto {shares['auto']:.3f}   {ratio:.3f}", flush=True)
        runs.append({"setting": text, "best": best, "share": shares[best], "auto": shares["auto"], "ratio": ratio})
    close = sum(run["ratio"] >= 0.97 for run in runs)
    lost = float(np.mean([1 - min(1.0, run["ratio"]) for run in runs]))
    print(
        f"within 3 % of the best on {close} of {len(runs)}; smallest ratio {min(run['ratio'] for run in runs):.3f}; "
        f"mean loss {lost:.3f}"
    )
    save("auto-held-out" if draws is None else "auto-drawn", runs)


if __name__ == "__main__":
    main()
