"""A shedding policy: its name, and the code by which kernels rank tuples. Each policy is a module of this package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule that chooses the tuple to shed."""

    name: str
    code: int
    """Constant that kernels use."""
