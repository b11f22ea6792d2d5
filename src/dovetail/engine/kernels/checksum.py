"""A checksum of memory that costs little more than reading it.

Four lanes are independent of each other, so that a processor works on all of them at once. Each step of a lane is one-to-one in the
word that it takes in: a single word that differs, by however few bits, always gives another sum.
"""

from __future__ import annotations

import numpy as np

from dovetail._typing import UInt64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.index import GOLDEN

PAGE = 512
"""Words that are summed up together: 4 KB."""
_LEFT, _RIGHT = np.uint64(27), np.uint64(37)


@kernel
def checksum(words: UInt64Array, first: int, stop: int, stride: int, salt: int) -> np.uint64:
    """Sum up words `first` to `stop`: of each `stride` pages the one numbered `salt`, and always the last page."""
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
