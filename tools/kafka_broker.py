"""Run a Kafka broker on this machine: `python tools/kafka_broker.py [--port 9092] [--topic clicks:3 ...] [directory]`.

A single node, listening on the loopback address only, from Kafka's own jars. Maven fetches them, and those of Spark's connector, with
the settings of the machine, into `~/.cache/dovetail/kafka`. The data stays in the directory and is found there by the next start.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

BROKER = ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
OLDER_CONNECTOR = (
    f"{CONNECTOR}:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""The connector where a repository has none of PySpark's own version yet; the tests have run with it on PySpark 4.3."""
CONNECTOR_JARS = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
"""Artifacts of the connector that PySpark does not contain."""
START_SECONDS = 180.0


class NoJarsError(RuntimeError):
    """Maven is missing, or could not get some jars."""


# -- jars -----------------------------------------------------------------------------------------------------------------------


def cache() -> Path:
    """Return the directory of the jars."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "kafka"


def fetch(name: str, coordinates: Iterable[str], *options: str, is_complete: bool = False) -> list[Path]:
    """Return the jars of some Maven coordinates with all that they need, from the cache once they are there.

    `is_complete`: the coordinates already name all that is needed.
    """
    folder = cache() / name
    if not folder.exists():
        _fetch_into(folder, _pom(coordinates, "*" if is_complete else "org.apache.hadoop"), options)
    return sorted(folder.glob("*.jar"))


def _fetch_into(folder: Path, pom: str, options: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoJarsError("there is no Maven (mvn) on the PATH to fetch the jars of Kafka")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        Path(temporary, "pom.xml").write_text(pom, encoding="utf-8")
        command = [maven, "-B", "-q", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime", *options]
        run = subprocess.run(
            [*command, "-DoutputDirectory=jars"], cwd=temporary, capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            errors = [line for line in run.stdout.splitlines() if line.startswith("[ERROR]")]
            raise NoJarsError(f"Maven could not get the jars of {folder.name}: {' '.join(errors[:1])}")
        if not folder.exists():  # another process may have been faster
            Path(temporary, "jars").rename(folder)


def _pom(coordinates: Iterable[str], excluded: str) -> str:
    exclusion = f"<exclusion><groupId>{excluded}</groupId><artifactId>*</artifactId></exclusion>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<exclusions>{exclusion}</exclusions></dependency>"
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>jars</groupId>'
        f"<artifactId>jars</artifactId><version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def broker_jars() -> list[Path]:
    """Return the jars of the broker."""
    return fetch("broker-" + BROKER[0].rpartition(":")[2], BROKER)


def connector_jars(spark_version: str) -> list[Path]:
    """Return the jars of Spark's connector: of this version or, if there are none, of an older one."""
    own, older = f"spark-{spark_version}", "spark-older-than-" + spark_version
    if not (cache() / older).exists():
        try:
            return fetch(own, [f"{CONNECTOR}:{spark_version}"], f"-DincludeArtifactIds={CONNECTOR_JARS}")
        except NoJarsError:
            if shutil.which("mvn") is None:
                raise
    return fetch(older, OLDER_CONNECTOR, is_complete=True)


# -- the broker -----------------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Broker:
    """A broker with its data in a directory; it can be killed and started again."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder, self.port = folder.resolve(), port or free_port()
        self._controller_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.jars = broker_jars()

    @property
    def servers(self) -> str:
        """The value of `kafka.bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker and wait until it listens."""
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                raise RuntimeError(f"port {self.port} is in use; give another one: --port {free_port()}")
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text(self._properties(), encoding="utf-8")
        with (self.folder / "log").open("ab") as log:
            format_ = [
                "kafka.tools.StorageTool",
                "format",
                "-t",
                "RG92ZXRhaWwtb24tS2Fma2E",
                "-g",
                "-c",
                str(properties),
            ]
            subprocess.run([*self._java(), *format_], stdout=log, stderr=log, check=True)
            self.process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(properties)], stdout=log, stderr=log, start_new_session=True
            )
        self._wait(self.process)

    def _java(self) -> list[str]:
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", "-Xmx512m", level, "-cp", os.pathsep.join(map(str, self.jars))]

    def _properties(self) -> str:
        controller = f"127.0.0.1:{self._controller_port}"
        return "\n".join(
            [
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@{controller}",
                "controller.listener.names=CONTROLLER",
                f"listeners=PLAINTEXT://{self.servers},CONTROLLER://{controller}",
                f"advertised.listeners=PLAINTEXT://{self.servers}",
                f"log.dirs={self.folder / 'data'}",
                "auto.create.topics.enable=false",
                *(f"{name}=1" for name in ("offsets.topic.replication.factor", "offsets.topic.num.partitions")),
                *(f"transaction.state.log.{name}=1" for name in ("replication.factor", "min.isr", "num.partitions")),
                "",
            ]
        )

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        self.kill()
        log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"the broker did not start:\n{log[-2000:]}")

    def wait(self) -> None:
        """Wait until the broker ends."""
        if self.process is not None:
            self.process.wait()

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut the broker down."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(60)


class Client:
    """Creates topics and sends records, through Kafka's own client in a JVM of its own."""

    def __init__(self, broker: Broker) -> None:
        (py4j,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
        port, token = launch_gateway(
            jarpath=str(py4j),
            classpath=os.pathsep.join(map(str, broker.jars)),
            javaopts=["-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"],
            die_on_exit=True,
            enable_auth=True,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        self.java: Any = self._gateway.jvm
        settings = self.java.java.util.Properties()
        for name, value in self._settings(broker.servers).items():
            settings.put(name, value)
        self._admin = self.java.org.apache.kafka.clients.admin.AdminClient.create(settings)
        self._producer = self.java.org.apache.kafka.clients.producer.KafkaProducer(settings)

    @staticmethod
    def _settings(servers: str) -> dict[str, str]:
        serializer = "org.apache.kafka.common.serialization.StringSerializer"
        return {
            "bootstrap.servers": servers,
            "key.serializer": serializer,
            "value.serializer": serializer,
            "linger.ms": "5",
            "acks": "all",  # with the default of an idempotent producer, a record is there once, whatever happens to the broker
            "delivery.timeout.ms": "300000",
            "max.block.ms": "300000",
            "reconnect.backoff.max.ms": "500",
        }

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic if it does not exist."""
        if topic not in self._admin.listTopics().names().get():
            new = self.java.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
            self._admin.createTopics([new]).all().get()

    def send(self, topic: str, partition: int, value: str, key: str | None = None) -> None:
        """Send a record, in the background."""
        record = self.java.org.apache.kafka.clients.producer.ProducerRecord(topic, partition, key, value)
        self._producer.send(record)

    def flush(self) -> None:
        """Wait until the broker has all records."""
        self._producer.flush()

    def counts(self, topic: str) -> list[int]:
        """Return the number of records in each partition of a topic."""
        partitions = self._admin.describeTopics([topic]).allTopicNames().get()[topic].partitions()
        of = self.java.org.apache.kafka.common.TopicPartition
        latest = self.java.org.apache.kafka.clients.admin.OffsetSpec.latest()
        ends = self._admin.listOffsets({of(topic, n): latest for n in range(len(partitions))}).all().get()
        return [ends[of(topic, n)].offset() for n in range(len(partitions))]

    def close(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()


# -- as a script ----------------------------------------------------------------------------------------------------------------


def create_topics(broker: Broker, topics: Iterable[str]) -> None:
    """Create topics given as `name` or `name:partitions`."""
    client = Client(broker)
    for topic in topics:
        name, _, partitions = topic.partition(":")
        client.create(name, int(partitions or 1))
    client.close()


def main(arguments: Sequence[str]) -> int:
    """Run a broker until it is interrupted."""
    parser = argparse.ArgumentParser(description="Run a Kafka broker on this machine.")
    parser.add_argument("directory", nargs="?", default="kafka-data", help="where the data is: %(default)s")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--topic", action="append", default=[], help="create a topic, NAME:PARTITIONS")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the broker ends with this process, either way
    try:
        broker = Broker(Path(options.directory), options.port)
        jars = connector_jars(pyspark.__version__)
        broker.start()
        create_topics(broker, options.topic)
    except (NoJarsError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Kafka listens on localhost:{broker.port}; its data is in {broker.folder}. Ctrl-C ends it.")
    print(f"spark.jars: {','.join(map(str, jars))}", flush=True)
    try:
        broker.wait()
    except KeyboardInterrupt:
        broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
