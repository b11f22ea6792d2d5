"""Any sequence of pushes, late pushes, advances, restarts, added and dropped queries gives the oracle's results at every step."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from session_and_oracle import Pair, configs

import dovetail as dt
from dovetail.engine.storage import rows
from dovetail.engine.storage import window as window_store
from dovetail.engine.storage.columns import nested, texts
from dovetail.testing import random_scenario

_MOST_QUERIES = 3
_SEEDS = st.integers(0, 2**32 - 1)
_TINY = (
    (rows, "SMALLEST_CAPACITY", 8),
    (nested, "_MOST_CHUNKS", 2),
    (texts, "_SMALLEST_HEAP", 8),
    (texts, "_LARGE_HEAP", 16),
)


class Sessions(RuleBasedStateMachine):
    """A session and the oracle, given the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.changed = False

    @initialize(
        seed=_SEEDS,
        config=configs(),
        aliases=st.sampled_from((2, 2, 3)),
        count_windows=st.sampled_from((False, False, True)),
        nested=st.booleans(),
        tiny=st.booleans(),
    )
    def start(self, seed: int, config: dt.Config, aliases: int, count_windows: bool, nested: bool, tiny: bool) -> None:  # noqa: FBT001
        if tiny:  # windows grow, move and are rewritten in every batch
            for module, name, value in _TINY:
                self.patch.setattr(module, name, value)
            self.patch.setattr(window_store, "_SMALLEST_REWRITE", 4)
        self.rng, self.config = random.Random(seed), config
        scenario = random_scenario(
            self.rng,
            aliases=aliases,
            queries=4,
            pushes=12,
            tuples=40,
            late=True,
            count_windows=count_windows,
            nested_payload=nested,
        )
        note(repr(scenario))
        self.pair = Pair(scenario.streams, config)
        self.texts = list(scenario.sql.values())
        self.waiting = list(scenario.pushes)
        self.names = (f"q{number}" for number in range(1000))
        self.add(0)

    @rule(choice=st.integers(0, 3))
    @precondition(lambda self: len(self.pair.found) < _MOST_QUERIES)
    def add(self, choice: int) -> None:
        self.pair.add(next(self.names), self.texts[choice], self.rng, self.config)

    @rule(choice=st.integers(0, _MOST_QUERIES - 1))
    @precondition(lambda self: self.pair.found)
    def drop(self, choice: int) -> None:
        names = list(self.pair.found)
        self.pair.drop(names[choice % len(names)])

    @rule()
    @precondition(lambda self: self.waiting)
    def push(self) -> None:
        self._push(self.waiting.pop(0))

    @rule(choice=st.integers(0, 11))
    @precondition(lambda self: len(self.waiting) > 1)
    def push_out_of_order(self, choice: int) -> None:
        """Push batches out of order, so that some tuples may be late."""
        self._push(self.waiting.pop(choice % len(self.waiting)))

    @rule()
    @precondition(lambda self: len(self.waiting) > 1)
    def push_two_at_once(self) -> None:
        first, second = self.waiting.pop(0), self.waiting.pop(0)
        merged: dict[str, Any] = dict(first)
        for name, table in second.items():
            merged[name] = pa.concat_tables([merged[name], table]) if name in merged else table
        self._push(merged)

    @rule()
    def push_nothing(self) -> None:
        self._push({})

    def _push(self, batch: dict[str, Any]) -> None:
        self.pair.push(batch)
        self.changed = True

    @rule(stream=st.integers(0, 5), ahead=st.sampled_from((-1_000_000, 0, 1, 500_000, 3_000_000)))
    def advance(self, stream: int, ahead: int) -> None:
        names = list(self.pair.catalog)
        name = names[stream % len(names)]
        progress = self.pair.oracle.progress[name]
        if progress is not None:
            self.pair.advance({name: progress + ahead})
            self.changed = True

    @rule()
    def restart(self) -> None:
        self.pair.restart()
        self.changed = True

    @invariant()
    def same_as_the_oracle(self) -> None:
        if self.changed:
            self.pair.check_all()
            self.changed = False

    def teardown(self) -> None:
        self.patch.undo()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=4 * settings().max_examples, stateful_step_count=20)
