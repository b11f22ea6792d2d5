"""Joins on Apache Spark Structured Streaming."""

from dovetail.spark.driver.builder import session
from dovetail.spark.generated import register_workloads

__all__ = ["register_workloads", "session"]
