"""What one tuple costs: milliseconds to insert, delete and join it, bytes to keep it.

The thesis (Alrahmani, table 2-1) has three prices, C_i, C_d and C_j, and counts memory in tuples. We add bytes, because a budget is in
bytes, and because a stored match is smaller than the tuples it is made of: the engine keeps row numbers, not copies. And we add two
prices that the thesis leaves out: a probe that finds nothing costs, too, and a result has to be delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dovetail.config import is_number
from dovetail.errors import ConfigError


@dataclass(frozen=True)
class UnitCosts:
    """Prices of the basic operations on this machine.

    The defaults are round figures, not measured: some millions of tuples per second, as a compiled hash join does on one core,
    and narrow rows. Measure your own for budgets that mean something.

    Parameters
    ----------
    insert, delete
        Milliseconds to put a tuple into a window and its indexes, and to take it out (C_i, C_d).
    store
        Milliseconds to store a match; None for as much as a tuple (the thesis has one price for both).
    join
        Milliseconds per tuple that a probe produces, partial results included (C_j).
    probe
        Milliseconds per probe, whatever it finds.
    result
        Milliseconds to gather the columns of one result for one query.
    batch_result, batch_store, batch_stage
        Milliseconds that a batch costs each query, each stored sub-join and each stage of a join, however little there is; a batch a
        second is assumed until it is known how many there are.
    tuple_bytes
        Bytes of one tuple in a window, its share of the indexes included, for streams that `stream_bytes` does not name.
    stream_bytes
        The same by stream.
    match_bytes, member_bytes
        Bytes of one stored match: so many, and so many more for each of its tuples.

    Examples
    --------
    >>> UnitCosts(stream_bytes={"orders": 250}).window_bytes("orders"), UnitCosts().state_bytes(3)
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
        given = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "stream_bytes"}
        given["store"] = self.insert if self.store is None else self.store
        given |= {f"stream_bytes[{name!r}]": value for name, value in self.stream_bytes.items()}
        for name, value in given.items():
            if not (is_number(value) and value >= 0):
                raise ConfigError(f"UnitCosts: {name} is {value!r}; it must be a number of at least 0")

    @classmethod
    def thesis(cls) -> UnitCosts:
        """Give table 4-2 (the CAPE engine), with memory in tuples: a stored match counts as one."""
        return cls(2e-4, 2e-4, 2.2e-3, tuple_bytes=1, match_bytes=1, member_bytes=0)

    def paced(self, batches: float) -> UnitCosts:
        """Give the prices where so many batches come in a second."""
        costs = {name: batches * getattr(self, name) for name in ("batch_result", "batch_store", "batch_stage")}
        return replace(self, **costs)

    @property
    def keep(self) -> float:
        """Milliseconds to put a tuple in and take it out again."""
        return self.insert + self.delete

    @property
    def keep_match(self) -> float:
        """The same for a stored match."""
        return (self.insert if self.store is None else self.store) + self.delete

    def window_bytes(self, stream: str) -> float:
        """Bytes of a tuple of a stream in its window."""
        return self.stream_bytes.get(stream, self.tuple_bytes)

    def state_bytes(self, members: int) -> float:
        """Bytes of a stored match of so many tuples."""
        return self.match_bytes + members * self.member_bytes
