"""Checksums of a mapped arena notice changed bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.engine.storage.arena import MappedArena
from dovetail.errors import StateError


@pytest.mark.parametrize("megabytes", [1, 16])
def test_a_checksum_covers_all_of_a_small_array_and_samples_of_a_large_one(megabytes: int, tmp_path: Path) -> None:
    """Below a few megabytes any flipped bit is noticed; above, any run as long as the sampling stride, and some single bits."""
    content = np.random.default_rng(1).integers(0, 1 << 62, megabytes << 17, dtype=np.int64)
    noticed = 0
    for attempt in range(60):
        writer = MappedArena(tmp_path)
        array = writer.allocate("a", np.int64, len(content))
        array[:] = content
        expected = writer.checksums({}, salt=attempt * 7919)
        opened(tmp_path, expected, np.int64, len(content))
        places = random.Random(attempt).sample(range(len(content)), 1 if megabytes == 1 else 8)
        array[places] ^= 1
        noticed += is_refused(tmp_path, expected, len(content))
        array[places] ^= 1
        apart = 512 * expected["stride"]
        first = random.Random(attempt).randrange(len(content) - apart) if megabytes > 1 else 0
        array[first : first + apart + 512] = 0
        assert is_refused(tmp_path, expected, len(content))
    assert noticed == 60 if megabytes == 1 else 0 < noticed < 40


def opened(directory: Path, expected: Mapping[str, Any], dtype: type, length: int) -> None:
    arena = MappedArena(directory, expected)
    arena.is_attaching = True
    assert len(arena.allocate("a", dtype, length)) == length


def is_refused(directory: Path, expected: Mapping[str, Any], length: int) -> bool:
    try:
        opened(directory, expected, np.int64, length)
    except StateError:
        return True
    return False


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4095, 4096, 4097, 20_001])
def test_a_checksum_covers_every_byte_of_an_odd_length(size: int, tmp_path: Path) -> None:
    writer = MappedArena(tmp_path)
    array = writer.allocate("a", np.uint8, size)
    array[:] = np.arange(size) % 251
    first = size // 3
    expected = writer.checksums({"a": (first, size)}, 0)
    for place in {*range(first, min(first + 20, size)), *range(max(first, size - 20), size)}:
        array[place] ^= 64
        with pytest.raises(StateError, match="checksum differs"):
            opened(tmp_path, expected, np.uint8, size)
        array[place] ^= 64
    array[: first // 8 * 8] = 0  # outside the checked range
    arena = MappedArena(tmp_path, expected)
    with pytest.raises(StateError, match="does not use"):
        arena.check_complete()
    arena.is_attaching = True
    arena.allocate("a", np.uint8, size)
    arena.check_complete()
