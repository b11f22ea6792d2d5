"""A shard's engine as a directory: its arrays, and one file that says what they are and that nothing has changed since.

`engine.json` holds a digest of its own content and the seals of all arrays (see `arena.py`), under a key that is given again to read
it: a directory of another state does not fit. What does not fit is a `StateError`, never an engine with less in it. Where tuples may
be shed, a file beside it has what is known of them.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from dovetail.engine.join.watch import Replan
from dovetail.engine.persist.snapshot import attach, left_in_arena
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding import stored as shedding
from dovetail.engine.storage.arena import MappedArena
from dovetail.errors import StateError, reading
from dovetail.plan.execution import ExecutionPlan

FILE = "engine.json"
SHEDDING = "shedding"
_DIGEST = 16


def write_mapped(engine: ShardEngine, key: str) -> bytes | None:
    """Seal the arrays of an engine, and say beside them what they are. The engine must not be used any more.

    Return what is known for shedding, if tuples may be shed.
    """
    arena = engine.arena
    if not isinstance(arena, MappedArena):
        raise StateError("arrays in memory cannot be sealed", "use a MappedArena to share arrays")
    living: dict[str, tuple[int, int]] = {}
    for store in engine.stores():
        living.update(store.rows.living)
        for column in store.columns.values():
            living.update(column.living)
    left, known = left_in_arena(engine), None
    if engine.joined.shedder is not None:
        known = shedding.written(engine.joined.shedder)
        (arena.directory / SHEDDING).write_bytes(known)
        left["shedding"] = _digest(known, key).hex()
    content = json.dumps(left | {"seal": arena.seal(living, int.from_bytes(_digest(b"", key)))}).encode()
    (arena.directory / FILE).write_bytes(_digest(content, key) + content)
    return known


def read_mapped(directory: Path, key: str, plan: ExecutionPlan, replan: Replan | None) -> ShardEngine:
    """The engine that was sealed under `key`, its arrays compared with their seals; it must have run `plan`."""
    try:
        written = (directory / FILE).read_bytes()
    except OSError as error:
        raise StateError(f"{directory / FILE} cannot be read: {error}") from None
    digest, content = written[:_DIGEST], written[_DIGEST:]
    if digest != _digest(content, key):
        raise StateError(f"{directory / FILE} is damaged, or belongs to another state: its digest does not match")
    with reading(str(directory)):
        stored = json.loads(content)
        arena, digest_of_shedding = MappedArena(directory, stored.pop("seal")), stored.pop("shedding", None)
        engine = attach(arena, stored, plan, replan)
        arena.check_complete()
        if engine.joined.shedder is not None:
            known = (directory / SHEDDING).read_bytes()
            if _digest(known, key).hex() != digest_of_shedding:
                raise StateError(f"{directory / SHEDDING} is damaged: its digest does not match")
            shedding.restore(engine.joined.shedder, pa.py_buffer(known))
    return engine


def _digest(content: bytes, key: str) -> bytes:
    return blake2b(content, digest_size=_DIGEST, key=key.encode()).digest()
