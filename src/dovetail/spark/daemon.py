"""Spark's daemon of Python workers, with all that a worker needs already imported and compiled.

Workers are forked from it: what takes seconds is done once per executor instead of once per worker, and its memory is shared. The
libraries start no thread that a fork could stop half-way: allocators' background threads at the most, which are made for that.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

import dovetail.spark.cut
import dovetail.spark.processor  # noqa: F401
from dovetail.engine.warm_up import warm_up

if __name__ == "__main__":
    warm_up()
    gc.collect()
    gc.freeze()  # or a worker's first collection would copy every page it looks at
    manager()
