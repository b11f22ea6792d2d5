"""`auto`: select the policy that keeps the most results on a sample of the keys.

Each policy runs on a hash sample of the keys with a cap in proportion, as if it alone decided. The number of results that it completes
there reflects repeating keys, skewed patterns and late partners, without a rule for each. Every N tuples, wherever batches begin, the
windows switch to a policy with significantly more results. A switch only moves tuples to other queues; it cannot recover what is
already shed, so the initial choice matters.

Without a common key results cannot be counted by key, and the oldest tuples are shed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.config import Shedding
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    FIFO,
    FREQUENCY,
    OUTPUT,
    RANDOM,
    KeySample,
    TupleBatch,
    TupleTable,
)
from dovetail.engine.shedding.caps import ShedCaps
from dovetail.engine.shedding.layout import TableLayout
from dovetail.engine.shedding.tracker import EVERYTHING, Tracker
from dovetail.errors import StateError
from dovetail.plan.sheddable import MAX_ARRIVAL_INPUTS

_CANDIDATES = (FIFO, ARRIVAL_ORDER, FREQUENCY, OUTPUT, RANDOM)
_MIN_SAMPLE_CAPACITY = 256
"""Cap of a sample, in tuples per window, at least."""
_MIN_LEAD = 0.02
"""Relative lead that a policy needs to be selected; the lead must also exceed one standard deviation of such counts."""
_DECAY = 0.75
"""Factor of earlier results with each evaluation."""
_MIN_RESULTS = 32
"""With fewer results of held tuples there is no evidence for `fifo`."""


class PolicySelector:
    """Selects the policy that windows follow."""

    def __init__(self, layout: TableLayout, caps: ShedCaps, shedding: Shedding) -> None:
        self.policy = FIFO
        max_units, seed = caps.max_units, shedding.seed
        total = min(sum(max_units), 1 << 30)
        halvings = max(0, (total // len(layout.streams) // _MIN_SAMPLE_CAPACITY).bit_length() - 1)
        self.interval = max(128, total // 4)
        """Tuples from one evaluation to the next."""
        self._remaining = self.interval
        fits_patterns = all(
            sum(reader.key_table == key_table for reader in layout.readers) <= MAX_ARRIVAL_INPUTS
            for key_table in range(len(layout.key_tables))
        )
        candidates = (
            [policy for policy in _CANDIDATES if policy != ARRIVAL_ORDER or fits_patterns]
            if layout.has_common_keys
            else []
        )
        readers, self._half_readers = (
            layout.arrays(
                caps.pools, [max(1, cap >> times) for cap in max_units], dead_keys_first=shedding.dead_keys_first
            )
            for times in (halvings, halvings + 1)
        )
        self.trackers = {policy: Tracker(readers, policy, seed, has_weights=caps.has_weights) for policy in candidates}
        self._seed, self._has_weights = seed, caps.has_weights
        self._scores = np.zeros(len(candidates))
        self._last_results = np.zeros(len(candidates))
        self._sample = KeySample(EVERYTHING >> np.uint64(halvings), True)
        self.needs_patterns = ARRIVAL_ORDER in self.trackers

    @property
    def tuples_to_next_evaluation(self) -> int:
        """Tuples to the next evaluation."""
        return self._remaining

    def start(self, held: Iterable[TupleBatch], advancing: Int64Array) -> None:
        """Start with the tuples that windows hold, and select the policy that would have kept most of their results at half the cap.

        If policies tie, results are few and `frequency` is selected, because what it keeps takes longest to arrive again. `fifo` is in
        its steady state, while the others still profit from tuples that it would have kept; so `fifo` is selected if it keeps at least
        half of the results: partners then arrive soon.
        """
        trials = {
            policy: Tracker(self._half_readers, policy, self._seed, has_weights=self._has_weights)
            for policy in self.trackers
        }
        for tuples in held:
            for tracker in (*self.trackers.values(), *trials.values()):
                tracker.add_tuples(tuples, advancing, self._sample)
        kept = {policy: float(trial.table.results.sum()) for policy, trial in trials.items()}
        if kept and kept[FIFO] < max(_MIN_RESULTS, self.trackers[FIFO].table.results.sum() / 2):
            self.policy = max(kept, key=lambda policy: (kept[policy], policy == FREQUENCY))

    def add_tuples(self, incoming: TupleBatch, advancing: Int64Array, min_hashes: UInt64Array) -> None:
        """Run all policies on at most `tuples_to_next_evaluation` tuples; `min_hashes` are theirs."""
        for tracker in self.trackers.values():
            tracker.add_tuples(incoming, advancing, self._sample, min_hashes)
        self._remaining -= len(incoming.ts)

    def reevaluate(self) -> TupleTable | None:
        """Switch to a significantly better policy, if there is one, and return its tuple table."""
        self._remaining = self.interval
        if not self.trackers:
            return None
        policies = list(self.trackers)
        results = np.array([tracker.table.results.sum() for tracker in self.trackers.values()])
        self._scores = self._scores * _DECAY + results - self._last_results
        self._last_results = results
        best = int(self._scores.argmax())
        best_score, current_score = float(self._scores[best]), float(self._scores[policies.index(self.policy)])
        if best_score - current_score <= max(_MIN_LEAD * current_score, sqrt(best_score + current_score)):
            return None
        self.policy = policies[best]
        return self.trackers[self.policy].table

    # -- state ------------------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> list[list[float]]:
        """Everything that changes, except the trackers."""
        return [[float(self.policy), float(self._remaining)], self._scores.tolist(), self._last_results.tolist()]

    def restore(self, state: Sequence[Sequence[float]]) -> None:
        """Continue from a `state`."""
        policies = len(self._scores)
        if [len(values) for values in state] != [2, policies, policies]:
            found = len(state[1]) if len(state) > 1 else 0
            raise StateError(f"the shedding state is corrupt: expected scores of {policies} policies, got {found}")
        policy, remaining = int(state[0][0]), int(state[0][1])
        if not (policy == FIFO or policy in self.trackers) or not 1 <= remaining <= self.interval:
            raise StateError(
                f"the shedding state is corrupt: it selects policy {policy}, to be evaluated after {remaining} tuples"
            )
        self.policy, self._remaining = policy, remaining
        self._scores, self._last_results = np.array(state[1], float), np.array(state[2], float)
