"""Spark's daemon of Python workers, with all that a worker needs already imported and compiled.

Workers are forked from it: what takes seconds is done once per executor instead of once per worker, and its memory is shared. The
libraries start no thread that a fork could stop half-way: allocators' background threads at the most, which are made for that.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import pyarrow as pa
import pyspark.sql.streaming.proto.StateMessage_pb2
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from dovetail.engine.kernels.checksum import PAGE, checksum
from dovetail.engine.warm_up import warm_up
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema


def prepare() -> None:
    """Do what every worker would do first."""
    # Spark puts a jar on Python's path: looking for a module would read the names of its 6,000 classes.
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(".jar")]
    sys.path_importer_cache.clear()
    stream = StreamSchema("s", pa.schema([("t", TIMESTAMP), ("k", pa.int64())]), "t")
    parse_query("q", "SELECT a.k FROM s a [RANGE 1 SECOND], s b [RANGE 1 SECOND] WHERE a.k = b.k", {"s": stream})
    warm_up()
    checksum(np.zeros(PAGE, np.uint64), 0, PAGE, 1, 0)
    gc.collect()
    gc.freeze()  # or a worker's first collection would copy every page it looks at


if __name__ == "__main__":
    prepare()
    manager()
