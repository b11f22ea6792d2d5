"""Random sets of queries give the oracle's results when paths with a common prefix are probed once."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_and_oracle import Pair

import dovetail as dt
from dovetail.config import INTERLEAVING, POLICIES
from dovetail.engine.join import step as runs
from dovetail.engine.join import watch
from dovetail.optimizer.adapt import reorder as replan
from dovetail.plan import prefixes
from dovetail.plan.prefixes import shareable_prefixes, sharing_steps
from dovetail.schema import TIMESTAMP, StreamSchema

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.string()), ("v", pa.float64())])
STREAMS = [StreamSchema(name, COLUMNS, "ts", lateness=1_000_000, rate=3.0) for name in "abcd"]
LINKS = ("k", "k", "k", "j", "k j")


def random_query(rng: random.Random) -> str:
    """Draw a query over two to four inputs, with self-joins, filters and conditions over several inputs."""
    aliases = {f"x{place}": rng.choice("abcd") for place in range(rng.choice((2, 3, 3, 4)))}
    counted = rng.random() < 0.1
    windows = [
        f"{stream} {alias} [ROWS {rng.randint(1, 3)}]"
        if counted and rng.random() < 0.5
        else f"{stream} {alias} [RANGE {rng.choice((2, 2, 2, 4))} s]"
        for alias, stream in aliases.items()
    ]
    conditions = []
    for place, alias in enumerate(list(aliases)[1:]):
        other = f"x{rng.randint(0, place)}"
        conditions += [f"{other}.{column} = {alias}.{column}" for column in rng.choice(LINKS).split()]
    conditions += [f"{alias}.v < {rng.choice((0.3, 0.6))}" for alias in aliases if rng.random() < 0.3]
    if rng.random() < 0.3:
        left, right = rng.sample(sorted(aliases), 2)
        conditions.append(f"{left}.v + {rng.choice((0, 0.25))} < {right}.v")
    if rng.random() < 0.2:
        conditions += [f"{left}.ts <= {right}.ts" for left, right in pairwise(aliases)]
    selected = ", ".join(f"{alias}.{rng.choice(('k', 'j', 'v', 'ts'))} AS {alias}" for alias in aliases)
    return f"SELECT {selected} FROM {', '.join(windows)} WHERE {' AND '.join(conditions)}"


def random_push(rng: random.Random, now: float) -> dict[str, pa.Table]:
    push = {}
    for stream in STREAMS:
        rows = [
            (
                int(1e6 * (now + rng.uniform(-1, 1))),
                rng.choice((1, 2, 3, 4, None)),
                rng.choice(("p", "q", "r", None)),
                rng.random(),
            )
            for _ in range(rng.choice((0, 3, 6)))
        ]
        push[stream.name] = pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 4, schema=COLUMNS)
    return push


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_queries_added_and_dropped_at_random_give_the_oracles_results(seed: int) -> None:
    rng = random.Random(seed)
    config = dt.Config(
        adaptive=rng.random() < 0.5,
        stage_rows=rng.choice((1 << 17, 40, 3, 1)),
        driver_policy=rng.choice([policy for policy in POLICIES if policy not in INTERLEAVING]),
        join=rng.choice(("auto", "auto", "auto", "hybrid")),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prefixes, "MIN_SAVED_STAGES", rng.choice((1, 1, 8)))
        restless = rng.random() < 0.5
        if restless:  # orders are considered after every batch, once windows have filled
            patched.setattr(watch, "CHECK_AFTER", 1)
            patched.setattr(replan, "MIN_PROBES", 1)
            patched.setattr(runs, "JOINT_REPLAN_FACTOR", 1)
        come_and_go(rng, config, 12 if restless else rng.choice((4, 7)))


def come_and_go(rng: random.Random, config: dt.Config, steps: int) -> None:
    """Add and drop queries between batches and compare all results with the oracle's."""
    pair, number = Pair(STREAMS, config), 0
    for step in range(steps):
        most = rng.choice((2, 6, 20, 40)) if step == 0 else rng.choice((0, 0, 2))
        for _ in range(most):
            pair.add(f"q{number}", random_query(rng), rng, config, forced=rng.random() < 0.3)
            number += 1
        if step and len(pair.found) > 2 and rng.random() < 0.4:
            pair.drop(rng.choice(sorted(pair.found)))
        pair.push(random_push(rng, 1.0 + step), rng.choice((None, None, 4)))
    pair.check_all()


def test_stages_are_shared_along_common_prefixes() -> None:
    session = dt.LocalSession(config=dt.Config(adaptive=False))
    for stream in STREAMS:
        session.stream(stream.name, stream.columns, stream.event_time, rate=stream.rate)
    windows = "{} [RANGE 9 s], {} [RANGE 9 s], {} [RANGE 9 s]"
    for name, last, least in (("p", "c", 0.1), ("q", "d", 0.1), ("r", "d", 0.2), ("s", "d", 0.3), ("t", "d", 0.4)):
        text = f"SELECT a.v FROM {windows.format('a', 'b', last)} WHERE a.k = b.k AND b.k = {last}.k AND a.v > {least}"
        session.query(name, text, {"a": ("b", last)})
    session.push(random_push(random.Random(1), 1.0))
    steps = [run.step for run in session._engine.runs]
    assert sharing_steps(shareable_prefixes(steps)["a"]) == {
        ("p", "a"): [["q", "r", "s", "t"], []],
        ("q", "a"): [["p", "r", "s", "t"], ["r", "s", "t"]],
        ("r", "a"): [["p", "q", "s", "t"], ["q", "s", "t"]],
        ("s", "a"): [["p", "q", "r", "t"], ["q", "r", "t"]],
        ("t", "a"): [["p", "q", "r", "s"], ["q", "r", "s"]],
    }
    assert "shared with q, r, s, t" in str(session.explain())
