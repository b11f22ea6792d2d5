"""Continuous multi-way sliding-window joins over data streams.

Importing this package is cheap: the engine and the SQL parser are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dovetail.config import Budget, Config, Shedding
from dovetail.errors import (
    BudgetError,
    ConfigError,
    DovetailError,
    DovetailWarning,
    PlanError,
    QueryError,
    SchemaError,
    StateError,
    suggestion,
)

if TYPE_CHECKING:
    from dovetail import optimizer, spark, testing
    from dovetail.live.view_file import monitor
    from dovetail.optimizer.graph.join_graph import JoinGraph
    from dovetail.session.columns import columns_text, parse_columns
    from dovetail.session.local import LocalSession
    from dovetail.spark import sources
    from dovetail.spark.checkpoint.reshard import reshard
    from dovetail.spark.checkpoint.stored_state import read_state
    from dovetail.spark.driver.job_diff import Comparison
    from dovetail.spark.running import RunningSession
    from dovetail.spark.sessions import Session
    from dovetail.spark.sinks import sinks

__all__ = [
    "Budget",
    "BudgetError",
    "Comparison",
    "Config",
    "ConfigError",
    "DovetailError",
    "DovetailWarning",
    "JoinGraph",
    "LocalSession",
    "PlanError",
    "QueryError",
    "RunningSession",
    "SchemaError",
    "Session",
    "Shedding",
    "StateError",
    "columns_text",
    "monitor",
    "optimizer",
    "parse_columns",
    "read_state",
    "reshard",
    "sinks",
    "sources",
    "spark",
    "testing",
]

__version__ = "0.1.0"

_LAZY = {
    "JoinGraph": ("dovetail.optimizer.graph.join_graph", "JoinGraph"),
    "LocalSession": ("dovetail.session.local", "LocalSession"),
    "Comparison": ("dovetail.spark.driver.job_diff", "Comparison"),
    "RunningSession": ("dovetail.spark.running", "RunningSession"),
    "Session": ("dovetail.spark.sessions", "Session"),
    "monitor": ("dovetail.live.view_file", "monitor"),
    "read_state": ("dovetail.spark.checkpoint.stored_state", "read_state"),
    "reshard": ("dovetail.spark.checkpoint.reshard", "reshard"),
    "columns_text": ("dovetail.session.columns", "columns_text"),
    "parse_columns": ("dovetail.session.columns", "parse_columns"),
    "optimizer": ("dovetail.optimizer", None),
    "testing": ("dovetail.testing", None),
    "sinks": ("dovetail.spark.sinks.sinks", None),
    "sources": ("dovetail.spark.sources", None),
    "spark": ("dovetail.spark", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        hint = suggestion(name, __all__, "")
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}{hint and f'{chr(10)}Hint: {hint}'}")
    module, attribute = _LAZY[name]
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    has_spark = (
        find_spec("pyspark") is not None
    )  # without it, `help` and completion would fail on the names that need it
    return [name for name in sorted(__all__) if has_spark or not _LAZY.get(name, ("",))[0].startswith("dovetail.spark")]
