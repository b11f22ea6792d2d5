"""What shedding dead keys first gains, and whether it costs anything where keys repeat: `python benchmarks/dead_keys.py [seeds]`.

The settings are those of `make reproduce PAPER=kwon`, on its grid, with few and many orders of arrival, keys that repeat (figure 10,
crossover) and the trace, if it is there. Each policy runs on the same tuples without and with dead keys first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine import save

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments import kwon
from experiments.kwon import POLICIES, Grid, Point, run_point

GRID = Grid(seed=4057)
REPEATING = ("10", "crossover", "11")
"""Figures whose keys occur many times in each stream."""


def points(seeds: int) -> Iterator[Point]:
    """The grid of the paper without times, each seed of it."""
    whole = replace(GRID, seeds=seeds, map_seeds=seeds).points()
    yield from (point for point in whole if point.figure not in ("9a", "9b"))
    for seed in range(seeds):
        for gap in (5.0, 10.0, 20.0):
            for orders in (5, 20):
                yield Point("few orders", orders, seed, memory=300, gap=gap, orders=orders)


def main() -> None:
    """Measure, print and keep."""
    kwon.TRACE = Path(__file__).resolve().parents[1] / kwon.TRACE
    shares: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for point in points(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        before, after = (run_point(point, GRID, dead_keys_first=first) for first in (False, True))
        kind = f"figure {point.figure}" if point.figure not in ("map", "crossover", "few orders") else point.figure
        for policy in POLICIES:
            both = tuple(found["policies"][policy]["results"] / max(1, found["all"]) for found in (before, after))
            shares.setdefault((kind, policy), []).append((both[0], both[1]))
        print(point.name, {policy: found[-1] for (own, policy), found in shares.items() if own == kind}, flush=True)
    runs = list[dict[str, Any]]()
    for (kind, name), found in shares.items():
        values = np.array(found)
        without, together = (float(value) for value in values.mean(axis=0))
        held = values[:, 0] > 0
        worst = float((values[held, 1] / values[held, 0]).min()) if held.any() else 1.0
        print(f"{kind:12} {name:14} {without:.3f} -> {together:.3f}   worst run {worst:.3f} of before")
        runs.append(
            {
                "kind": kind,
                "policy": name,
                "runs": len(found),
                "repeating": kind.removeprefix("figure ") in REPEATING,
                "without": without,
                "with": together,
                "worst": worst,
            }
        )
    save("dead-keys", runs)


if __name__ == "__main__":
    main()
