"""A sample of the keys of a join, joined as if nothing were shed, to estimate what the join has lost.

The sample holds event times and key codes only. It counts the results that followed keys would have (`whole`) and those that were
given (`kept`); the difference was lost. As long as all keys fit, all are followed and the loss is known exactly. When there are too
many tuples, half of the keys are dropped together with their counts, so that the counters always cover the whole history of the same
keys. Keys that were frequent when shedding began are hot: a few of them may have most of the results, and a random sample of keys may
miss them. They are followed to the end; when they have too many tuples, event times are rounded, and tuples of a key with equal times
become one with a weight. The results of hot keys then have bounds, from windows that are longer and shorter by the rounding.

A result is counted at its latest tuple, in order of event time, whatever the order of arrival; so lag and disorder do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dovetail._typing import Array, BoolArray, Float64Array, Int64Array, UInt64Array
from dovetail.engine.kernels.join_sample import BUCKETS, HOT, ROWS, count_keys, count_results, followed, select
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.kernels.tuple_table import TupleBatch
from dovetail.engine.shedding.layout import WindowReader
from dovetail.errors import StateError
from dovetail.stats.recall import LossEstimate

MIN_SAMPLE = 1 << 16
"""Tuples that the samples of all joins may hold together; or a quarter of the cap, if that is more."""
MIN_LOG = 4096
"""Results are counted after at least this many new tuples."""
_MAX_PARTS = 64
"""The log is merged when it has more parts."""
_MAX_HOT = 512
_HOT_FRACTION = 0.0005
"""Fraction of the held tuples of a join from which on a key is hot."""
_MIN_GROUPS = 12.0
"""With fewer effective groups of keys, a few keys have most of the results, and the loss is unknown."""
_MIN_GRAINS = 16
"""Event times of hot keys are rounded at most to this fraction of the shortest window."""
_MAX_SURPRISE = 2.0
"""If the given results differ from what followed keys imply by more than this many errors, there are hot keys among the others."""
_LATEST = 1 << 61
"""Event times plus windows must not overflow."""
_T_95 = 2.0395
"""The 97.5 % point of Student's t with one degree of freedom less than there are buckets."""
_CORRECTION = BUCKETS / (BUCKETS - 1)


@dataclass(frozen=True, slots=True)
class SampleInput:
    """One input of a sampled join."""

    reader: WindowReader
    position: int
    """Position among the readers of its window."""
    window: int
    """Position of its window among those that are shed from."""
    lateness: int


@dataclass(frozen=True, slots=True)
class FollowedTuples:
    """Tuples of followed keys, in arrays that are never changed."""

    ts: Int64Array
    codes: UInt64Array
    inputs: NDArray[np.int16]
    """The input that each tuple belongs to."""
    weights: NDArray[np.int32]
    """How many tuples each one stands for."""

    @classmethod
    def none(cls) -> FollowedTuples:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int16), np.zeros(0, np.int32))

    def __len__(self) -> int:
        return len(self.ts)

    def __getitem__(self, rows: Int64Array | BoolArray) -> FollowedTuples:
        return FollowedTuples(self.ts[rows], self.codes[rows], self.inputs[rows], self.weights[rows])

    @classmethod
    def concat(cls, parts: tuple[FollowedTuples, ...]) -> FollowedTuples:
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.ts for part in parts]),
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.inputs for part in parts]),
            np.concatenate([part.weights for part in parts]),
        )

    @property
    def nbytes(self) -> int:
        return self.ts.nbytes + self.codes.nbytes + self.inputs.nbytes + self.weights.nbytes

    def sorted(self) -> FollowedTuples:
        """Return the tuples by event time."""
        return self[np.argsort(self.ts, kind="stable")]

    def rounded(self, grain: int, first: int) -> FollowedTuples:
        """Round event times down to multiples of `grain`, but not past `first`, and merge tuples that are equal then."""
        ts = np.where(self.ts >= first, np.maximum(self.ts // grain * grain, first), self.ts // grain * grain)
        order = np.lexsort((self.inputs, self.codes, ts))
        tuples = FollowedTuples(ts, self.codes, self.inputs, self.weights)[order]
        begins = np.ones(len(ts), np.bool_)
        begins[1:] = (
            (tuples.ts[1:] != tuples.ts[:-1])
            | (tuples.codes[1:] != tuples.codes[:-1])
            | (tuples.inputs[1:] != tuples.inputs[:-1])
        )
        begin_rows = np.flatnonzero(begins)
        weights = np.add.reduceat(tuples.weights, begin_rows, dtype=np.int32) if len(ts) else tuples.weights
        return replace(tuples[begin_rows], weights=weights)


@dataclass(frozen=True, slots=True)
class SampleState:
    """Everything that changes; a savepoint is the state before."""

    tuples: FollowedTuples
    """Sorted by event time, as far as later results may need them."""
    settled_to: int
    """No tuple from before this event time can arrive; results of latest tuples from before it are in `whole`."""
    whole: Float64Array
    kept: Float64Array
    """Results that followed keys would have, and results that they have; by row (see `HOT`) and by bucket.

    The results of hot keys in `whole` may be wrong by its last row, because of rounded event times.
    """
    given: int = 0
    """Results of all keys."""
    level: int = 0
    """The hashes of followed keys that are not hot have this many leading zeros: one key of 2^level is followed."""
    grain: int = 1
    """Event times of hot keys are rounded to multiples of this."""
    log: tuple[FollowedTuples, ...] = ()
    """Tuples that have arrived since the last count."""


class JoinSample:
    """Follows a sample of the keys of one join."""

    def __init__(self, inputs: tuple[SampleInput, ...], capacity: int, seed: int, signature: str = "") -> None:
        """Follow at most about `capacity` tuples; samples with equal signatures follow the same tuples and keys."""
        self.inputs, self.signature = inputs, signature
        self.capacity = capacity
        self._seed = np.uint64(seed)
        self._spans = np.array([entry.reader.span for entry in inputs], np.int64)
        self.hot = np.zeros(0, np.uint64)
        """Codes of hot keys, sorted."""
        empty = np.zeros((ROWS, BUCKETS))
        self.state = SampleState(FollowedTuples.none(), LONG_AGO, empty, empty)
        self._last: tuple[SampleState, dict[str, int], LossEstimate | str] | None = None
        """The last estimate, and what it was made from."""

    @property
    def nbytes(self) -> int:
        """Bytes of the followed tuples and the counters."""
        parts = (self.state.tuples, *self.state.log)
        return sum(part.nbytes for part in parts) + self.hot.nbytes + self.state.whole.nbytes + self.state.kept.nbytes

    def begin(self, held: Iterable[TupleBatch]) -> None:
        """Begin with the tuples that windows hold before the first one is shed; their results among each other do not count."""
        tuples = FollowedTuples.concat((FollowedTuples.none(), *map(self._select, held)))
        codes, counts = np.unique(tuples.codes, return_counts=True)
        hot = np.flatnonzero(counts >= max(2, _HOT_FRACTION * len(tuples)))
        hot = hot[np.argsort(counts[hot], kind="stable")[::-1][:_MAX_HOT]]
        fewest = np.minimum(counts[hot], _MIN_GRAINS * len(self.inputs))  # tuples, if event times are rounded
        hot = hot[np.cumsum(fewest) <= self.capacity // 4]
        self.hot = np.sort(codes[hot])
        before = self._count(tuples.sorted(), LONG_AGO, LONG_AGO)[1]
        self.state = replace(self.state, whole=-before)
        self._add(tuples)

    def add_tuples(self, incoming: TupleBatch) -> None:
        """Add new tuples."""
        self._add(self._select(incoming))

    def count_given(self, codes: UInt64Array) -> None:
        """Count results that were given, by the codes of their keys."""
        kept = self.state.kept.copy()
        count_keys(codes, self._seed, self.hot, self.state.level, kept)
        self.state = replace(self.state, kept=kept, given=self.state.given + len(codes))

    def advance(self, max_event_times: Mapping[str, int]) -> None:
        """Count results once enough tuples have arrived; `max_event_times`: by stream."""
        if sum(map(len, self.state.log)) < max(MIN_LOG, len(self.state.tuples) // 2):
            return
        self.state = self._settled(max_event_times)
        if self._round_hot(self.state.grain) > self.capacity // 2:
            self._round_more()
        while len(self.state.tuples) > self.capacity:
            self._follow_fewer(self.state.level + 1)

    def estimate(self, max_event_times: Mapping[str, int]) -> LossEstimate | str:
        """Return how many results were lost, or why that is unknown."""
        if self._last is None or self._last[0] is not self.state or self._last[1] != max_event_times:
            self._last = self.state, dict(max_event_times), self._estimate(max_event_times)
        return self._last[2]

    def _estimate(self, max_event_times: Mapping[str, int]) -> LossEstimate | str:
        state = self._settled(max_event_times)
        whole = state.whole + self._count(state.tuples, state.settled_to, state.settled_to, state.grain)[1]
        return _extrapolated_loss(whole, state.kept, state.given, state.level)

    # -- tuples -------------------------------------------------------------------------------------------------------------

    def _select(self, incoming: TupleBatch) -> FollowedTuples:
        rows, parts = np.empty(len(incoming.ts), np.int64), []
        for input_number, entry in enumerate(self.inputs):
            count = select(incoming, entry.window, entry.position, self._seed, self.hot, self.state.level, rows)
            rows_of_input = rows[:count]
            inputs = np.full(count, input_number, np.int16)
            codes = incoming.codes[rows_of_input, entry.position]
            parts.append(FollowedTuples(incoming.ts[rows_of_input], codes, inputs, np.ones(count, np.int32)))
        return FollowedTuples.concat(tuple(parts))

    def _add(self, tuples: FollowedTuples) -> None:
        if not len(tuples):
            return
        log = (*self.state.log, tuples)
        self.state = replace(self.state, log=(FollowedTuples.concat(log),) if len(log) > _MAX_PARTS else log)

    def _settled(self, max_event_times: Mapping[str, int]) -> SampleState:
        """Return the state with the log merged, results up to the watermark counted, and expired tuples removed."""
        state = self.state
        tuples = FollowedTuples.concat((state.tuples, *state.log)).sorted()
        end = max(
            state.settled_to,
            min(max_event_times.get(entry.reader.stream, LONG_AGO) - entry.lateness for entry in self.inputs),
        )
        settled, _ = self._count(tuples, state.settled_to, end, state.grain)
        needed = tuples.ts + self._spans[tuples.inputs] + (state.grain - 1) >= end
        return replace(state, tuples=tuples[needed], settled_to=end, whole=state.whole + settled, log=())

    def _count(self, tuples: FollowedTuples, begin: int, end: int, grain: int = 1) -> tuple[Float64Array, Float64Array]:
        """Count the results whose latest tuple is from [begin, end), and those of later ones.

        Rounding changes the distance of two tuples by less than `grain`, so longer and shorter windows bound the results of hot keys.
        """
        if grain == 1:
            return self._count_within(tuples, self._spans, begin, end)
        is_hot = np.isin(tuples.codes, self.hot)
        hot, others = tuples[is_hot], self._count_within(tuples[~is_hot], self._spans, begin, end)
        most, least = (self._count_within(hot, self._spans + change, begin, end) for change in (grain - 1, -grain))
        for counters, upper, lower in zip(others, most, least, strict=True):
            counters[HOT], counters[HOT + 1] = (upper[HOT] + lower[HOT]) / 2, (upper[HOT] - lower[HOT]) / 2
        return others

    def _count_within(
        self, tuples: FollowedTuples, spans: Int64Array, begin: int, end: int
    ) -> tuple[Float64Array, Float64Array]:
        settled, unsettled = np.zeros((2, ROWS, BUCKETS))
        columns = tuples.ts, tuples.codes, tuples.inputs, tuples.weights
        count_results(*columns, spans, self._seed, self.hot, begin, end, settled, unsettled)
        return settled, unsettled

    def _round_more(self) -> None:
        """Round event times of hot keys until their tuples take a quarter of the sample; if they cannot, follow none."""
        longest = max(1, int(self._spans.min()) // _MIN_GRAINS)
        grain = max(self.state.grain, longest >> 10)
        while self._round_hot(grain) > self.capacity // 4 and grain < longest:
            grain = min(2 * grain, longest)
        if self._round_hot(grain) > self.capacity * 3 // 4:
            self._follow_fewer(HOT + 1)

    def _round_hot(self, grain: int) -> int:
        """Round event times of hot keys to a grain; return how many tuples they have then."""
        tuples = self.state.tuples
        is_hot = np.isin(tuples.codes, self.hot)
        if grain == 1:
            return int(is_hot.sum())
        hot = tuples[is_hot].rounded(grain, self.state.settled_to)
        self.state = replace(self.state, tuples=FollowedTuples.concat((tuples[~is_hot], hot)).sorted(), grain=grain)
        return len(hot)

    def _follow_fewer(self, level: int) -> None:
        """Drop the keys whose hash has fewer than `level` leading zeros, unless they are hot."""
        tuples = self.state.tuples
        mask = followed(tuples.codes, self._seed, self.hot, level)
        self.state = replace(self.state, tuples=tuples[mask], level=level)

    def warm_up(self) -> None:
        """Run the kernels that are rarely needed, so that they are compiled."""
        self.count_given(np.zeros(1, np.uint64))
        self.estimate({})
        followed(self.state.tuples.codes, self._seed, self.hot, 1)

    # -- state ------------------------------------------------------------------------------------------------------------------

    def to_arrays(self) -> dict[str, Array]:
        """Return everything by name."""
        state = self.state
        tuples = FollowedTuples.concat((state.tuples, *state.log))
        return {
            "ts": tuples.ts,
            "codes": tuples.codes,
            "inputs": tuples.inputs,
            "weights": tuples.weights,
            "hot": self.hot,
            "whole": state.whole,
            "kept": state.kept,
            "numbers": np.array([len(state.tuples), state.settled_to, state.given, state.level, state.grain]),
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Continue from the result of `to_arrays`."""
        empty = self.to_arrays()
        for name, like in empty.items():
            array = arrays.get(name)
            if array is None or array.dtype != like.dtype or array.ndim != like.ndim:
                raise StateError(
                    f"the sample of a join is corrupt: {name!r} is missing or has another type; expected {like.dtype}"
                )
        tuples = FollowedTuples(arrays["ts"], arrays["codes"], arrays["inputs"], arrays["weights"])
        whole, kept, hot = (arrays[name].copy() for name in ("whole", "kept", "hot"))
        count, settled_to, given, level, grain = (int(value) for value in arrays["numbers"].tolist())
        is_valid = (
            len(tuples.ts) == len(tuples.codes) == len(tuples.inputs) == len(tuples.weights)
            and bool((tuples.weights > 0).all())
            and bool(((tuples.inputs >= 0) & (tuples.inputs < len(self.inputs))).all())
            and bool((np.diff(tuples.ts[:count]) >= 0).all())
            and bool((np.abs(tuples.ts) <= _LATEST).all())
            and LONG_AGO <= settled_to <= _LATEST
            and bool((hot[1:] > hot[:-1]).all())
            and whole.shape == kept.shape == empty["whole"].shape
            and bool(np.isfinite([whole, kept]).all())
            and 0 <= count <= len(tuples)
            and given >= 0
            and 0 <= level <= HOT + 1
            and (grain == 1 or 1 < grain <= int(self._spans.min()))
        )
        if not is_valid:
            raise StateError("the sample of a join is corrupt: its arrays are inconsistent")
        rows = np.arange(len(tuples))
        log = (tuples[rows >= count],) if count < len(tuples) else ()
        self.hot = hot
        self.state = SampleState(tuples[rows < count], settled_to, whole, kept, given, level, grain, log)


def _extrapolated_loss(whole: Float64Array, kept: Float64Array, given: int, level: int) -> LossEstimate | str:
    """Estimate the lost results of all keys: those of hot keys are counted, those of the others follow from the followed ones."""
    if level > HOT:
        return "its most frequent keys have more tuples than can be followed"
    error_of_hot = float(whole[HOT + 1].sum())
    lost_of_hot = max(0.0, float(whole[HOT].sum() - kept[HOT].sum()))
    others = _loss_of_others(
        whole[level:HOT].sum(axis=0), kept[level:HOT].sum(axis=0), given - float(kept[HOT].sum()), level
    )
    if isinstance(others, str):
        return others
    middle = lost_of_hot + others.middle
    return LossEstimate(middle, others.below + min(error_of_hot, lost_of_hot), others.above + error_of_hot)


def _loss_of_others(whole: Float64Array, kept: Float64Array, given: float, level: int) -> LossEstimate | str:
    """Estimate the lost results of keys that are not hot, from the `whole` and `kept` results of followed ones by bucket.

    The ratio of kept to whole results of the followed keys estimates that of all keys. Its error follows from the differences between
    random groups of keys (Wolter, Introduction to Variance Estimation, chapter 2). If a few groups have most of the results, the
    differences understate the error, so it is widened by the square root of all groups over the effective ones.

    The results that followed keys have imply how many all have, and that number is known. If it is another, a few keys that are not
    followed have many results, of which nothing is known.
    """
    total, left = float(whole.sum()), float(kept.sum())
    if level == 0:
        return LossEstimate(max(0.0, total - left))
    squares = float((whole**2).sum())
    groups = total**2 / squares if squares else 0.0
    if groups < _MIN_GROUPS:
        return "too few of the keys that are followed have most of their results"
    spread = _T_95 * sqrt(BUCKETS / groups * _CORRECTION)
    implied = kept * 2.0**level
    if abs(float(implied.sum()) - given) > _MAX_SURPRISE * spread * sqrt(
        float(((implied - implied.mean()) ** 2).sum())
    ):
        return "a few of the keys that are not followed have many of its results"
    ratio = left / total
    error = spread * sqrt(float(((kept - ratio * whole) ** 2).sum())) / total
    if ratio <= error:  # the ratio has no positive lower bound: extrapolate the losses of followed keys instead
        missing = (whole - kept) * 2.0**level
        error = spread * sqrt(float(((missing - missing.mean()) ** 2).sum()))
        return LossEstimate(float(missing.sum()), error, error)
    middle, low, high = (given / share - given for share in (ratio, min(1.0, ratio + error), ratio - error))
    return LossEstimate(middle, middle - low, high - middle)
