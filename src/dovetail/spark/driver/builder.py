"""Local Spark sessions for Dovetail, and checks of the sessions that users build themselves.

`session` needs no knowledge of Spark: it returns an embedded session that retries a task whose worker died, keeps state in RocksDB and
runs Python workers with this interpreter. `check_session` refuses a session only for settings known to break the pipeline, and names
the line that fixes them. It only reads the session: an option set behind the user's back would also hold for their other queries.

`check_session` deliberately accepts (each tried on Spark 4.3.0):

- any `spark.sql.session.timeZone`: `mapInArrow` gets a timestamp as microseconds since 1970 in UTC in every zone; only the Arrow
  type's label differs (`timestamp[us, tz=<session zone>]`);
- any `spark.sql.execution.arrow.maxRecordsPerBatch`: zero or less lifts the limit of rows, but that of bytes still holds;
- any `spark.sql.shuffle.partitions`, and RocksDB without changelog checkpointing: slower, not wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from dovetail.errors import ConfigError, listed
from dovetail.spark.compat import CHECKPOINT_FILE_MANAGER, OLDEST, is_at_least, state_format, version_text
from dovetail.spark.wire import FRAME_ROWS

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
_FAILURES = 4  # per task; plain `local[*]` allows one, so a worker that dies would end the query
_LOOPBACK = "127.0.0.1"
_LOG4J = Path(__file__).with_name("log4j2.properties")
_STARTUP = Path(__file__).parent.parent / "worker" / "startup"
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
# Modules that a worker imports. PySpark uses Protocol Buffers for the state store but does not depend on the package: without it the
# query ends with "driver worker exited unexpectedly (crashed)".
_WORKER_NEEDS = ("dovetail", "numba", "pandas", "pyarrow", "google.protobuf.descriptor")
# Run by another interpreter: prints the modules that it cannot find, and imports nothing heavy.
_PRINT_MISSING = """
import importlib.util, sys
for module in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        print(module)
"""


Fault = tuple[str, str]
"""A message and a hint."""
_BUILD_AGAIN = "call spark.stop() and build the session again, with"
"""Begins the hint, unless all that is needed is `pip install`."""


def session(
    cores: int | str = "*", memory: str = "2g", name: str = "dovetail", *, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a local Spark session with settings that suit Dovetail.

    If the process already has a session that `check_session` accepts, that one is returned, and the arguments do not apply. If it
    has one without the settings that Dovetail needs, a new session on the same Spark is returned, with SQL options of its own: those
    of the first one stay as they are. Read the frames of streams with the session that is returned. Memory holds for the first
    session of a process only, because the JVM outlives `stop()`.

    Parameters
    ----------
    cores
        Threads that run tasks, also the number of shuffle partitions; `"*"` for all cores.
    memory
        Heap of the JVM, such as `"2g"`. Python workers and RocksDB live outside it.
    name
        The application's name.
    conf
        More Spark options by their full names; they override the ones chosen here.
    """
    options = settings(cores, memory) | dict(conf or {})
    spark = _active_session()
    if spark is None:
        # Spark starts workers with the `python3` of the PATH, which is another one if the virtual environment is not activated.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # or Spark warns of a host name that resolves to loopback
        # For the JVM and its workers: one heap for all threads; otherwise each keeps its peak (0.1 GB in a JVM with two cores).
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")
        spark = SparkSession.builder.appName(name).config(map={**options}).getOrCreate()
    elif any(_provider_faults(str(spark.conf.get(PROVIDER)))):
        spark = _with_options(spark, options)
    check_session(spark)
    return spark


def _with_options(spark: SparkSession, options: Mapping[str, str]) -> SparkSession:
    """Return a new session on the same Spark with those options that a running Spark can change."""
    created = spark.newSession()
    for name, value in options.items():
        if name.startswith("spark.sql.") and created.conf.isModifiable(name):
            created.conf.set(name, value)
    if any(_provider_faults(str(created.conf.get(PROVIDER)))):
        raise ConfigError(
            f"a SparkSession exists whose {PROVIDER} cannot be changed",
            "call spark.stop() on it, then dt.spark.session(); what runs on it ends",
        )
    return created


def settings(cores: int | str = "*", memory: str = "2g") -> dict[str, str]:
    """Return the options that `session` sets, by name.

    >>> chosen = settings(cores=4)
    >>> chosen["spark.master"], chosen["spark.sql.shuffle.partitions"]
    ('local[4,4]', '4')
    """
    if not re.fullmatch(r"\*|[1-9]\d*", str(cores)):
        raise ConfigError(f"cores is {cores!r}; allowed: a number of at least 1, or '*' for all", "write cores=2")
    if not re.fullmatch(r"[1-9]\d*[kmgt]b?", str(memory), re.IGNORECASE):
        raise ConfigError(
            f"memory is {memory!r}; allowed: a number with a unit, such as '512m' or '2g'", "write memory='2g'"
        )
    tasks = _usable_cores() if cores == "*" else int(cores)
    return {
        "spark.master": f"local[{cores},{_FAILURES}]",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{_log_option()}-XX:+UseParallelGC -XX:GCTimeRatio=9 {_COMPILE_LATER} "
        f"-Xmn{_young_kilobytes(memory)}k",
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "dovetail.spark.worker.daemon",
        # Its `sitecustomize` silences what Spark's Python process beside the driver prints at the first batch.
        "spark.executorEnv.PYTHONPATH": str(_STARTUP),
        "spark.python.worker.reuse": "true",
        # Data stays on this machine, and tuples compress little.
        "spark.shuffle.compress": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Otherwise a union of routed streams copies each of their large rows once more.
        "spark.sql.codegen.wholeStage.union.enabled": "false",
        # Streaming turns it off for stateful queries, with a warning each time; the rows of a batch are few and large.
        "spark.sql.adaptive.enabled": "false",
        # Each broadcast, of which a micro-batch has several, begins with a buffer of this size; 4 MB if it is not set.
        "spark.broadcast.blockSize": "256k",
        # See `wire.padding_rows`.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(FRAME_ROWS),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Its environment variable would give the two callbacks separate pools of workers; without it one pool serves both.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        # A file up to this size is read by one task: if it were divided, parts without a row group would be tasks that read nothing.
        "spark.sql.files.openCostInBytes": "16m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(tasks),
        # The default starts ten processes (`chmod`, `readlink`) for each new file of a checkpoint on a local disk. This manager
        # renames files into place through Hadoop's file system, and Hive's, which Spark would take, does not replace a file.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        # With the defaults, 100 batches cleaned up once a minute, a checkpoint takes many times the size of the windows. Too few are
        # not safe either: Spark's cleanup also counts snapshots of attempts that were never committed, and then deletes an older one
        # that the committed version needs. 32 is more than the versions that lie between two snapshots.
        "spark.sql.streaming.minBatchesToRetain": "32",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "5",
        # In format 2 each attempt at a batch names its state files differently, so that a replay never reads those of another attempt.
        STATE_FORMAT: state_format(),
        PROVIDER: ROCKSDB,
        f"{_ROCKSDB}.changelogCheckpointing.enabled": "true",
    }


def _log_option() -> str:
    """Return the JVM option that selects our log configuration.

    There is none if the user has one where Spark looks for it.
    """
    homes = [os.environ.get("SPARK_CONF_DIR", ""), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]  # noqa: PTH118
    has_own = any(home and any(Path(home).glob("log4j2.*")) for home in homes)
    return "" if has_own else f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} "


def _young_kilobytes(memory: str) -> int:
    """Return the young generation's size, at most a third of the heap, Java's default: batches die young."""
    amount, unit = re.findall(r"\d+|[kmgt]", memory.lower())
    return min(_YOUNG, (int(amount) << 10 * "kmgt".index(unit)) // 3)


def check_session(spark: SparkSession) -> None:
    """Raise `ConfigError` if the pipeline would fail on a session; the hint fixes all faults at once."""
    # A Connect session has no context, and its workers run elsewhere: they cannot be checked.
    context = getattr(spark, "sparkContext", None)
    local = context is not None and str(context.master).startswith("local")
    faults = [
        *_version_faults(spark.version),
        *_provider_faults(str(spark.conf.get(PROVIDER))),
        *_format_faults(spark.version, str(spark.conf.get(STATE_FORMAT))),
        *(worker_faults(context.pythonExec) if context is not None and local else ()),
    ]
    if faults:
        raise _refusal(faults)


def _refusal(faults: Sequence[Fault]) -> ConfigError:
    """Return the error that lists faults; several have lines of their own."""
    messages, hints = zip(*faults, strict=True)
    start = "" if all(hint.startswith("pip ") for hint in hints) else f"{_BUILD_AGAIN} "
    if len(faults) == 1:
        return ConfigError(messages[0], f"{start}{hints[0]}")
    return ConfigError(
        "\n  ".join((f"the Spark session lacks {len(faults)} things that Dovetail needs:", *messages)),
        "\n  ".join((start.strip(), *hints)),
    )


def _active_session() -> SparkSession | None:
    """Return this process's session, if any; `getActiveSession` misses it in other threads."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _version_faults(version: str) -> Iterator[Fault]:
    if not is_at_least(version, OLDEST):
        needed = version_text(OLDEST)
        yield f"Spark is version {version}; needed: {needed} or later", f"pip install 'pyspark>={needed}'"


def _provider_faults(provider: str) -> Iterator[Fault]:
    # Only the end of the name is compared: vendors ship their own RocksDB providers.
    if not provider.endswith("RocksDBStateStoreProvider"):
        message = f"{PROVIDER} is {provider!r}; needed: {ROCKSDB!r}, the only one that holds several states per shard"
        yield message, f'.config("{PROVIDER}", "{ROCKSDB}") on the builder, or use dt.spark.session(), which has it'


def _format_faults(version: str, chosen: str) -> Iterator[Fault]:
    if chosen == "2" and state_format(version) == "1":
        message = f"{STATE_FORMAT} is '2'; needed with Spark {version}: '1', because it cannot read state of format 2"
        yield message, f'.config("{STATE_FORMAT}", "1") on the builder'


def worker_faults(python: str) -> Iterator[Fault]:
    """Check that the interpreter of local workers has the modules that they import."""
    path = shutil.which(python)
    is_this_one = path is not None and Path(path).parent == Path(sys.executable).parent
    missing = _missing_modules(sys.executable if is_this_one else path)
    if missing:
        lacks = f"PYSPARK_PYTHON is {python!r} ({path or 'not found'}), which lacks {listed(missing)}"
        other = 'os.environ["PYSPARK_PYTHON"] = sys.executable before it'
        yield (
            f"{lacks}; needed: a Python that has {listed(_WORKER_NEEDS)}",
            "pip install 'dovetail[spark]'" if is_this_one else other,
        )


def _missing_modules(python: str | None) -> list[str]:
    """Return the modules that a worker imports and an interpreter does not find."""
    if python is None:
        return [*_WORKER_NEEDS]
    if python == sys.executable:
        return [module for module in _WORKER_NEEDS if not _has_module(module)]
    process = subprocess.run(  # noqa: S603
        [python, "-c", _PRINT_MISSING, *_WORKER_NEEDS], check=False, capture_output=True, text=True
    )
    return process.stdout.split() if process.returncode == 0 else [*_WORKER_NEEDS]


def _has_module(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def _usable_cores() -> int:
    """Return the number of cores this process may run on; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
