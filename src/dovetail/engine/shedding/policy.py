"""What a policy is: a name, and by what kernels rank tuples for it. Each is a file of this package; `POLICIES` lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to choose what is forgotten."""

    name: str
    rank: int
    """How kernels call it."""
