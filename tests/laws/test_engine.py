"""The engine gives the oracle's results, whatever the query, the input, the batches and the plan."""

from __future__ import annotations

import random
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from session_and_oracle import configs, run

import dovetail as dt
from dovetail.engine.join import reversed as reversed_probe
from dovetail.testing import RandomCase, assert_same_rows, random_scenario, scenarios
from dovetail.testing.sampling import recut

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=20 * settings().max_examples)
@given(scenarios(), configs(), SEEDS)
def test_every_plan_gives_the_oracles_results(scenario: RandomCase, config: dt.Config, seed: int) -> None:
    run(scenario, config, seed)


@settings(max_examples=8 * settings().max_examples)
@given(scenarios(), configs(), SEEDS)
def test_new_tuples_at_the_second_position_give_the_oracles_results(
    scenario: RandomCase, config: dt.Config, seed: int
) -> None:
    """Every first probe by hash is made from the other side, whether it pays or not."""
    with patch.multiple(reversed_probe, MIN_RATIO=0.0, MIN_NEW_TUPLES=1):
        run(scenario, config, seed)


@given(SEEDS, configs(), configs(), st.integers(1, 8))
def test_batch_cuts_do_not_matter(seed: int, config: dt.Config, other: dt.Config, count: int) -> None:
    scenario = random_scenario(random.Random(seed), late=False, count_windows=False)
    cut_again = RandomCase(
        scenario.streams, scenario.sql, recut(random.Random(seed), scenario.pushes, count, shuffle=True)
    )
    first, second = run(scenario, config, seed), run(cut_again, other, seed)
    for name in set(first.found) & set(second.found):
        assert_same_rows(pa.concat_tables(second.found[name]), pa.concat_tables(first.found[name]))
