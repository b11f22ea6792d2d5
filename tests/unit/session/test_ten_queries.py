"""Ten overlapping queries give the oracle's results under every kind of plan."""

from __future__ import annotations

import pyarrow as pa
import pytest
from ten_queries import COLUMNS, TEN, batches, declare, oracle

import dovetail as dt
from dovetail.config import StrategyOption
from dovetail.optimizer.sharing import STRATEGY_FUNCTIONS
from dovetail.plan.shared_plan import SharedPlan
from dovetail.testing import assert_same_rows


def session(strategy: StrategyOption, budget: dt.Budget | None = None) -> dt.LocalSession:
    made = dt.LocalSession(budget, dt.Config(strategy=strategy))
    declare(made, lambda _: COLUMNS)
    return made


def plan_of(made: dt.LocalSession) -> SharedPlan:
    made.explain()
    return made._job.joint_plan


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("strategy", [name for name in STRATEGY_FUNCTIONS if name != "exact"])
def test_every_plan_gives_the_oracles_results(strategy: StrategyOption, restarts: bool) -> None:  # noqa: FBT001
    made, pushes = session(strategy), batches(1, 6)
    found: dict[str, list[pa.Table]] = {name: [] for name in TEN}
    for push in pushes:
        for name, table in made.push(push).items():
            found[name].append(table)
        if restarts:
            made = dt.LocalSession.restore(made.snapshot())
    wanted = oracle(pushes)
    for name in TEN:
        assert wanted.results_table(name).num_rows > 20
        assert_same_rows(pa.concat_tables(found[name]), wanted.results_table(name), name)


def test_the_plans_cover_every_kind() -> None:
    nary, binary, mixed, shared = (plan_of(session(name)) for name in ("mjoin", "bjtree", "exchange", "shared"))
    assert not nary.materialized
    assert {join.kind for join in binary.joins} == {"binary"}
    assert len(binary.materialized) == 10
    assert {join.kind for join in mixed.joins} == {join.kind for join in shared.joins} == {"binary", "mjoin"}
    (pair,) = [state for state in mixed.materialized if state.id == "state:a+b"]
    assert set(pair.queries) >= {"q1", "q2", "q3"}
    assert any(len(join.queries) > 1 for join in shared.joins)


def test_queries_are_added_and_dropped_while_others_share() -> None:
    made, pushes = session("exchange"), batches(2, 8)
    names = list(TEN)
    found: dict[str, list[pa.Table]] = {name: [] for name in TEN}
    again: list[pa.Table] = []
    for number, push in enumerate(pushes):
        if number == 2:
            for name in names[::2]:
                made.drop_query(name)
        if number == 4:
            made.query("q1", TEN["q1"])
            made = dt.LocalSession.restore(made.snapshot())
        for name, table in made.push(push).items():
            (again if name == "q1" and number >= 4 else found[name]).append(table)
    wanted = oracle(pushes)
    for name in names[1::2]:
        assert_same_rows(pa.concat_tables(found[name]), wanted.results_table(name), name)
    fresh = dt.LocalSession()
    for name in "abc":
        fresh.stream(name, COLUMNS, "ts", lateness="2 seconds")
    fresh.query("other", TEN["q5"])
    for push in pushes[:4]:
        fresh.push({name: push[name] for name in "abc"})
    fresh.query("q1", TEN["q1"])
    alone = [fresh.push({name: push[name] for name in "abc"})["q1"] for push in pushes[4:]]
    assert_same_rows(pa.concat_tables(again), pa.concat_tables(alone))
