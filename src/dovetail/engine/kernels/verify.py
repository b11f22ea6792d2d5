"""Mark matches whose key values are equal, and drop unmarked ones in place."""

from __future__ import annotations

from dovetail._typing import ByteArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel


@kernel
def mark_equal_codes(
    left: Int64Array, left_base: int, left_code: UInt64Array,
    right: Int64Array, right_base: int, right_code: UInt64Array,
    marks: Int64Array,
) -> None:  # fmt: skip
    """Mark the matches whose two codes are equal."""
    for k in range(len(left)):
        marks[k] = left_code[left[k] - left_base] == right_code[right[k] - right_base]


@kernel
def mark_equal_bytes(
    left: Int64Array, left_base: int,
    left_starts: Int64Array, left_lengths: Int64Array, left_heap: int, left_data: ByteArray,
    right: Int64Array, right_base: int,
    right_starts: Int64Array, right_lengths: Int64Array, right_heap: int, right_data: ByteArray,
    marks: Int64Array,
) -> None:  # fmt: skip
    """Mark the matches whose two values have equal bytes."""
    for k in range(len(left)):
        a = left[k] - left_base
        b = right[k] - right_base
        length = left_lengths[a]
        same = length == right_lengths[b]
        if same:
            i = left_starts[a] - left_heap
            j = right_starts[b] - right_heap
            for offset in range(length):
                if left_data[i + offset] != right_data[j + offset]:
                    same = False
                    break
        marks[k] = same


@kernel
def keep_marked(partial: Int64Array, count: int, marks: Int64Array) -> int:
    """Drop partial results whose mark is zero, in place; return how many remain."""
    kept = 0
    for k in range(count):
        if marks[k] != 0:
            partial[kept, :] = partial[k, :]
            kept += 1
    return kept


@kernel
def keep_marked_results(rows: Int64Array, begin: int, marks: Int64Array) -> int:
    """Drop matches from column `begin` on whose mark is zero; return the end of the rest."""
    kept = begin
    for k in range(len(marks)):
        if marks[k] != 0:
            for column in range(rows.shape[0]):
                rows[column, kept] = rows[column, begin + k]
            kept += 1
    return kept
