"""The demonstration: a synthetic ad funnel joined in this process or on Spark, checked against a batch join."""

from dovetail.cli.demo.here import demo_here
from dovetail.cli.demo.on_spark import demo_on_spark

__all__ = ["demo_here", "demo_on_spark"]
