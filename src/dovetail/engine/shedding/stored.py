"""What a shedder knows as bytes: JSON, then arrays. All of it follows from the input, so equal sessions have equal bytes.

Row numbers are counted from the first row of their window, for windows that are read begin anew.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from dovetail._typing import Array
from dovetail.engine.kernels.roster import FIFO
from dovetail.engine.shedding.following import Following
from dovetail.engine.shedding.shedder import Shedder
from dovetail.errors import StateError
from dovetail.plan.codec import Count, Size, Time, from_json, to_json
from dovetail.plan.recall import Lost

_LENGTH = struct.Struct("<Q")


class _Tracked(TypedDict):
    """One tracker's arrays, in this order: name, type and shape."""

    rank: Count
    arrays: list[tuple[str, str, list[Count]]]


class _Stored(TypedDict):
    """A shedder as JSON."""

    counts: dict[str, tuple[Count, Time]]
    lost: dict[str, Lost]
    heads: dict[str, Time]
    halvings: Count
    choice: list[list[Size]]
    trackers: list[_Tracked]


def written(shedder: Shedder) -> bytes:
    """Everything that goes on with it needs."""
    following, bases = shedder.following, shedder.first_rows()
    trackers, parts = [], []
    for tracker in following.trackers if following is not None else ():
        arrays = tracker.to_arrays()
        held = arrays["held.row"] >= 0
        rows = np.where(held, 0, arrays["held.row"])
        if following is not None and tracker is following.main:
            rows[held] = arrays["held.row"][held] - bases[arrays["held.window"][held]]
        arrays["held.row"] = rows
        trackers.append({"rank": tracker.rank, "arrays": [[n, a.dtype.str, list(a.shape)] for n, a in arrays.items()]})
        parts += [array.tobytes() for array in arrays.values()]
    content = {
        "counts": shedder.counts,
        "lost": shedder.lost,
        "heads": shedder.heads,
        "halvings": following.halvings if following is not None else 0,
        "choice": following.choice.figures if following is not None and following.choice is not None else [],
        "trackers": trackers,
    }
    header = json.dumps(to_json(content)).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *parts])


def restore(shedder: Shedder, content: pa.Buffer) -> None:
    """Bring a shedder whose windows have been filled to what was stored of it."""
    view = memoryview(content)
    (length,) = _LENGTH.unpack_from(view)
    begin = _LENGTH.size + length
    stored: Any = from_json(_Stored, json.loads(bytes(view[_LENGTH.size : begin])), "what is known for shedding")
    shedder.counts, shedder.lost, shedder.heads = dict(stored["counts"]), dict(stored["lost"]), dict(stored["heads"])
    if not stored["trackers"]:
        return
    following = Following(shedder.shape(), shedder.room, shedder.shedding)
    if len(stored["trackers"]) != len(following.trackers):
        raise StateError(
            f"shedding is stored with {len(stored['trackers'])} trackers; expected {len(following.trackers)}"
        )
    following.halvings = stored["halvings"]
    if following.choice is not None:
        following.choice.restore(stored["choice"])
    arrays = _arrays(stored["trackers"], view[begin:])
    for tracker, known in zip(following.trackers, stored["trackers"], strict=True):
        if tracker.rank != known["rank"] and (tracker is not following.main or known["rank"] > FIFO):
            raise StateError(f"shedding is stored with a tracker of rank {known['rank']}; expected {tracker.rank}")
        tracker.rank = known["rank"]
        tracker.restore(dict(next(arrays)))
    held = following.main.roster.held
    bases, rows = shedder.first_rows(), held.row >= 0
    held.row[rows] += bases[held.window[rows]]
    shedder.check(following)
    shedder.following = following


def _arrays(trackers: list[_Tracked], content: memoryview) -> Iterator[list[tuple[str, Array]]]:
    at = 0
    for tracker in trackers:
        found = []
        for name, dtype, shape in tracker["arrays"]:
            kind = np.dtype(dtype)
            if kind.hasobject:
                raise StateError(f"shedding is stored with objects in {name!r}")
            count = int(np.prod(shape, dtype=np.int64))
            found.append((name, np.frombuffer(content, kind, count, at).reshape(shape)))
            at += count * kind.itemsize
        yield found
