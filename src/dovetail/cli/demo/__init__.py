"""The demo: a synthetic ad funnel joined in this process or on Spark, checked against a batch join."""

from dovetail.cli.demo.local import demo_local
from dovetail.cli.demo.on_spark import demo_on_spark

__all__ = ["demo_local", "demo_on_spark"]
