"""The session that newcomers get, and what is refused in a session of one's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.errors import ConfigError
from dovetail.spark.driver import builder
from dovetail.spark.driver.builder import PROVIDER, ROCKSDB, STATE_FORMAT, check_session, session, settings

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
INSTANT = 1_700_000_000_123_456


def made_up(
    version: str = "4.3.0",
    provider: str = ROCKSDB,
    python: str = sys.executable,
    master: str = "local[2]",
    state_format: str = "1",
) -> Any:
    """Give what `check_session` looks at, without a JVM."""
    context = SimpleNamespace(master=master, pythonExec=python)
    return SimpleNamespace(version=version, conf={PROVIDER: provider, STATE_FORMAT: state_format}, sparkContext=context)


def refusal(spark: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_session(spark)
    return caught.value


@pytest.mark.core
def test_settings_are_in_force(spark: SparkSession) -> None:
    expected = settings(cores=2, memory="1g")
    assert {key: spark.conf.get(key) for key in expected} == expected
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.pythonExec == sys.executable


def test_jvm_has_the_memory_asked_for(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    heap = jvm.java.lang.Runtime.getRuntime().maxMemory()
    assert 0.8 * 2**30 < heap <= 2**30  # one survivor space is always empty and not counted


@pytest.mark.parametrize(("memory", "young"), [("1g", 196608), ("512m", 174762), ("3GB", 196608), ("99999k", 33333)])
def test_young_generation_leaves_most_of_the_heap(memory: str, young: int) -> None:
    assert settings(2, memory)["spark.driver.extraJavaOptions"].endswith(f" -Xmn{young}k")


def test_active_session_is_returned_unchanged(spark: SparkSession) -> None:
    assert session(cores=1, conf={"spark.sql.shuffle.partitions": "7"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_active_session_is_found_from_another_thread(spark: SparkSession) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(session, cores=1).result() is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_an_active_session_without_our_settings_stays_as_it_is(spark: SparkSession) -> None:
    spark.conf.set(PROVIDER, HDFS)
    try:
        assert session().conf.get(PROVIDER) == ROCKSDB
        assert spark.conf.get(PROVIDER) == HDFS
    finally:
        spark.conf.set(PROVIDER, ROCKSDB)


def test_a_frame_of_a_session_without_our_settings_is_refused(spark: SparkSession) -> None:
    """Spark runs a query with the options of its frames' session, not with those of the session given to `dt.Session`."""
    spark.conf.set(PROVIDER, HDFS)
    try:
        own = session()
        declared = dt.Session(own)
        frame = spark.readStream.format("rate").load()
        with pytest.raises(ConfigError) as caught:
            declared.stream("ticks", frame, event_time="timestamp")
    finally:
        spark.conf.set(PROVIDER, ROCKSDB)
    assert caught.value.message.startswith(
        "stream 'ticks': its DataFrame was read with another SparkSession than the one "
    )
    assert f"{PROVIDER} is '{HDFS}'" in caught.value.message
    assert str(caught.value.hint).startswith("read the frame with the session that was given to dt.Session: ")
    declared.stream("ticks", own.readStream.format("rate").load(), event_time="timestamp")
    declared.stream("others", spark.readStream.format("rate").load(), event_time="timestamp")


def test_own_session_with_the_default_provider_is_refused(spark: SparkSession) -> None:
    own = spark.newSession()
    check_session(own)
    own.conf.set(PROVIDER, HDFS)
    error = refusal(own)
    assert error.message == (
        f"{PROVIDER} is '{HDFS}'; needed: '{ROCKSDB}', the only one that holds several states per shard"
    )
    assert error.hint is not None
    assert error.hint.startswith(
        f'call spark.stop() and build the session again, with .config("{PROVIDER}", "{ROCKSDB}")'
    )
    check_session(spark)


def epoch_and_type(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        column = batch.column(0)
        epochs = column.cast(pa.int64())
        yield pa.RecordBatch.from_pydict(
            {"epoch": epochs, "type": [str(column.type)], "back": epochs.cast(pa.timestamp("us", "UTC"))}
        )


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+05:30"])
def test_any_time_zone_gives_the_same_instants(spark: SparkSession, zone: str) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", zone)
    check_session(own)
    source = own.range(0, 1, 1, 1).selectExpr(f"timestamp_micros({INSTANT}) AS at")
    rows = source.mapInArrow(epoch_and_type, "epoch bigint, type string, back timestamp")
    assert [tuple(row) for row in rows.selectExpr("epoch", "type", "unix_micros(back)").collect()] == [
        (INSTANT, f"timestamp[us, tz={zone}]", INSTANT)
    ]


@pytest.mark.parametrize("version", ["4.3.0", "4.3.0.dev1", "4.0.5", "4.10.2", "5.0.0-SNAPSHOT"])
def test_recent_versions_pass(version: str) -> None:
    check_session(made_up(version=version))


@pytest.mark.parametrize("version", ["3.5.6", "3.10.0", "unknown"])
def test_older_versions_are_refused(version: str) -> None:
    error = refusal(made_up(version=version))
    assert error.message == f"Spark is version {version}; needed: 4.0 or later"
    assert error.hint == "pip install 'pyspark>=4.0'"


def test_a_state_that_spark_cannot_read_is_refused() -> None:
    for version, chosen in (("4.0.5", "1"), ("4.1.4", "1"), ("4.1.4", "2")):
        check_session(made_up(version=version, state_format=chosen))
    error = refusal(made_up(version="4.0.5", state_format="2"))
    assert error.message == (
        f"{STATE_FORMAT} is '2'; needed with Spark 4.0.5: '1', because it cannot read state of format 2"
    )
    assert error.hint == (
        f'call spark.stop() and build the session again, with .config("{STATE_FORMAT}", "1") on the builder'
    )


def test_vendors_rocksdb_provider_passes() -> None:
    check_session(made_up(provider="com.vendor.RocksDBStateStoreProvider"))


def test_local_worker_without_our_package_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    bare.chmod(0o755)
    error = refusal(made_up(python=str(bare)))
    assert error.message.startswith(
        f"PYSPARK_PYTHON is '{bare}' ({bare}), which lacks 'dovetail', 'numba', 'pandas', 'pyarrow'"
    )
    assert error.hint == (
        'call spark.stop() and build the session again, with os.environ["PYSPARK_PYTHON"] = sys.executable before it'
    )
    # On a cluster the name means a file on other machines.
    check_session(made_up(python=str(bare), master="spark://host:7077"))


def test_own_python_without_protobuf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "find_spec", lambda module: None if module.startswith("google") else object())
    error = refusal(made_up())
    assert "which lacks 'google.protobuf.descriptor';" in error.message
    assert error.hint == "pip install 'dovetail[spark]'"


def test_local_worker_that_does_not_exist_is_refused() -> None:
    assert "(not found)" in refusal(made_up(python="/no/such/python")).message


@pytest.mark.parametrize("cores", [0, -1, "two", "", "2,4"])
def test_odd_cores_are_refused(cores: int | str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"cores is {cores!r}")):
        settings(cores=cores)


@pytest.mark.parametrize("memory", ["2", "g", "0g", "2 g", "lots"])
def test_odd_memory_is_refused(memory: str) -> None:
    with pytest.raises(ConfigError, match=f"memory is {memory!r}"):
        settings(memory=memory)


def test_all_cores() -> None:
    chosen = settings()
    assert chosen["spark.master"] == "local[*,4]"
    assert int(chosen["spark.sql.shuffle.partitions"]) >= 1
