"""Kafka for real: a broker, Spark's own connector, and jobs that lose their driver, a worker and the broker while data flows.

`make test-kafka` runs these; DOVETAIL_KAFKA says how many jobs are killed. The broker's and the connector's jars come from Maven.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from child_job import ChildJob, kill_a_worker, wait_for_batch
from deltalake import DeltaTable
from kafka_job import COLUMNS, FIELDS, PARTITIONS, QUERIES, STREAMS
from pages import ON_KAFKA, run_page
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.errors import ConfigError, SchemaError
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle, assert_same_rows
from kafka_broker import Broker, Client, NoJarsError, connector_jars

JOBS = int(os.environ.get("DOVETAIL_KAFKA", "0"))
ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("kafka_job.py")
START = 1_790_000_000
"""Event time of the first records, in seconds since 1970."""
PER_SECOND = 12
"""Records of a topic that are sent in a second; each stands for half a second of event time."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not JOBS, reason="make test-kafka runs it: it starts a broker, whose jars Maven fetches"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        broker = Broker(tmp_path_factory.mktemp("kafka"))
        connector_jars(pyspark.__version__)
    except NoJarsError as error:
        pytest.skip(str(error))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    client = Client(broker)
    yield client
    client.close()


# -- the source -----------------------------------------------------------------------------------------------------------------


def record(second: float, **fields: Any) -> str:
    return json.dumps({"ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START + second)), **fields})


def test_what_cannot_be_read_is_an_error_before_anything_starts(
    broker: Broker, client: Client, spark: SparkSession
) -> None:
    client.create("there", 1)
    client.send("there", 0, record(0, user="ann"))
    client.flush()
    source: Any = lambda topic="there", schema=FIELDS, servers=broker.servers, **more: dt.sources.kafka(  # noqa: E731
        spark, servers, topic, schema, **more
    )
    with pytest.raises(ConfigError, match=r"topic 'their' .* does not exist\nHint: .*--create --topic their"):
        source("their")
    impatient = {f"kafka.{name}.timeout.ms": "2000" for name in ("request", "default.api")}
    with pytest.raises(ConfigError, match="no broker answers"):
        source(servers="127.0.0.1:1", options=impatient)
    with pytest.raises(ConfigError, match="have no address"):
        source(servers="localhost")
    with pytest.raises(ConfigError, match=r"cannot be read: .*Invalid value XYZ for configuration"):
        source(options={"kafka.security.protocol": "XYZ"})
    with pytest.raises(
        SchemaError, match=r"none of the first 1 records fits the schema struct<.*>; the first is '{\"ts\""
    ):
        source(schema="ts timestamp, user bigint")
    with pytest.warns(dt.DovetailWarning, match=r"no field 'uzer' .*\nHint: did you mean 'user'\?"):
        source(schema="ts timestamp, uzer string")


def test_records_that_do_not_fit_are_counted(
    broker: Broker, client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    for topic in ("shown", "clicked"):
        client.create(topic, 2)
        for n in range(10):
            client.send(topic, n % 2, record(n, user=n))
    for value in ("no JSON", record(3, user="a name"), '{"user": 7}'):
        client.send("clicked", 0, value)
    client.flush()
    session = dt.Session(spark, shards=2)
    for topic in ("shown", "clicked"):
        frame = dt.sources.kafka(spark, broker.servers, topic, "ts timestamp, user bigint")
        session.stream(topic, frame, "ts", progress_by="kafka_partition")
    session.query("q", "SELECT s.user FROM shown s [RANGE 1 s], clicked c [RANGE 1 s] WHERE s.user = c.user")
    sink = dt.sinks.memory()
    running = session.start({"q": sink}, tmp_path / "checkpoint", {"availableNow": True})
    running.await_termination()
    table = sink.table()
    assert table is not None
    assert sorted(table.column("user").to_pylist()) == list(range(10))
    assert running.metrics()["streams"]["clicked"]["refused"] == 3
    assert running.metrics()["streams"]["shown"]["refused"] == 0


def test_the_programs_of_the_page_print_what_it_says(
    broker: Broker,
    client: Client,
    spark: SparkSession,  # the page's program gets this one
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for topic, partitions in {"clicks": 3, "orders": 2, "pairs": 3}.items():
        client.create(topic, partitions)
    text = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8").replace("localhost:9092", broker.servers)
    outputs = [(printed, promised) for _, printed, promised in run_page(text, "docs/kafka.md", (ON_KAFKA,))]
    assert len(outputs) == 2
    for printed, promised in outputs:
        assert printed == promised
    assert spark is SparkSession.getActiveSession()


def test_a_batch_that_is_sent_twice_has_the_same_keys(
    broker: Broker, client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    """By the columns `key` and `value` of the results, with Spark's own sink, which fails once after it has written."""
    for topic in ("asked", "answered", "both"):
        client.create(topic, 2)
    for n in range(20):
        for topic in ("asked", "answered"):
            client.send(topic, n % 2, record(n, name=f"user {n}"))
    client.flush()
    options: dict[str, Any] = {"kafka.bootstrap.servers": broker.servers, "topic": "both"}
    sink, fails = dt.sinks.format("kafka", **options), [True]

    def send(results: DataFrame, batch_id: int) -> None:
        sink.write(results, batch_id)
        if fails.pop() if fails else False:
            raise OSError("the driver dies here")

    def run() -> None:
        session = dt.Session(spark, shards=2)
        for topic in ("asked", "answered"):
            session.stream(topic, dt.sources.kafka(spark, broker.servers, topic, "ts timestamp, name string"), "ts")
        windows = "asked a [RANGE 1 s], answered b [RANGE 1 s]"
        session.query("q", f"SELECT a.name AS key, b.name AS value FROM {windows} WHERE a.name = b.name")
        session.start({"q": dt.sinks.call(send)}, tmp_path / "checkpoint", {"availableNow": True}).await_termination()

    with pytest.raises(Exception, match="the driver dies here"):
        run()
    run()
    sent = (
        spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers).option("subscribe", "both").load()
    )
    rows = [(row.key, row.value) for row in sent.selectExpr("string(key)", "string(value)").collect()]
    assert sorted(rows) == sorted(2 * [(f"user {n}",) * 2 for n in range(20)])
    assert sent.dropDuplicates(["key"]).count() == 20


# -- kills ----------------------------------------------------------------------------------------------------------------------


class Producer(threading.Thread):
    """Sends records until it is told to finish, and remembers them.

    Each partition lags behind the first by some seconds, is out of order within 20 seconds, and the last partition of `b` is idle
    after its first records.
    """

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__(daemon=True)
        self._client, self._rng = client, random.Random(seed)
        self.sent: dict[str, list[tuple[int, int, str, int]]] = {name: [] for name in PARTITIONS}
        self._counts = {name: [0] * partitions for name, partitions in PARTITIONS.items()}
        self._finishing = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._finishing.wait(1 / PER_SECOND):
                self.send()
            self._client.flush()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.error = error

    def send(self) -> None:
        """Send one record to each topic."""
        rng = self._rng
        for name, partitions in PARTITIONS.items():
            number = len(self.sent[name])
            is_idle = name == "b" and number > 60
            partition = number % partitions if number < 20 else rng.randrange(partitions - is_idle)
            milliseconds = int(1000 * (START + number / 2 - 5 * partition + rng.uniform(-10, 10)))
            row = (1000 * milliseconds, rng.randrange(12), rng.choice("pqrstuvw"), number)
            self.sent[name].append(row)
            self._counts[name][partition] += 1
            value = {"ts": as_text(milliseconds), "x": row[1], "y": row[2], "v": number}
            self._client.send(name, partition, json.dumps(value))

    def finish(self) -> None:
        self._finishing.set()
        self.join(120)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        for name, counts in self._counts.items():
            assert self._client.counts(name) == counts, "the broker has each record once"

    def oracle(self) -> Oracle:
        """Return the oracle after all records; none of them is late."""
        oracle = Oracle(STREAMS.values())
        for name, sql in QUERIES.items():
            oracle.add_query(parse_query(name, sql, STREAMS))
        oracle.push(
            {
                name: pa.table(
                    [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), COLUMNS, strict=True)],
                    COLUMNS,
                )
                for name, rows in self.sent.items()
            }
        )
        return oracle


def as_text(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:03}Z"


class KafkaJob(ChildJob):
    """A job over topics, started again whenever it has ended."""

    most_seconds = 900.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, JOB)

    def follow(self) -> None:
        """Start the job unless it runs: without its broker, Spark ends it sooner or later."""
        if not self.is_running():
            self.start("follow")

    def wait_for_batches(self, count: int) -> None:
        """Wait until so many more batches were begun and the last is under way."""
        wanted = self.begun() + count
        while not wait_for_batch(self, wanted):
            self.follow()


@contextmanager
def flowing(folder: Path, seed: int) -> Iterator[tuple[KafkaJob, Broker, Producer]]:
    broker = Broker(folder / "broker")
    broker.start()
    client = Client(broker)
    for name, partitions in PARTITIONS.items():
        client.create(name, partitions)
    producer = Producer(client, seed)
    job = KafkaJob(folder)
    jars = ",".join(map(str, connector_jars(pyspark.__version__)))
    (folder / "kafka.json").write_text(json.dumps({"servers": broker.servers, "jars": jars}), encoding="utf-8")
    try:
        for _ in range(PER_SECOND):
            producer.send()  # a partition delays progress from its first record on: each has some before the first batch
        client.flush()
        producer.start()
        yield job, broker, producer
    finally:
        producer._finishing.set()
        broker.kill()
        client.close()
        job.clear()


def written(folder: Path, query: str) -> pa.Table:
    if query == "chain":
        return DeltaTable(folder / "out" / query).to_pyarrow_table().drop_columns(["batch_id"])
    files = sorted((folder / "out" / query).glob("batch_id=*/*.parquet"))
    return pa.concat_tables([pq.ParquetFile(path).read() for path in files if not path.name.startswith(("_", "."))])


@pytest.mark.parametrize("seed", range(JOBS))
def test_driver_worker_and_broker_are_killed_while_data_flows(seed: int, broker: Broker, tmp_path: Path) -> None:
    rng = random.Random(seed)
    del broker  # skips without jars
    with flowing(tmp_path, seed) as (job, broker, producer):

        def kill_worker() -> None:
            kill_a_worker(job, rng)

        def kill_driver() -> None:
            job.crash(workers_too=rng.random() < 0.5)

        def kill_broker() -> None:
            job.note("broker")
            broker.kill()
            time.sleep(rng.uniform(0, 4))
            broker.start()

        kills: list[Callable[[], None]] = [kill_worker, kill_driver, kill_broker]
        rng.shuffle(kills)
        for kill in kills:
            job.follow()
            job.wait_for_batches(rng.randint(2, 4))
            time.sleep(rng.uniform(0, 0.5))
            assert producer.is_alive()
            kill()
        job.follow()
        job.wait_for_batches(2)
        producer.finish()
        job.crash(workers_too=True)
        job.start("drain")
        job.finish()

        streams = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
        for name, rows in producer.sent.items():
            assert streams[name]["arrivals"] == len(rows)
            assert (streams[name]["late"], streams[name]["refused"]) == (0, 0)
            assert streams[name]["state_tuples"] < len(rows), "windows of other streams expire beside an idle partition"
        oracle = producer.oracle()
        for name in QUERIES:
            wanted = oracle.results_table(name)
            assert wanted.num_rows > 100
            assert_same_rows(written(tmp_path, name).cast(wanted.schema), wanted, name)
        assert not job.live()
