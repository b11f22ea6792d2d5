"""How close `auto` comes to the best policy on settings that it was not shaped on: `python benchmarks/auto_held_out.py [seeds]`.

The generator is that of `make reproduce PAPER=kwon`, with other seeds, and with values of everything that its figures vary which lie
between, or beyond, those of the figures. Settings were written down before any of them was run.
"""

from __future__ import annotations

import sys
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


def main() -> None:
    """Measure, print and keep."""
    seeds, runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3, list[dict[str, Any]]()
    for number, setting in enumerate(SETTINGS):
        shares: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for seed in range(seeds):
            figure = "10" if "variance" in setting else "held-out"
            found = run_point(Point(figure, float(number), 1000 + seed, **setting), GRID)
            for policy, each in found["policies"].items():
                shares[policy].append(each["results"] / max(1, found["all"]))
        medians = {policy: float(np.median(each)) for policy, each in shares.items()}
        best = max((policy for policy in POLICIES if policy != "auto"), key=medians.__getitem__)
        ratio = medians["auto"] / medians[best] if medians[best] else 1.0
        text = ", ".join(f"{name} {value:g}" for name, value in setting.items())
        print(f"{text:40} best {best:14} {medians[best]:.3f}   auto {medians['auto']:.3f}   {ratio:.3f}", flush=True)
        runs.append({"setting": text, "best": best, "share": medians[best], "auto": medians["auto"], "ratio": ratio})
    close = sum(run["ratio"] >= 0.97 for run in runs)
    print(f"within 3 % of the best on {close} of {len(runs)}; smallest ratio {min(run['ratio'] for run in runs):.3f}")
    save("auto-held-out", runs)


if __name__ == "__main__":
    main()
