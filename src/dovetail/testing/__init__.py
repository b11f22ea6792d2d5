"""Test queries against their definition: an oracle, assertions, and random scenarios.

`expected` and `Oracle` compute a query's results by nested loops over plain tuples; `assert_same_rows` compares two
tables as multisets; `random_scenario` and `scenarios` (both need hypothesis) generate streams, queries and batches. None of
it imports the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.testing.asserts import assert_same_rows
from dovetail.testing.oracle import Oracle, expected

if TYPE_CHECKING:
    from dovetail.testing.strategies import RandomCase, random_scenario, scenarios

__all__ = ["Oracle", "RandomCase", "assert_same_rows", "expected", "random_scenario", "scenarios"]


def __getattr__(name: str) -> Any:
    # Only the generators need hypothesis, so the oracle must import without it.
    if name in ("RandomCase", "random_scenario", "scenarios"):
        try:
            from dovetail.testing import strategies  # noqa: PLC0415 - on first use
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "hypothesis":
                raise
            raise ImportError(f"dovetail.testing.{name} needs hypothesis\nHint: pip install hypothesis") from error
        return getattr(strategies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
