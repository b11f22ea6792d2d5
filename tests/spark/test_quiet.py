"""Spark's Python process beside the driver prints nothing at the first batch; Spark would pass it on to the user's terminal."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.spark.driver import builder

MODULE = "pyspark.sql.streaming.transform_with_state_driver_worker"
STARTUP = builder.settings()["spark.executorEnv.PYTHONPATH"]


def printed_by_the_process(pythonpath: list[str]) -> str:
    """Start Spark's process as the JVM does, up to its first message, and return what it prints."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*pythonpath, *sys.path]),
            "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
            "SPARK_AUTH_SOCKET_TIMEOUT": "15",
            "SPARK_BUFFER_SIZE": "65536",
        }
        process = subprocess.Popen([sys.executable, "-m", MODULE], env=environment, stdout=subprocess.PIPE, text=True)
        connection, _ = server.accept()
        with connection:
            connection.recv(10)  # the secret, with its length
            for text in (b"ok", b"%d.%d" % sys.version_info[:2]):
                connection.sendall(struct.pack("!i", len(text)) + text)
            connection.shutdown(socket.SHUT_WR)
            return process.communicate(timeout=60)[0]


@pytest.mark.parametrize(("pythonpath", "expected"), [([], ["Starting"]), ([STARTUP], [])], ids=["Spark", "quiet"])
def test_messages_of_spark_are_dropped(pythonpath: list[str], expected: list[str]) -> None:
    assert [line.split()[0] for line in printed_by_the_process(pythonpath).splitlines() if line] == expected


def test_other_output_and_other_sitecustomize_modules_stay(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.other = 'also imported'\n")
    text = "Streaming TransformWithState is printed"
    process = subprocess.run(
        [sys.executable, "-c", f"import sys; print(other, {text!r}, sys.modules['sitecustomize'].__file__)"],
        env={**os.environ, "PYTHONPATH": f"{STARTUP}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.startswith(f"also imported {text} {tmp_path}")
    assert not process.stderr


def test_an_own_log_configuration_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    option = "-Dlog4j2.configurationFile=file:"
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert option in builder.settings()["spark.driver.extraJavaOptions"]
    (tmp_path / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert option not in builder.settings()["spark.driver.extraJavaOptions"]
