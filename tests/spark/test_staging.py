"""Results that shards write themselves: whole batches, once, whatever was killed before."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.spark.staging import Staging, local_path, plain_types


def write(staging: Staging, batch: int, shard: int, *values: int) -> None:
    with staging.writer(batch, shard, pa.schema([("v", pa.int64())])) as file:
        file.write_table(pa.table({"v": pa.array(values, pa.int64())}))


def seen(target: Path) -> list[int]:
    """What a reader of the directory sees."""
    found: list[int] = pq.read_table(target).column("v").to_pylist()
    return sorted(found)


def test_a_batch_appears_when_it_is_committed(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "run")
    staging.prepare()
    write(staging, 0, 0, 1, 2)
    write(staging, 0, 1, 3)
    assert not list(tmp_path.glob("batch_id=*"))
    staging.commit(0)
    assert seen(tmp_path) == [1, 2, 3]
    staging.clear()
    assert [entry.name for entry in tmp_path.iterdir()] == ["batch_id=0"]


def test_repeated_attempts_and_replayed_batches_replace_themselves(tmp_path: Path) -> None:
    first = Staging(str(tmp_path), "first")
    first.prepare()
    write(first, 0, 0, 1)
    write(first, 0, 0, 1)
    first.commit(0)
    write(first, 1, 0, 7)  # the driver dies before it commits
    again = Staging(str(tmp_path), "again")
    again.prepare()
    write(again, 0, 0, 1)  # the batch was committed here, but not by Spark
    again.commit(0)
    write(again, 1, 1, 8)
    again.commit(1)
    assert seen(tmp_path) == [1, 8]


def test_a_killed_attempt_leaves_nothing(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "run")
    staging.prepare()
    with pytest.raises((TypeError, pa.ArrowInvalid)):
        write(staging, 0, 0, cast("int", "not a number"))
    (tmp_path / "_dovetail-run" / "0" / ".half").write_bytes(b"PAR1")
    write(staging, 0, 0, 2)
    staging.commit(0)
    assert seen(tmp_path) == [2]
    assert [path.name for path in (tmp_path / "batch_id=0").iterdir()] == ["shard-00000.parquet"]


@pytest.mark.parametrize(
    ("path", "embedded", "expected"),
    [
        ("/data/out", True, "/data/out"),
        ("/data/out", False, None),  # the cluster's default file system, whatever that is
        ("file:///data/out%20put", False, "/data/out put"),
        ("file:/data/out", False, "/data/out"),
        ("hdfs://host/data/out", True, None),
        ("s3a://bucket/out", True, None),
    ],
)
def test_only_local_paths_are_written_directly(path: str, embedded: bool, expected: str | None) -> None:  # noqa: FBT001
    found = local_path(path, embedded=embedded)
    assert (None if found is None else str(found)) == expected


def test_types_that_only_spark_knows_how_to_write() -> None:
    plain = [pa.int8(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32(), pa.decimal128(10, 2)]
    plain += [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary()]
    assert plain_types(pa.schema([(str(number), kind) for number, kind in enumerate(plain)]))
    for other in (pa.duration("us"), pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.null()):
        assert not plain_types(pa.schema([("x", other)]))
