"""Spark's Python worker daemon, with engine and kernels loaded before any worker starts.

Workers are forked from the daemon, so imports and compilation cost seconds once per executor instead of once per worker, and
workers share their memory. Forking is safe: the libraries start no threads except allocators' background threads, which support it.
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
    """Import, parse and compile everything that a worker needs for its first batch."""
    # Spark puts a jar on Python's path: each search for a module would list its 6,000 classes.
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(".jar")]
    sys.path_importer_cache.clear()
    stream = StreamSchema("s", pa.schema([("t", TIMESTAMP), ("k", pa.int64())]), "t")
    parse_query("q", "SELECT a.k FROM s a [RANGE 1 SECOND], s b [RANGE 1 SECOND] WHERE a.k = b.k", {"s": stream})
    warm_up()
    checksum(np.zeros(PAGE, np.uint64), 0, PAGE, 1, 0)
    gc.collect()
    gc.freeze()  # otherwise a worker's first collection would copy every page it touches


if __name__ == "__main__":
    prepare()
    manager()
