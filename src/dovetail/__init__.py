"""Continuous multi-way sliding-window joins over data streams.

Importing this package is cheap: the engine and the SQL parser are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.config import Budget, Config
from dovetail.errors import (
    BudgetError,
    ConfigError,
    DovetailError,
    PlanError,
    QueryError,
    SchemaError,
    StateError,
)

if TYPE_CHECKING:
    from dovetail import optimizer
    from dovetail.local import LocalSession

__all__ = [
    "Budget",
    "BudgetError",
    "Config",
    "ConfigError",
    "DovetailError",
    "LocalSession",
    "PlanError",
    "QueryError",
    "SchemaError",
    "StateError",
    "optimizer",
]

__version__ = "0.1.0"

_LAZY = {"LocalSession": ("dovetail.local", "LocalSession"), "optimizer": ("dovetail.optimizer", None)}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted(__all__)
