"""Directories by path, with a JVM in this process or without one."""

from __future__ import annotations

from pyspark.sql import SparkSession

from dovetail.errors import ConfigError
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.store_directory import StoreDirectory
from dovetail.spark.compat import is_connect
from dovetail.spark.sinks.stores import local_path, open_store


def directory_at(spark: SparkSession, path: str) -> Directory:
    """Return the directory that Spark reads and writes under a path.

    Over Spark Connect there is no JVM here: paths of a shared disk are made absolute, all others are reached through Arrow.
    """
    if not is_connect(spark):
        return Directory.of(spark, path)
    local = local_path(path)
    if local is None:
        return StoreDirectory.at(path, *open_store(path, {}))
    if not (path.startswith("file:") or str(spark.conf.get("spark.master", "")).startswith("local")):
        raise ConfigError(
            f"{path!r} is a path of this machine's disk, which Spark's server may not share",
            "use the URI of an object store; or a `file:` URI, if the path is mounted on all machines",
        )
    absolute = local.absolute()
    return Directory(f"file:{absolute}", absolute.resolve())
