"""What was measured, by dataset, period and policy.

A number is the median of the repeats, with its interval (see `significance`). One policy is ahead of another if the interval of
their ratios, taken repeat by repeat, does not reach 1: for ten repeats, if it is so in nine (a sign test).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from experiments.significance import interval
from experiments.valsomatzis import DATASETS, PERIODS, Numbers, Point

Results: TypeAlias = Mapping[Point, Mapping[str, Any]]
Cell: TypeAlias = tuple[str, str]
"""A dataset and a period."""
CELLS: Sequence[Cell] = list(product(DATASETS, PERIODS))
Printed: TypeAlias = dict[str, dict[str, dict[str, list[float | None]]]]


@cache
def printed() -> Printed:
    """Tables 4 (`total`) and 5 (`half`): by policy and dataset, for each period; None where the paper has nothing."""
    text = files("experiments").joinpath("valsomatzis_tables.json").read_text(encoding="utf-8")
    tables: Printed = json.loads(text)
    return tables


def compiled_alone(results: Results) -> Results:
    """What the paper's program has given, in the places where the engine's numbers stand."""
    return {
        point: {"seconds": result["compiled"], "work": result["compiled work"]} for point, result in results.items()
    }


def found(results: Results, cell: Cell, unit: str) -> list[Mapping[str, Any]]:
    """What one kind of run of a cell has given, by repeat."""
    return [
        result[unit] for point, result in results.items() if (point.dataset, point.period) == cell and unit in result
    ]


def values(results: Results, cell: Cell, policy: str, field: str, unit: str = "seconds") -> Numbers:
    """One number of a policy, by repeat."""
    return np.array([each["policies"][policy][field] for each in found(results, cell, unit)])


def by_half(results: Results, cell: Cell, policy: str, half: int) -> Numbers:
    """The running time in one half of the run over that of `timestamp`."""
    return np.array([each["policies"][policy]["totals"][half] for each in found(results, cell, "seconds")])


def curve(results: Results, cell: Cell, policy: str, halves: Sequence[int] = (0, 1), unit: str = "seconds") -> Numbers:
    """The share of results at `AXIS`: a row for each repeat."""
    curves = [each["policies"][policy]["curves"] for each in found(results, cell, unit)]
    return np.array([np.mean([each[half] for half in halves], axis=0) for each in curves])


def counted(results: Results, cell: Cell, policy: str, *names: str) -> Numbers:
    """Some counters together, by repeat."""
    return np.array([sum(each["counts"][policy][name] for name in names) for each in found(results, cell, "seconds")])


def overall(results: Results, policy: str, field: str, unit: str = "seconds") -> Numbers:
    """The geometric mean of a number over all cells, by repeat."""
    logs = [np.log(values(results, cell, policy, field, unit)) for cell in CELLS]
    means: Numbers = np.exp(np.mean(logs, axis=0))
    return means


def leaders(numbers: Mapping[str, Numbers]) -> list[str]:
    """The policy with the least median, and those that it is not ahead of."""
    best = min(numbers, key=lambda policy: float(np.median(numbers[policy])))
    tied = [policy for policy in numbers if policy != best and interval(numbers[policy] / numbers[best])[1] <= 1]
    return [best, *tied]
