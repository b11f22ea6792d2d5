"""Engines in a directory of mapped arrays, which another process can attach to.

`engine.json` holds the engine's manifest and the checksums of all arrays (see `arena.py`). It begins with a keyed digest: the files of
another state do not match the reader's key. A reader compares everything before it returns an engine, and raises `StateError` if
anything is missing or differs. Where tuples may be shed, the file `shedding` beside it holds the shedder's state.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from dovetail.engine.join.watch import Replan
from dovetail.engine.persist.snapshot import arena_manifest, attach
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding import serialize as shedding
from dovetail.engine.storage.arena import MappedArena
from dovetail.errors import StateError, reading
from dovetail.plan.execution import ExecutionPlan

FILE = "engine.json"
SHEDDING = "shedding"
_DIGEST = 16


def write_mapped(engine: ShardEngine, key: str) -> bytes | None:
    """Write checksums and manifest beside the arrays of an engine, which must not be used afterwards.

    Return the serialized state of the shedder, if tuples may be shed.
    """
    arena = engine.arena
    if not isinstance(arena, MappedArena):
        raise StateError("an engine with arrays in memory cannot be shared", "use a MappedArena to share arrays")
    live_bytes: dict[str, tuple[int, int]] = {}
    for store in engine.stores():
        live_bytes.update(store.rows.live_bytes)
        for column in store.columns.values():
            live_bytes.update(column.live_bytes)
    manifest, shedder_state = arena_manifest(engine), None
    if engine.joined.shedder is not None:
        shedder_state = shedding.serialize_shedder(engine.joined.shedder)
        (arena.directory / SHEDDING).write_bytes(shedder_state)
        manifest["shedding"] = _digest(shedder_state, key).hex()
    content = json.dumps(manifest | {"seal": arena.checksums(live_bytes, int.from_bytes(_digest(b"", key)))}).encode()
    (arena.directory / FILE).write_bytes(_digest(content, key) + content)
    return shedder_state


def read_mapped(directory: Path, key: str, plan: ExecutionPlan, replan: Replan | None) -> ShardEngine:
    """Return the engine that was written with `key` and ran `plan`.

    Its arrays are compared with their checksums.
    """
    try:
        file_bytes = (directory / FILE).read_bytes()
    except OSError as error:
        raise StateError(f"{directory / FILE} cannot be read: {error}") from None
    digest, content = file_bytes[:_DIGEST], file_bytes[_DIGEST:]
    if digest != _digest(content, key):
        raise StateError(f"{directory / FILE} is damaged, or belongs to another state: its digest does not match")
    with reading(str(directory)):
        manifest = json.loads(content)
        arena, shedding_digest = MappedArena(directory, manifest.pop("seal")), manifest.pop("shedding", None)
        engine = attach(arena, manifest, plan, replan)
        arena.check_complete()
        if engine.joined.shedder is not None:
            shedder_state = (directory / SHEDDING).read_bytes()
            if _digest(shedder_state, key).hex() != shedding_digest:
                raise StateError(f"{directory / SHEDDING} is damaged: its digest does not match")
            shedding.restore(engine.joined.shedder, pa.py_buffer(shedder_state))
    return engine


def _digest(content: bytes, key: str) -> bytes:
    return blake2b(content, digest_size=_DIGEST, key=key.encode()).digest()
