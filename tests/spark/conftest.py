"""One Spark session for all tests that need one: starting the JVM takes seconds, and a process has one only."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.spark.compat import INSTALLED, is_at_least
from dovetail.spark.driver import builder
from kafka_broker import connector_jars


def pytest_configure(config: pytest.Config) -> None:
    # Shown, not fatal: what PySpark warns of in its own code is not ours to mend.
    config.addinivalue_line("filterwarnings", "default:::(pyspark|py4j)")
    if not is_at_least(INSTALLED, (4, 3)):  # it leaves sockets to the garbage collector
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    jars = connector_jars(INSTALLED) if "DOVETAIL_KAFKA" in os.environ else []
    conf = {"spark.jars": ",".join(map(str, jars))} if jars else {}
    session = builder.session(cores=2, memory="1g", name="dovetail-tests", conf=conf)
    yield session
    session.stop()


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """Return a stream with the columns `timestamp` and `value`, for sessions that are not started."""
    return spark.readStream.format("rate").load()


@pytest.fixture
def session(spark: SparkSession, frame: DataFrame) -> dt.Session:
    """Return a session with the streams a and b, and no query."""
    declared = dt.Session(spark, shards=2)
    declared.stream("a", frame, "timestamp")
    declared.stream("b", frame, "timestamp")
    return declared


@pytest.fixture(autouse=True, scope="module")
def _sent_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send a test file's functions and classes to the workers whole: they cannot import it by the name pytest gave it."""
    register_pickle_by_value(request.module)  # type: ignore[no-untyped-call]
    yield
    unregister_pickle_by_value(request.module)  # type: ignore[no-untyped-call]
