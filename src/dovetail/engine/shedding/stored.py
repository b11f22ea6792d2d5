"""What a shedder knows as bytes: JSON, then arrays. All of it follows from the input, so equal sessions have equal bytes.

Rows are known by what `WindowStore.numbers_of` says: windows that are read begin anew. What is stored goes on only under the cap,
the policy and the joins that it was written under. Else, if the caller allows it, windows keep what they hold, what was lost stays
known, and tuples are followed again when the cap is reached again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, TypedDict

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, Int64Array
from dovetail.codec import Count, Size, Time, from_json, to_json
from dovetail.engine.kernels.roster import FIFO, NONE
from dovetail.engine.shedding.following import Following
from dovetail.engine.shedding.result_losses import StoredLosses
from dovetail.engine.shedding.shedder import Shedder
from dovetail.errors import StateError, reading
from dovetail.stats.recall import LossEstimate

_LENGTH = struct.Struct("<Q")
FORMAT = 5
"""Before 5, no keys were remembered; before 4, losses were estimated by a tracker of their own, and 1 was not written."""
_OLDER = "it was stored by an earlier release while tuples were being shed"


_ArrayEntry: TypeAlias = tuple[str, str, list[Count]]
"""Name, type and shape of an array."""


class _Tracked(TypedDict):
    """One tracker's arrays, in this order."""

    rank: Count
    arrays: list[_ArrayEntry]


class _Sample(TypedDict):
    """A join's sample of keys, and its arrays."""

    join: str
    signature: str
    arrays: list[_ArrayEntry]


class _Stored(TypedDict):
    """A shedder as JSON."""

    format: Count
    settings: str
    """A digest of the cap, the policy and the joins."""
    streams: list[str]
    """Whose windows there were, in the order in which trackers have them."""
    counts: dict[str, tuple[Count, Time]]
    given: dict[str, Count]
    """Results by query."""
    is_counting: bool
    losses: dict[str, LossEstimate | str]
    """By query, all of them."""
    earlier: dict[str, LossEstimate | str]
    """By query, those that `samples` do not have."""
    uncounted: dict[str, Size]
    heads: dict[str, Time]
    choice: list[list[Size]]
    trackers: list[_Tracked]
    samples: list[_Sample]


def written(shedder: Shedder) -> bytes:
    """Everything that goes on with it needs."""
    following = shedder.following
    trackers, parts = [], []
    for tracker in following.trackers if following is not None else ():
        arrays = tracker.to_arrays()
        rows, windows = arrays["held.row"], arrays["held.window"]
        numbers = np.where(rows >= 0, 0, NONE)
        if following is not None and tracker is following.main:
            for place, store in enumerate(shedder.windows):
                own = (rows >= 0) & (windows == place)
                numbers[own] = store.numbers_of(rows[own])
        arrays["held.number"] = numbers
        del arrays["held.row"]
        trackers.append({"rank": tracker.rank, "arrays": _entries(arrays)})
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
        "given": shedder.given,
        "is_counting": shedder.losses.is_counting,
        "losses": {query: shedder.losses.of(query) for query in shedder.given},
        "earlier": shedder.losses.earlier,
        "uncounted": shedder.losses.uncounted,
        "heads": shedder.heads,
        "choice": following.choice.figures if following is not None and following.choice is not None else [],
        "trackers": trackers,
        "samples": samples,
    }
    header = json.dumps(to_json(content)).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *parts])


@reading("the shedding state")
def numbers_kept(content: pa.Buffer) -> dict[str, Int64Array] | None:
    """By stream, the numbers of the tuples that are held, in order; None if nothing has been shed yet, and all are."""
    stored, arrays = _read(content)
    if not stored["trackers"]:
        return None
    main = next(arrays)
    numbers, windows = main["held.number"], main["held.window"]
    held = numbers >= 0
    return {stream: np.sort(numbers[held & (windows == place)]) for place, stream in enumerate(stored["streams"])}


@reading("the shedding state")
def restore(shedder: Shedder, content: pa.Buffer, *, strict: bool = True) -> None:
    """Bring a shedder whose windows have been filled to what was stored of it.

    `strict`: refuse what was stored under another cap, policy or plan, or in another format; else begin anew with what windows hold.
    """
    stored, arrays = _read(content)
    shedder.counts, shedder.heads = dict(stored["counts"]), dict(stored["heads"])
    shedder.give(stored["given"])
    if strict and stored["format"] != FORMAT:
        raise StateError(f"shedding is stored in format {stored['format']}; this release reads format {FORMAT}")
    is_same = (stored["format"], stored["settings"]) == (FORMAT, _settings(shedder))
    if strict and not is_same:
        raise StateError("what is known for shedding is of another cap, policy or plan")
    trackers = [next(arrays) for _ in stored["trackers"]]
    samples = {(sample["join"], sample["signature"]): next(arrays) for sample in stored["samples"]}
    shedder.restore_losses(
        StoredLosses(stored["is_counting"], samples, stored["losses"], stored["earlier"], stored["uncounted"])
    )
    if not is_same or not trackers:
        return
    following = Following(shedder.shape(), shedder.room, shedder.shedding)
    if len(stored["trackers"]) != len(following.trackers):
        raise StateError(
            f"shedding is stored with {len(stored['trackers'])} trackers; expected {len(following.trackers)}"
        )
    if following.choice is not None:
        following.choice.restore(stored["choice"])
    for tracker, known, named in zip(following.trackers, stored["trackers"], trackers, strict=True):
        if tracker.rank != known["rank"] and (tracker is not following.main or known["rank"] > FIFO):
            raise StateError(f"shedding is stored with a tracker of rank {known['rank']}; expected {tracker.rank}")
        tracker.rank = known["rank"]
        numbers = named.pop("held.number")
        held = numbers >= 0
        named["held.row"] = np.where(held, 0, NONE)
        if tracker is following.main:
            for place, store in enumerate(shedder.windows):
                own = held & (named["held.window"] == place)
                if len(np.unique(numbers[own])) < np.count_nonzero(own):
                    raise StateError(f"what is known for shedding has a tuple of window {store.name!r} twice")
                named["held.row"][own] = store.rows_of(numbers[own])
        tracker.restore(named)
    shedder.following = following


def _settings(shedder: Shedder) -> str:
    """What decisions depend on beside the input."""
    return blake2b(repr((shedder.shedding, shedder.room, shedder.shape())).encode(), digest_size=16).hexdigest()


def _entries(arrays: Mapping[str, Array]) -> list[tuple[str, str, list[int]]]:
    return [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]


def _read(content: pa.Buffer) -> tuple[_Stored, Iterator[dict[str, Array]]]:
    """Return what is stored, and an iterator over the arrays of trackers and samples."""
    view = memoryview(content)
    (length,) = _LENGTH.unpack_from(view)
    begin = _LENGTH.size + length
    found = {"format": 1} | json.loads(bytes(view[_LENGTH.size : begin]))
    if found["format"] != FORMAT:
        losses = dict.fromkeys(found.get("given", {}), _OLDER)
        found |= {
            "is_counting": bool(found.get("trackers")),
            "losses": losses,
            "earlier": losses,
            "uncounted": {},
            "samples": [],
        }
        found = {name: value for name, value in found.items() if name in _Stored.__annotations__}
    stored: Any = from_json(_Stored, found, "what is known for shedding")
    return stored, _arrays([entry["arrays"] for entry in (*stored["trackers"], *stored["samples"])], view[begin:])


def _arrays(entries: Iterable[list[_ArrayEntry]], content: memoryview) -> Iterator[dict[str, Array]]:
    at = 0
    for arrays in entries:
        found = {}
        for name, dtype, shape in arrays:
            kind = np.dtype(dtype)
            if kind.hasobject:
                raise StateError(f"shedding is stored with objects in {name!r}")
            count = int(np.prod(shape, dtype=np.int64))
            found[name] = np.frombuffer(content, kind, count, at).reshape(shape)
            at += count * kind.itemsize
        yield found
