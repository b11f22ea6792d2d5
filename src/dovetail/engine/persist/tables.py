"""Windows as Arrow tables.

A table has the live rows, with their event times, flags, columns, and the codes of single key parts.

A table that is read may come from anyone. It is accepted if it has the columns that its window needs, with their types,
uncompressed (a few bytes could expand to any amount of memory), with valid offsets, without NULL where none is possible, and with
event times in range. Values are not checked, as in a push: a text need not be UTF-8, nor a decimal keep to its precision.

An Arrow array holds at most two gigabytes of text and a window any amount, so a table has as many record batches as it needs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.engine.keys import combine
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.progress import LATEST
from dovetail.errors import StateError, listed

_RECORD_BATCH, _DICTIONARY_BATCH = "record batch", "dictionary"
_HEADER, _DATA, _COMPRESSION = 2, 1, 3
"""Positions of fields in Arrow's FlatBuffers: a message's header, a dictionary's record batch, a record batch's compression."""


def write_window(store: WindowStore) -> pa.Buffer:
    """Return the live rows as Arrow IPC bytes."""
    sink, rows = pa.BufferOutputStream(), store.rows
    batches = _batches(store, rows.tail, rows.head)
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _batches(store: WindowStore, first: int, stop: int) -> list[pa.RecordBatch]:
    rows, span = np.arange(first, stop), slice(first - store.rows.base, stop - store.rows.base)
    values: dict[str, Any] = {name: pa.array(store.rows[name][span]) for name in _numbers(store)}
    try:
        for name in store.columns:
            values[f"column:{name}"] = store.take(name, rows)
    except OverflowError:
        middle = (first + stop) // 2
        return [*_batches(store, first, middle), *_batches(store, middle, stop)]
    return [pa.record_batch(values)]


def read_window(store: WindowStore, content: pa.Buffer) -> Iterator[NewRows]:
    """Yield the rows of a written window, to be appended to an empty store."""
    for batch in _read(store, content):
        numbers = {name: batch.column(name).to_numpy() for name in _numbers(store)}
        parts = {key[0]: numbers[name] for key, name in store.codes.items() if len(key) == 1}
        columns = {name: batch.column(f"column:{name}") for name in store.columns}
        flags = [numbers[store.flag_name(word)] for word in range(store.flag_words)]
        codes = {key: combine([parts[part] for part in key]) for key in store.codes}
        yield NewRows(numbers["ts"], {}, columns, codes, flags)


def _numbers(store: WindowStore) -> dict[str, pa.DataType]:
    """Return the names and types of the arrays with one number per row."""
    names = [store.flag_name(word) for word in range(store.flag_words)]
    names += [name for key, name in store.codes.items() if len(key) == 1]
    return {"ts": pa.int64()} | dict.fromkeys(names, pa.uint64())


def _read(store: WindowStore, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    numbers = _numbers(store)
    expected = {**numbers, **{f"column:{name}": column.type for name, column in store.columns.items()}}
    with pa.ipc.open_stream(content) as reader:
        types = dict(zip(reader.schema.names, reader.schema.types, strict=True))
        # There may be more columns: those that only a dropped query needed.
        if len(reader.schema) != len(types) or any(types.get(name) != dtype for name, dtype in expected.items()):
            raise StateError(
                f"window {store.name!r} is stored with columns {listed(types)}; expected {listed(expected)}"
            )
        _refuse_compressed(store.name, content)
        for batch in reader:
            needed = batch.select(list(expected))
            _check(store.name, needed, list(numbers))
            yield needed


def _check(window: str, batch: pa.RecordBatch, numbers: list[str]) -> None:
    for values in batch.columns:
        _bits(values).validate(full=True)
    for name in numbers:
        if batch.column(name).null_count:
            raise StateError(f"window {window!r} is stored with NULL in {name!r}")
    ts = batch.column("ts").to_numpy()
    if len(ts) and not -LATEST <= int(ts.min()) <= int(ts.max()) <= LATEST:
        raise StateError(f"window {window!r} is stored with event times out of range")


def _bits(values: pa.Array) -> pa.Array:
    """View values as a type whose every value is valid, so that validation checks offsets and sizes only."""
    values.validate()
    dtype, types = values.type, pa.types
    if types.is_string(dtype):
        return values.view(pa.binary())
    if types.is_large_string(dtype):
        return values.view(pa.large_binary())
    if types.is_decimal(dtype):
        return values.view(pa.binary(dtype.byte_width))
    if types.is_date64(dtype) or types.is_time64(dtype):
        return values.view(pa.int64())
    return values.view(pa.int32()) if types.is_time32(dtype) else values


def _refuse_compressed(window: str, content: pa.Buffer) -> None:
    for message in pa.ipc.MessageReader.open_stream(content):
        header = _field(message.metadata, _field(message.metadata, None, None), _HEADER)
        if message.type == _DICTIONARY_BATCH:
            header = _field(message.metadata, header, _DATA)
        if message.type in (_RECORD_BATCH, _DICTIONARY_BATCH) and _field(message.metadata, header, _COMPRESSION):
            raise StateError(f"window {window!r} is stored compressed, which snapshot() never does")


def _field(metadata: pa.Buffer, table: int | None, index: int | None) -> int | None:
    """Return the offset of a table-valued field (FlatBuffers), or of the root table.

    None if the field is missing.
    """
    if index is None:
        return int(struct.unpack_from("<I", metadata, 0)[0])
    if table is None:
        return None
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    at = 4 + 2 * index
    offset = (
        struct.unpack_from("<H", metadata, fields + at)[0] if at < struct.unpack_from("<H", metadata, fields)[0] else 0
    )
    return table + offset + int(struct.unpack_from("<I", metadata, table + offset)[0]) if offset else None
