"""A job file becomes sources, options and sinks; every form of a stream has what Spark needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.job.job_file import JobFile
from dovetail.cli.job.sinks import make_sink
from dovetail.cli.main import app

JOB = """
checkpoint = "out/checkpoint"
trigger = "available now"
shards = 3
[spark]
conf = { "spark.x" = true }
[budget]
memory_bytes = 1e9
[shedding]
max_tuples = 100
[config]
strategy = "mjoin"
[streams.clicks]
path = "clicks"
event_time = "ts"
lateness = "1 min"
rate = 5
[streams.views]
path = "views.csv"
columns = "ts timestamp, k bigint"
event_time = "ts"
options = { maxFilesPerTrigger = 2, sep = ";" }
[streams.orders]
format = "kafka"
columns = "ts timestamp, k bigint"
event_time = "ts"
progress_by = "kafka_partition"
options = { "kafka.bootstrap.servers" = "broker:9092", subscribe = "orders" }
[queries.q]
sql = "SELECT c.k FROM clicks c [RANGE 1 MIN], orders o [RANGE 1 MIN] WHERE c.k = o.k"
sink = { type = "parquet", path = "out/q" }
[queries.r]
file = "r.sql"
[queries.r.sink]
type = "format"
name = "noop"
options = { x = 1 }
"""


@pytest.fixture
def job(tmp_path: Path) -> JobFile:
    (tmp_path / "clicks").mkdir()
    parquet.write_table(
        pa.table([[], []], schema=dt.parse_columns("ts timestamp, k bigint")), tmp_path / "clicks/1.parquet"
    )
    (tmp_path / "views.csv").write_text("ts;k\n")
    (tmp_path / "r.sql").write_text(
        "SELECT v.k FROM views v [RANGE 1 MIN], clicks c [RANGE 1 MIN] WHERE v.k = c.k\n;\n"
    )
    (tmp_path / "job.toml").write_text(JOB)
    return JobFile.read(tmp_path / "job.toml")


def test_options_of_the_job(job: JobFile, tmp_path: Path) -> None:
    assert job.checkpoint == str(tmp_path / "out/checkpoint")
    assert (job.trigger, job.shards) == ({"availableNow": True}, 3)
    assert job.budget == dt.Budget(memory_bytes=1e9)
    assert job.config == dt.Config(strategy="mjoin", shedding=dt.Shedding(max_tuples=100))
    assert {name: query.sql[:10] for name, query in job.queries.items()} == {"q": "SELECT c.k", "r": "SELECT v.k"}


def test_streams_in_this_process(job: JobFile) -> None:
    streams = job.local_session().explain().to_dict()["streams"]
    assert streams["clicks"] == {"event_time": "ts", "lateness": "1 min", "rate": 5.0, "used_by": ["q.c", "r.c"]}
    assert {name: stream["used_by"] for name, stream in streams.items()}["orders"] == ["q.o"]


class Reader:
    """Records how Spark would read a stream."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Reader:
            self.calls.append((name, *args, options))
            return self

        return self if name in ("readStream", "read", "schema") and not self.calls else call


def test_streams_on_spark(job: JobFile, tmp_path: Path) -> None:
    views, orders = Reader(), Reader()
    job.streams["views"]._frame(views)
    assert views.calls == [
        ("format", "csv", {}),
        ("options", {"header": "true", "maxFilesPerTrigger": "2", "sep": ";"}),
        ("schema", "ts timestamp, k bigint", {}),
        ("load", str(tmp_path / "views.csv"), {}),
    ]
    job.streams["orders"]._frame(orders)
    assert [call[0] for call in orders.calls] == ["format", "options", "load", "selectExpr", "select"]
    assert orders.calls[1][1] == {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}
    assert orders.calls[3][1] == "from_json(CAST(value AS STRING), 'ts timestamp, k bigint') AS v"


def test_sinks(job: JobFile, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    assert repr(make_sink("q", job.queries["q"].sink)) == f"parquet({str(tmp_path / 'out/q')!r})"
    assert repr(make_sink("r", job.queries["r"].sink)) == "format('noop')"


def test_the_job_file_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[4] / "docs" / "cli.md").read_text(encoding="utf-8")
    Path("funnel.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    runner = CliRunner()
    assert (
        runner.invoke(app, ["generate", "ad_funnel", "--out", "data", "--seconds", "20", "--rate", "50"]).exit_code == 0
    )
    job = JobFile.read(Path("funnel.toml"))
    assert job.trigger == {"availableNow": True}
    answer = runner.invoke(app, ["check", "funnel.toml"])
    assert answer.exit_code == 0, answer.output
    assert re.search(r"^seen: [1-9]\d* results, the same as the oracle's, over ", answer.stdout, re.MULTILINE)
