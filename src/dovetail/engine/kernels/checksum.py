"""Compute a checksum of memory that costs little more than reading it.

Four independent lanes let the processor work in parallel. Each step of a lane is a bijection of the word that it consumes: a single
changed word, by however few bits, always changes the sum.
"""

from __future__ import annotations

import numpy as np

from dovetail._typing import UInt64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.index import GOLDEN

PAGE = 512
"""Words per page: 4 KB."""
_LEFT, _RIGHT = np.uint64(27), np.uint64(37)


@kernel
def checksum(words: UInt64Array, first: int, stop: int, stride: int, salt: int) -> np.uint64:
    """Sum words `first` to `stop`: pages whose number modulo `stride` is `salt`, and always the last page."""
    a = np.uint64(stop - first)
    b, c, d = a + GOLDEN, a ^ GOLDEN, a * GOLDEN
    last = (stop - 1) // PAGE
    page = first // PAGE
    page += (salt - page) % stride
    while first < stop:
        page = min(page, last)
        at = max(page * PAGE, first)
        end = min((page + 1) * PAGE, stop)
        while at + 3 < end:
            a ^= words[at]
            b ^= words[at + 1]
            c ^= words[at + 2]
            d ^= words[at + 3]
            a = ((a << _LEFT) | (a >> _RIGHT)) * GOLDEN
            b = ((b << _LEFT) | (b >> _RIGHT)) * GOLDEN
            c = ((c << _LEFT) | (c >> _RIGHT)) * GOLDEN
            d = ((d << _LEFT) | (d >> _RIGHT)) * GOLDEN
            at += 4
        while at < end:
            a ^= words[at]
            a = ((a << _LEFT) | (a >> _RIGHT)) * GOLDEN
            at += 1
        if page == last:
            break
        page += stride
    for lane in (b, c, d):
        a ^= lane
        a = ((a << _LEFT) | (a >> _RIGHT)) * GOLDEN
    return a
