"""Joins on Apache Spark Structured Streaming.

The package loads its two functions when they are first used, because every process that Spark starts imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail._extras import requires_extra

with requires_extra("spark", "dovetail on Spark"):
    from dovetail.spark.compat import check_installed, hide_pandas_warning

check_installed()
hide_pandas_warning()

if TYPE_CHECKING:
    from dovetail.spark.driver.builder import session
    from dovetail.spark.generated import register_workloads

__all__ = ["register_workloads", "session"]

_LAZY = {"session": "dovetail.spark.driver.builder", "register_workloads": "dovetail.spark.generated"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dovetail.spark' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
