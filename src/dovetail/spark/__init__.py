"""The pipeline on Apache Spark Structured Streaming."""

from dovetail.spark.builder import session

__all__ = ["session"]
