"""The state of a shedder as bytes: JSON, then arrays. Sessions with equal input have equal bytes.

Rows are identified by log sequence numbers (`WindowStore.numbers_of`), because restored windows number their rows anew. The state is
valid only under the cap, the policy and the joins that it was written under. Otherwise, unless `strict`, windows keep their tuples,
earlier losses remain known, and tracking starts again when the cap is reached again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from hashlib import blake2b
from typing import Any, TypeAlias, TypedDict

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, Int64Array
from dovetail.codec import Count, Size, Time, from_json, to_json
from dovetail.engine.kernels.tuple_table import FIFO, NONE
from dovetail.engine.shedding.result_losses import SerializedLosses
from dovetail.engine.shedding.shedder import Shedder
from dovetail.errors import StateError, reading
from dovetail.stats.recall import LossEstimate

_LENGTH = struct.Struct("<Q")
FORMAT = 7
"""Before 7 samples did not round event times; before 6 all policies stored the same arrays; before 5 there was no key history; before
4 a separate tracker estimated losses; format 1 has no `format`."""
_WITH_KEY_HISTORY = 5
_OLDER_RELEASE = "it was stored by an earlier release while tuples were being shed"


_ArrayEntry: TypeAlias = tuple[str, str, list[Count]]
"""Name, type and shape of an array."""


class _TrackerState(TypedDict):
    """A tracker: the code of its policy, and its arrays in order."""

    rank: Count
    arrays: list[_ArrayEntry]


class _SampleState(TypedDict):
    """The sample of a join, and its arrays in order."""

    join: str
    signature: str
    arrays: list[_ArrayEntry]


class _ShedderState(TypedDict):
    """A shedder as JSON."""

    format: Count
    settings: str
    """A digest of the cap, the policy and the joins."""
    streams: list[str]
    """Streams with windows, in the order of trackers."""
    counts: dict[str, tuple[Count, Time]]
    given: dict[str, Count]
    """Results by query."""
    is_counting: bool
    losses: dict[str, LossEstimate | str]
    """By query."""
    earlier: dict[str, LossEstimate | str]
    """By query: losses that `samples` do not cover."""
    uncounted: dict[str, Size]
    heads: dict[str, Time]
    """Largest event times by stream."""
    choice: list[list[Size]]
    """State of the policy selector of `auto`."""
    trackers: list[_TrackerState]
    samples: list[_SampleState]


def serialize_shedder(shedder: Shedder) -> bytes:
    """Serialize everything that the shedder needs to continue."""
    tracked = shedder.tracked
    trackers, parts = [], []
    for tracker in tracked.trackers if tracked is not None else ():
        arrays = tracker.to_arrays()
        rows, windows = arrays["tuples.row"], arrays["tuples.window"]
        numbers = np.where(rows >= 0, 0, NONE)
        if tracked is not None and tracker is tracked.main:
            for position, store in enumerate(shedder.windows):
                of_window = (rows >= 0) & (windows == position)
                numbers[of_window] = store.numbers_of(rows[of_window])
        arrays["tuples.number"] = numbers
        del arrays["tuples.row"]
        trackers.append({"rank": tracker.policy, "arrays": _entries(arrays)})
        parts += [array.tobytes() for array in arrays.values()]
    samples = []
    for step, sample in shedder.losses.samples.items():
        arrays = sample.to_arrays()
        samples.append({"join": step, "signature": sample.signature, "arrays": _entries(arrays)})
        parts += [array.tobytes() for array in arrays.values()]
    content = {
        "format": FORMAT,
        "settings": _settings(shedder),
        "streams": shedder.streams,
        "counts": shedder.counts,
        "given": shedder.result_counts,
        "is_counting": shedder.losses.is_counting,
        "losses": {query: shedder.losses.of(query) for query in shedder.result_counts},
        "earlier": shedder.losses.earlier,
        "uncounted": shedder.losses.uncounted,
        "heads": shedder.max_event_times,
        "choice": tracked.selector.state if tracked is not None and tracked.selector is not None else [],
        "trackers": trackers,
        "samples": samples,
    }
    header = json.dumps(to_json(content)).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *parts])


@reading("the shedding state")
def numbers_kept(content: pa.Buffer) -> dict[str, Int64Array] | None:
    """Return the log sequence numbers of the held tuples by stream, ascending; None if nothing was shed, so all are held."""
    state, arrays = _read(content)
    if not state["trackers"]:
        return None
    main = next(arrays)
    # Older formats are read here, so that a restart on Spark keeps what they held.
    records = "tuples" if state["format"] >= _WITH_KEY_HISTORY else "held"
    numbers, windows = main[f"{records}.number"], main[f"{records}.window"]
    held = numbers >= 0
    return {stream: np.sort(numbers[held & (windows == position)]) for position, stream in enumerate(state["streams"])}


@reading("the shedding state")
def restore(shedder: Shedder, content: pa.Buffer, *, strict: bool = True) -> None:
    """Restore a serialized shedder whose windows are filled.

    `strict`: raise `StateError` if the state is of another cap, policy, plan or format; else start anew with the windows' tuples.
    """
    state, arrays = _read(content)
    shedder.counts, shedder.max_event_times = dict(state["counts"]), dict(state["heads"])
    shedder.set_result_counts(state["given"])
    if strict and state["format"] != FORMAT:
        raise StateError(
            f"the shedding state has format {state['format']}; this release reads format {FORMAT}",
            "restore it with the release that wrote it",
        )
    is_same = (state["format"], state["settings"]) == (FORMAT, _settings(shedder))
    if strict and not is_same:
        raise StateError("the shedding state was written under another cap, policy or plan")
    trackers = [next(arrays) for _ in state["trackers"]]
    samples = {(sample["join"], sample["signature"]): next(arrays) for sample in state["samples"]}
    shedder.restore_losses(
        SerializedLosses(state["is_counting"], samples, state["losses"], state["earlier"], state["uncounted"])
    )
    if not is_same or not trackers:
        return
    tracked = shedder.new_tracked(shedder.layout())
    if len(state["trackers"]) != len(tracked.trackers):
        raise StateError(
            f"the shedding state is corrupt: it has {len(state['trackers'])} trackers; expected {len(tracked.trackers)}"
        )
    if tracked.selector is not None:
        tracked.selector.restore(state["choice"])
    for tracker, tracker_state, named in zip(tracked.trackers, state["trackers"], trackers, strict=True):
        code = tracker_state["rank"]
        if tracker.policy != code and (tracker is not tracked.main or code > FIFO):
            raise StateError(
                f"the shedding state is corrupt: it has a tracker of policy {code}; expected {tracker.policy}"
            )
        tracker.policy = code
        numbers = named.pop("tuples.number")
        held = numbers >= 0
        named["tuples.row"] = np.where(held, 0, NONE)
        if tracker is tracked.main:
            for position, store in enumerate(shedder.windows):
                of_window = held & (named["tuples.window"] == position)
                if len(np.unique(numbers[of_window])) < np.count_nonzero(of_window):
                    raise StateError(f"the shedding state is corrupt: a tuple of window {store.name!r} occurs twice")
                named["tuples.row"][of_window] = store.rows_of(numbers[of_window])
        tracker.restore(named)
    shedder.tracked = tracked


def _settings(shedder: Shedder) -> str:
    """Return a digest of what decisions depend on besides the input: values only, so that names in the code do not matter."""
    values = [astuple(part) for part in (shedder.shedding, shedder.caps, shedder.layout())]
    return blake2b(repr(values).encode(), digest_size=16).hexdigest()


def _entries(arrays: Mapping[str, Array]) -> list[tuple[str, str, list[int]]]:
    """Return the name, type and shape of each array."""
    return [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]


def _read(content: pa.Buffer) -> tuple[_ShedderState, Iterator[dict[str, Array]]]:
    """Return the JSON, and an iterator over the arrays of trackers and samples."""
    view = memoryview(content)
    (length,) = _LENGTH.unpack_from(view)
    arrays_start = _LENGTH.size + length
    header = {"format": 1} | json.loads(bytes(view[_LENGTH.size : arrays_start]))
    if header["format"] != FORMAT:
        losses = dict.fromkeys(header.get("given", {}), _OLDER_RELEASE)
        header |= {
            "is_counting": bool(header.get("trackers")),
            "losses": losses,
            "earlier": losses,
            "uncounted": {},
            "samples": [],
        }
        header = {name: value for name, value in header.items() if name in _ShedderState.__annotations__}
    state: Any = from_json(_ShedderState, header, "the shedding state")
    return state, _read_arrays(
        [entry["arrays"] for entry in (*state["trackers"], *state["samples"])], view[arrays_start:]
    )


def _read_arrays(entries: Iterable[list[_ArrayEntry]], content: memoryview) -> Iterator[dict[str, Array]]:
    """Yield the arrays of each tracker and sample by name."""
    offset = 0
    for arrays in entries:
        named = {}
        for name, dtype, shape in arrays:
            array_type = np.dtype(dtype)
            if array_type.hasobject:
                raise StateError(f"the shedding state is corrupt: {name!r} contains objects")
            count = int(np.prod(shape, dtype=np.int64))
            named[name] = np.frombuffer(content, array_type, count, offset).reshape(shape)
            offset += count * array_type.itemsize
        yield named
