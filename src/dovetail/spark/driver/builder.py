"""A good local Spark session for newcomers, and the check of anybody's own.

`session` needs no knowledge of Spark: it gives an embedded session that retries a task whose worker died, keeps state in RocksDB and
runs Python workers with this very interpreter. `check` refuses a session only for what is known to break the pipeline, and names the
line that mends it. It reads the session and changes nothing: an option set behind the user's back would also hold for their other
queries.

What `check` lets pass, on purpose (each tried on Spark 4.3.0):

- any `spark.sql.session.timeZone`: `mapInArrow` gets a timestamp as microseconds since 1970 in UTC whatever the zone; only the Arrow
  type's label differs (`timestamp[us, tz=<session zone>]`);
- any `spark.sql.execution.arrow.maxRecordsPerBatch`: zero or less lifts the limit of rows, and that of bytes still holds;
- any `spark.sql.shuffle.partitions`, and RocksDB without changelog checkpointing: slower, not wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from dovetail.errors import ConfigError, listed
from dovetail.spark.wire import FRAME_ROWS

OLDEST = (4, 3)
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_FAILURES = 4  # per task; plain `local[*]` allows one, so a worker that dies would end the query
_LOOPBACK = "127.0.0.1"
_YOUNG = 192 << 10  # kilobytes
# Four times Java's own thresholds: optimizing took a sixth of the CPU of micro-batches 10 to 23.
_COMPILE_LATER = " ".join(
    f"-XX:Tier4{name}={4 * usual}"
    for name, usual in {
        "InvocationThreshold": 5000,
        "MinInvocationThreshold": 600,
        "CompileThreshold": 15000,
        "BackEdgeThreshold": 40000,
    }.items()
)
# What a worker imports, and how to install it. PySpark speaks to the state store in Protocol Buffers without asking for the package:
# lacking it, the query ends with "driver worker exited unexpectedly (crashed)".
_WORKER_NEEDS = {
    "dovetail": "dovetail",
    "numba": "numba",
    "pandas": "pandas<3",
    "pyarrow": "pyarrow",
    "google.protobuf.descriptor": "protobuf>=6.33.5",
}
# Run by another interpreter: prints those of its arguments that it cannot find. It looks, and imports nothing heavy.
_LOOK = """
import importlib.util, sys
for module in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        print(module)
"""


Fault = tuple[str, str]
"""What is wrong, and what mends it."""


def session(
    cores: int | str = "*", memory: str = "2g", name: str = "dovetail", *, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Give a local Spark session that suits Dovetail.

    The process's session, if it has one already, is returned as it is once `check` has passed it: then none of the arguments apply.
    Memory holds for the first session of a process only, because the JVM outlives `stop()`.

    Parameters
    ----------
    cores
        Threads that run tasks, also the number of shuffle partitions; `"*"` for all cores.
    memory
        Heap of the JVM, such as `"2g"`. Python workers and RocksDB live outside it.
    name
        The application's name.
    conf
        More Spark options by their full names; they win over the ones chosen here.
    """
    options = settings(cores, memory) | dict(conf or {})
    spark = _running()
    if spark is None:
        # Spark starts workers with the `python3` of the PATH, which is another one whenever a virtual environment is not activated.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # or Spark warns of a host name that resolves to loopback
        # The JVM and its workers: one heap for all threads, or each keeps what it once needed (0.1 GB in a JVM with two cores).
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")
        spark = SparkSession.builder.appName(name).config(map={**options}).getOrCreate()
    check(spark)
    return spark


def settings(cores: int | str = "*", memory: str = "2g") -> dict[str, str]:
    """Give the options that `session` sets, by name.

    >>> chosen = settings(cores=4)
    >>> chosen["spark.master"], chosen["spark.sql.shuffle.partitions"]
    ('local[4,4]', '4')
    """
    if not re.fullmatch(r"\*|[1-9]\d*", str(cores)):
        raise ConfigError(f"cores is {cores!r}; allowed: a number of at least 1, or '*' for all")
    if not re.fullmatch(r"[1-9]\d*[kmgt]b?", memory, re.IGNORECASE):
        raise ConfigError(f"memory is {memory!r}; allowed: a number with a unit, such as '512m' or '2g'")
    used = _usable_cores() if cores == "*" else int(cores)
    return {
        "spark.master": f"local[{cores},{_FAILURES}]",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -XX:GCTimeRatio=9 {_COMPILE_LATER} -Xmn{_young(memory)}k",
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "dovetail.spark.worker.daemon",
        "spark.python.worker.reuse": "true",
        # Nothing leaves this machine, and tuples do not shrink much.
        "spark.shuffle.compress": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Or a union of cut streams copies each of their large rows once more.
        "spark.sql.codegen.wholeStage.union.enabled": "false",
        # Streaming turns it off for stateful queries, with a warning each; results of a batch are few and large.
        "spark.sql.adaptive.enabled": "false",
        # Each broadcast, of which a micro-batch has several, begins with a buffer of this size; 4 MB if it is not set.
        "spark.broadcast.blockSize": "256k",
        # See `wire.fillers`.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(FRAME_ROWS),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Its variable would tell workers of the two callbacks apart: one pool serves both without it.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        # A file up to this size is read by one task: a part without a row group of its own would be a task that reads nothing.
        "spark.sql.files.openCostInBytes": "16m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(used),
        # The default starts ten processes (`chmod`, `readlink`) for each new file of a checkpoint on a local disk. This manager
        # renames files into place through Hadoop's file system, and Hive's, which Spark would take, does not replace a file.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        # State is what windows hold; checkpoints of 100 batches, looked through once a minute, would be many times that.
        "spark.sql.streaming.minBatchesToRetain": "5",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "5",
        # Files of the state have names of their own for each attempt at a batch, so that a replay never meets those of another.
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        PROVIDER: ROCKSDB,
        f"{_ROCKSDB}.changelogCheckpointing.enabled": "true",
    }


def _young(memory: str) -> int:
    """Kilobytes of a heap for what has just been made: batches on their way, which die young. Java would take a third of the heap."""
    amount, unit = re.findall(r"\d+|[kmgt]", memory.lower())
    return min(_YOUNG, (int(amount) << 10 * "kmgt".index(unit)) // 3)


def check(spark: SparkSession) -> None:
    """Refuse a session on which the pipeline would fail: raise `ConfigError` with the lines that mend all of it."""
    # A Connect session has no context, and its workers run elsewhere: nothing to look at.
    context = getattr(spark, "sparkContext", None)
    local = context is not None and str(context.master).startswith("local")
    faults = [
        *_version_faults(spark.version),
        *_provider_faults(str(spark.conf.get(PROVIDER))),
        *(_worker_faults(context.pythonExec) if context is not None and local else ()),
    ]
    if faults:
        messages, hints = zip(*faults, strict=True)
        raise ConfigError("; ".join(messages), hint="; and ".join(hints))


def _running() -> SparkSession | None:
    """Give this process's session, if there is one. `getActiveSession` would miss it in a thread that did not build it."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _version_faults(version: str) -> Iterator[Fault]:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        yield f"Spark is version {version}; needed: {needed} or later", f"pip install 'pyspark>={needed}'"


def _provider_faults(found: str) -> Iterator[Fault]:
    # By the last part of its name: vendors ship RocksDB providers of their own.
    if not found.endswith("RocksDBStateStoreProvider"):
        message = f"{PROVIDER} is {found!r}; needed: {ROCKSDB!r}, the only one that holds several states per shard"
        ready = "dovetail.spark.driver.builder.session() for one that is ready"
        yield message, f'.config("{PROVIDER}", "{ROCKSDB}") on the builder of the session, or {ready}'


def _worker_faults(python: str) -> Iterator[Fault]:
    """What an interpreter for local workers lacks of what they import."""
    found = shutil.which(python)
    own = found is not None and Path(found).parent == Path(sys.executable).parent
    missing = _missing(sys.executable if own else found)
    if missing:
        lacks = f"PYSPARK_PYTHON is {python!r} ({found or 'not found'}), which lacks {listed(missing)}"
        install = f"pip install {' '.join(repr(_WORKER_NEEDS[module]) for module in missing)}"
        other = 'os.environ["PYSPARK_PYTHON"] = sys.executable before the session is built'
        yield f"{lacks}; needed: a Python that has {listed(_WORKER_NEEDS)}", install if own else other


def _missing(python: str | None) -> list[str]:
    """List what a worker imports and this interpreter does not find."""
    if python is None:
        return [*_WORKER_NEEDS]
    if python == sys.executable:
        return [module for module in _WORKER_NEEDS if not _found(module)]
    answer = subprocess.run(  # noqa: S603
        [python, "-c", _LOOK, *_WORKER_NEEDS], check=False, capture_output=True, text=True
    )
    return answer.stdout.split() if answer.returncode == 0 else [*_WORKER_NEEDS]


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def _usable_cores() -> int:
    """Count the cores this process may run on; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
