"""Access arrays by address, so that a kernel can take any number of arrays in one table.

The caller keeps the arrays of a table alive, and rebuilds the table when they move.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from dovetail.engine.kernels.compile import INTERPRETED

SHORT = 16
"""Bytes that `copy_short` always copies: faster than copying the exact number."""


def _peek(address: int, index: int) -> np.int64:
    """Return entry `index` of the int64 array at `address`."""
    return np.int64(ctypes.c_int64.from_address(int(address) + 8 * int(index)).value)


def _peek_code(address: int, index: int) -> np.uint64:
    """Return entry `index` of the uint64 array at `address`."""
    return np.uint64(ctypes.c_uint64.from_address(int(address) + 8 * int(index)).value)


def _poke(address: int, index: int, value: int) -> None:
    """Set entry `index` of the int64 array at `address`."""
    ctypes.c_int64.from_address(int(address) + 8 * int(index)).value = int(value)


def _pointer(builder: Any, address: Any, index: Any) -> Any:
    word = ir.IntType(64)
    return builder.inttoptr(builder.add(address, builder.shl(index, ir.Constant(word, 3))), word.as_pointer())


def _reader(kind: Any) -> Any:
    @intrinsic
    def read(typing: Any, address: Any, index: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            return builder.load(_pointer(builder, *arguments))

        return kind(types.int64, types.int64), generate

    return read


_read, _read_code = _reader(types.int64), _reader(types.uint64)


@intrinsic
def _write(typing: Any, address: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        builder.store(arguments[2], _pointer(builder, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _fetch(address: int, index: int) -> None:
    """Prefetch entry `index` of the array at `address`; the address need not be valid."""


@intrinsic
def _prefetch(typing: Any, address: Any, index: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        int32, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32])
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, kind, "llvm.prefetch.p0i8"
        )
        pointer = builder.bitcast(_pointer(builder, *arguments), byte)
        builder.call(function, [pointer, *(ir.Constant(int32, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _copy(to: int, start: int, size: int) -> None:
    """Copy bytes from one address to another."""
    ctypes.memmove(int(to), int(start), int(size))


@intrinsic
def _memcpy(typing: Any, to: Any, start: Any, size: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        byte = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(argument, byte) for argument in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _copy_short(to: int, start: int) -> None:
    """Copy `SHORT` bytes from one address to another."""
    ctypes.memmove(int(to), int(start), SHORT)


@intrinsic
def _move(typing: Any, to: Any, start: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        kind = ir.IntType(8 * SHORT).as_pointer()
        target, source = (builder.inttoptr(argument, kind) for argument in arguments)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _viewer(kind: type[np.generic]) -> Any:
    """Return a function (address, count) that views memory as an array of `count` numbers of type `kind`."""
    if INTERPRETED:

        def read(address: int, count: int) -> Any:
            buffer: Any = (ctypes.c_char * (int(count) * np.dtype(kind).itemsize)).from_address(int(address))
            return np.frombuffer(buffer, kind)

        return read
    pointed = types.CPointer(from_dtype(np.dtype(kind)))  # type: ignore[no-untyped-call]

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return pointed(types.int64), generate

    @numba.njit(inline="always")
    def view(address: int, count: int) -> Any:
        return numba.carray(pointer(address), (count,))  # type: ignore[attr-defined,call-arg]

    return view


int64_at, uint64_at = _viewer(np.int64), _viewer(np.uint64)
int32_at, int16_at, uint8_at = _viewer(np.int32), _viewer(np.int16), _viewer(np.uint8)
copy: Any = _copy if INTERPRETED else _memcpy
copy_short: Any = _copy_short if INTERPRETED else _move
fetch: Any = _fetch if INTERPRETED else _prefetch
peek: Any = _peek if INTERPRETED else _read
peek_code: Any = _peek_code if INTERPRETED else _read_code
poke: Any = _poke if INTERPRETED else _write
