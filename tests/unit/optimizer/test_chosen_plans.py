"""Expected plans in tests/plans: each ordering method for one query, each strategy for four.

`python tests/unit/optimizer/test_chosen_plans.py` rewrites the texts. Unit costs are fixed, so the plans do not depend on the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import calibrate
from dovetail.config import ORDERINGS, STRATEGIES, Ordering, Strategy

PLANS = Path(__file__).resolve().parents[2] / "plans"
PRICES = calibrate.UnitTimes(
    insert=0.2, expire=0.02, probe=0.05, match=0.1, call=0.0, value=0.01, store=0.1, batch_result=0.0, batch_store=0.0
)
RATES = {"a": 3.0, "b": 21.5, "c": 21.0, "d": 2.5, "e": 5.0}
SHARES = {"ab": 0.05, "bc": 0.2, "cd": 0.05, "de": 0.01, "ac": 0.05, "be": 0.01, "ce": 0.9}
QUERIES = ("abc", "bcd", "cde", "abcde")
"""By the streams that they join: two cycles, a chain, and one that holds them all."""
BUDGET = dt.Budget(cpu_ms_per_second=0.7, memory_bytes=1 << 20)


def explained(config: dt.Config, budget: dt.Budget | None) -> list[str]:
    """Return the paragraphs of a session's `explain` text."""
    session = dt.LocalSession(budget, config=config)
    columns = pa.schema([("ts", pa.timestamp("us", tz="UTC")), *((edge, pa.int64()) for edge in SHARES)])
    for stream, rate in RATES.items():
        session.stream(stream, columns, "ts", rate=rate)
    for edge, share in SHARES.items():
        session.selectivity(f"{edge[0]}.{edge} = {edge[1]}.{edge}", share)
    for name in QUERIES:
        windows = ", ".join(f"{stream} [RANGE 10 SECONDS]" for stream in name)
        equal = " AND ".join(f"{edge[0]}.{edge} = {edge[1]}.{edge}" for edge in SHARES if set(edge) <= set(name))
        session.query(name, f"SELECT {name[0]}.ts FROM {windows} WHERE {equal}")
    return str(session.explain()).split("\n\n")


def ordered(method: Ordering) -> str:
    """Return the probe orders of the largest query."""
    (found,) = [text for text in explained(dt.Config(ordering=method), None) if text.startswith("query abcde\n")]
    return f"{found}\n"


def planned(strategy: Strategy) -> str:
    """Return the plan for all queries."""
    texts = explained(dt.Config(strategy=strategy), BUDGET)
    (first,) = [number for number, text in enumerate(texts) if text.startswith("plan for")]
    return "\n\n".join(texts[first:]) + "\n"


@pytest.fixture(autouse=True)
def _fixed_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_calibrated", lambda: (PRICES, PRICES))


@pytest.mark.parametrize("method", ORDERINGS)
def test_each_method_gives_the_expected_orders(method: Ordering) -> None:
    assert ordered(method) == (PLANS / "orderings" / f"{method}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_gives_the_expected_plan(strategy: Strategy) -> None:
    assert planned(strategy) == (PLANS / "strategies" / f"{strategy}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("folder", "names"), [("orderings", ORDERINGS), ("strategies", STRATEGIES)])
def test_the_expected_plans_differ(folder: str, names: tuple[str, ...]) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (PLANS / folder).iterdir()}
    assert set(texts) == set(names)
    assert len({text.replace(name, "") for name, text in texts.items()}) > 2


def write() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calibrate, "_calibrated", lambda: (PRICES, PRICES))
        texts: dict[str, dict[Any, str]] = {
            "orderings": {method: ordered(method) for method in ORDERINGS},
            "strategies": {strategy: planned(strategy) for strategy in STRATEGIES},
        }
    for folder, by_name in texts.items():
        (PLANS / folder).mkdir(exist_ok=True)
        for name, text in by_name.items():
            (PLANS / folder / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
