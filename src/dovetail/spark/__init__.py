"""Joins on Apache Spark Structured Streaming.

The package loads its functions when they are first used, because every process that Spark starts imports it.
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
    from dovetail.spark.checkpoint.inspection import inspect_checkpoint
    from dovetail.spark.driver.builder import session
    from dovetail.spark.driver.environment import check_environment, check_java
    from dovetail.spark.generated import register_workloads

__all__ = ["check_environment", "check_java", "inspect_checkpoint", "register_workloads", "session"]

_LAZY = {
    "check_environment": "dovetail.spark.driver.environment",
    "check_java": "dovetail.spark.driver.environment",
    "inspect_checkpoint": "dovetail.spark.checkpoint.inspection",
    "register_workloads": "dovetail.spark.generated",
    "session": "dovetail.spark.driver.builder",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dovetail.spark' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
