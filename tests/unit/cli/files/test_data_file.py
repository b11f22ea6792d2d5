"""Files are read as streams: types, event times, pieces, and errors that say what to type."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

import dovetail as dt
from dovetail.cli.files.data_file import PIECE_ROWS, DataFile

TABLE = pa.table(
    {"ts": pa.array([1_500_000, 2_000_000], pa.timestamp("us", "UTC")), "user": [7, 8], "name": ["ann", None]}
)
LINES = '{"ts": "1970-01-01T00:00:01.5Z", "user": 7, "name": "ann"}\n{"ts": "1970-01-01T00:00:02Z", "user": 8, "name": null}\n'


def write(path: Path) -> Path:
    match path.suffix:
        case ".csv":
            csv.write_csv(TABLE, path)
        case ".tsv":
            path.write_text("ts\tuser\tname\n1970-01-01T00:00:01.5Z\t7\tann\n1970-01-01T00:00:02Z\t8\t\n")
        case ".parquet":
            parquet.write_table(TABLE, path)
        case ".arrow":
            feather.write_feather(TABLE, path, compression="uncompressed")
        case _:
            path.write_text(LINES)
    return path


def rows(file: DataFile) -> pa.Table:
    return pa.concat_tables([piece for piece, _ in file.pieces()])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".arrow", ".jsonl", ".json"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    file = DataFile.of("clicks", write(tmp_path / f"clicks{suffix}"))
    assert file.event_time(None) == "ts"
    assert rows(file).cast(TABLE.schema).equals(TABLE)
    assert [done for _, done in file.pieces()][-1] == file.size


def test_a_stream_of_arrow_batches_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "clicks.arrow"
    with path.open("wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    assert rows(DataFile.of("clicks", path)).equals(TABLE)


def test_the_files_of_a_directory_are_one_stream_in_pieces(tmp_path: Path) -> None:
    many = pa.table({"ts": pa.array(range(PIECE_ROWS + 1), pa.timestamp("us"))})
    (tmp_path / "part").mkdir()
    parquet.write_table(many, tmp_path / "part" / "a.parquet")
    parquet.write_table(many.slice(0, 2), tmp_path / "part" / "b.parquet")
    (tmp_path / "_success").touch()
    file = DataFile.of("clicks", tmp_path)
    assert [piece.num_rows for piece, _ in file.pieces()] == [PIECE_ROWS, 1, 2]
    assert [piece.num_rows for piece, _ in file.pieces()] == [PIECE_ROWS, 1, 2], "it can be read again"


def test_declared_columns_are_not_inferred(tmp_path: Path) -> None:
    (path := tmp_path / "calls.csv").write_text("phone,at\n+111,2026-03-02T09:00:00Z\n,2026-03-02T09:00:00Z\n")
    file = DataFile.of("calls", path, "phone string")
    assert rows(file).column("phone").to_pylist() == ["+111", None]
    (lines := tmp_path / "calls.jsonl").write_text('{"phone": "1", "at": "2026-03-02T09:00:00"}\n')
    assert DataFile.of("calls", lines, "at timestamp_ntz").schema.field("at").type == pa.timestamp("us")
    assert DataFile.of("calls", lines).schema.field("phone").type == pa.string()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "id,at\n1,soon\n",
            "has no timestamp column; columns: id int64, at string\nHint: declare .* --columns a='COLUMN timestamp', or",
        ),
        ("a.csv", "s,t\n2026-01-01,2026-01-01 00:00:01\n1970-01-01,soon\n", "has no timestamp column"),
        ("a.csv", "s,t\n2026-01-01T00:00:00,2026-01-01T00:00:00\n", "columns 's', 't'\nHint: .* --event-time a=s"),
    ],
)
def test_an_event_time_that_cannot_be_guessed(tmp_path: Path, name: str, content: str, message: str) -> None:
    (path := tmp_path / name).write_text(content)
    with pytest.raises(dt.SchemaError, match=message):
        DataFile.of("a", path).event_time(None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text("id,at\n1\n")
    with pytest.raises(dt.SchemaError, match=r"a\.csv cannot be read: CSV parse error: Expected 2 columns, got 1"):
        DataFile.of("a", path)
    (tmp_path / "mixed").mkdir()
    write(tmp_path / "mixed" / "a.csv")
    write(tmp_path / "mixed" / "b.parquet")
    with pytest.raises(dt.ConfigError, match=r"files of several kinds: '\.csv', '\.parquet'"):
        DataFile.of("a", tmp_path / "mixed")


def test_a_later_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    parquet.write_table(TABLE.drop_columns(["user"]), tmp_path / "2.parquet")
    with pytest.raises(dt.SchemaError, match=r"2\.parquet lacks the columns 'user', which .*1\.parquet has"):
        rows(DataFile.of("a", tmp_path))
