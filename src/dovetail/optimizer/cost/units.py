"""Unit costs of a tuple: milliseconds to insert, delete and join it, and bytes to keep it.

The thesis (Alrahmani, table 2-1) has three prices, C_i, C_d and C_j, and counts memory in tuples. This module adds bytes, because a
budget is in bytes, and because a materialized match is smaller than its tuples: the engine stores row numbers, not copies. It also
adds prices that the thesis omits: of a probe, which costs even if it finds nothing, of a match to store or result to deliver, and
fixed ones per batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dovetail.config import is_number
from dovetail.errors import ConfigError


@dataclass(frozen=True)
class UnitCosts:
    """Prices of the basic operations on this machine.

    The defaults are round numbers, not measurements: some millions of tuples per second, as a compiled hash join does on one core,
    and narrow rows. Measure your machine for meaningful budgets.

    Parameters
    ----------
    insert, delete
        Milliseconds to insert a tuple into a window and its indexes, and to delete it (C_i, C_d).
    store
        Milliseconds to insert a match into a materialized join; None for the price of `insert`, as in the thesis.
    join
        Milliseconds per tuple that a probe produces, partial results included (C_j).
    probe
        Milliseconds per probe, whether or not it finds a match.
    result
        Milliseconds to gather the columns of one result for one query.
    batch_result, batch_store, batch_stage
        Fixed milliseconds per batch of each query, each materialized join and each stage of a join; one batch per second is assumed
        until `with_batch_rate` sets another rate.
    tuple_bytes
        Bytes of one tuple in a window, including its part of the indexes, for streams that `stream_bytes` does not name.
    stream_bytes
        Bytes of one tuple in a window, by stream.
    match_bytes, member_bytes
        Bytes of one materialized match: a fixed part, and a part for each of its tuples.

    Examples
    --------
    >>> UnitCosts(stream_bytes={"orders": 250}).window_bytes("orders"), UnitCosts().bytes_per_match(3)
    (250, 48.0)
    """

    insert: float = 2e-4
    delete: float = 2e-5
    join: float = 2e-4
    tuple_bytes: float = 100.0
    stream_bytes: Mapping[str, float] = field(default_factory=dict)
    match_bytes: float = 24.0
    member_bytes: float = 8.0
    probe: float = 0.0
    result: float = 0.0
    store: float | None = None
    batch_result: float = 0.0
    batch_store: float = 0.0
    batch_stage: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.stream_bytes, Mapping):
            raise ConfigError(f"UnitCosts(stream_bytes={self.stream_bytes!r}): expected {{'stream': bytes, ...}}")
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "stream_bytes"}
        values["store"] = self.insert if self.store is None else self.store
        values |= {f"stream_bytes[{name!r}]": value for name, value in self.stream_bytes.items()}
        for name, value in values.items():
            if not (is_number(value) and value >= 0):
                raise ConfigError(f"UnitCosts: {name} is {value!r}; it must be a number of at least 0")

    @classmethod
    def thesis(cls) -> UnitCosts:
        """Return the prices of table 4-2 (the CAPE engine), with memory in tuples.

        A materialized match counts as one tuple.
        """
        return cls(2e-4, 2e-4, 2.2e-3, tuple_bytes=1, match_bytes=1, member_bytes=0)

    def with_batch_rate(self, batches_per_second: float) -> UnitCosts:
        """Return the prices for another number of batches per second."""
        names = ("batch_result", "batch_store", "batch_stage")
        return replace(self, **{name: batches_per_second * getattr(self, name) for name in names})

    @property
    def keep(self) -> float:
        """Milliseconds to insert and delete a tuple."""
        return self.insert + self.delete

    @property
    def keep_match(self) -> float:
        """Milliseconds to insert and delete a match of a materialized join."""
        return (self.insert if self.store is None else self.store) + self.delete

    def window_bytes(self, stream: str) -> float:
        """Return the bytes of a tuple of `stream` in its window."""
        return self.stream_bytes.get(stream, self.tuple_bytes)

    def bytes_per_match(self, members: int) -> float:
        """Return the bytes of a materialized match of `members` tuples."""
        return self.match_bytes + members * self.member_bytes
