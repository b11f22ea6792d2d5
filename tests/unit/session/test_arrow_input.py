"""Anything that offers Arrow data can be pushed; values are converted where none changes, and refused with a line to write."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import ConfigError, DovetailWarning, SchemaError

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("s", pa.string())])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROS = 1_767_268_800_000_000
ROWS = pa.table([[NOON, NOON], [1, 2], ["x", "y"]], schema=SCHEMA)
SQL = "SELECT a.*, b.s AS other FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.k = b.k"


def session_of(schema: Any = SCHEMA) -> dt.LocalSession:
    session = dt.LocalSession()
    session.stream("a", schema, event_time="ts")
    session.stream("b", SCHEMA if not is_wall_clock(schema) else schema, event_time="ts")
    session.query("q", SQL)
    return session


def is_wall_clock(schema: Any) -> bool:
    return isinstance(schema, pa.Schema) and schema.field("ts").type.tz is None


def pushed(data: Any, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Push data into `a`; return its columns of the results."""
    others = ROWS.cast(schema) if is_wall_clock(schema) else ROWS
    result = session_of(schema).push({"a": data, "b": others})["q"].sort_by("a_k")
    return result.drop_columns(["other"]).rename_columns(schema.names)


def pandas_frame() -> pd.DataFrame:
    return ROWS.to_pandas()


def polars_frame() -> Any:
    return pytest.importorskip("polars").from_arrow(ROWS)


def duckdb_relation() -> Any:
    rows = ROWS  # noqa: F841 - DuckDB finds it by name
    return pytest.importorskip("duckdb").connect().from_arrow(ROWS)


class OneArray:
    """A row of values as a struct array, by Arrow's interface alone."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return ROWS.to_batches()[0].__arrow_c_array__(requested_schema)


SOURCES: dict[str, Callable[[], Any]] = {
    "table": lambda: ROWS,
    "other order of columns": lambda: ROWS.select(["s", "ts", "k"]),
    "batch": lambda: ROWS.to_batches()[0],
    "array interface": OneArray,
    "pandas": pandas_frame,
    "pandas in nanoseconds": lambda: pandas_frame().astype({"ts": "datetime64[ns, UTC]"}),
    "pandas filtered": lambda: pd.concat([pandas_frame(), pandas_frame()]).iloc[[3, 0]],
    "pandas indexed by a column": lambda: pandas_frame().set_index("ts"),
    "pandas with a named index": lambda: pandas_frame().rename_axis("row").iloc[[1, 0]],
    "pandas with a nameless index beside a column": lambda: pandas_frame().set_index(["ts", pd.Index([7, 8])]),
    "table of a filtered frame": lambda: pa.Table.from_pandas(pandas_frame().iloc[[1, 0]]),
    "polars": polars_frame,
    "duckdb": duckdb_relation,
}


@pytest.mark.parametrize("source", SOURCES)
def test_sources(source: str) -> None:
    assert pushed(SOURCES[source]()).equals(ROWS)


@pytest.mark.parametrize("source", SOURCES)
def test_schemas(source: str) -> None:
    session = dt.LocalSession()
    session.stream("a", SOURCES[source](), event_time="ts")
    session.stream("b", SCHEMA, event_time="ts")
    session.query("q", SQL)
    assert session.push({"a": SOURCES[source](), "b": ROWS})["q"].num_rows == 2


def test_a_nameless_index_is_no_column_of_a_schema() -> None:
    session = session_of(SOURCES["pandas with a nameless index beside a column"]())
    assert session.push({"a": ROWS, "b": ROWS})["q"].num_rows == 2


def test_a_schema_does_not_consume_a_reader() -> None:
    reader = ROWS.to_reader()
    session = session_of(reader)
    assert session.push({"a": reader.read_all(), "b": ROWS})["q"].num_rows == 2


def test_a_reader_is_refused_unread() -> None:
    reader, session = ROWS.to_reader(), session_of()
    for batch in ({"a": reader, "b": ROWS}, {"a": reader, "b": ROWS.drop_columns(["s"])}):
        with pytest.raises(
            SchemaError, match=r"stream 'a': got a RecordBatchReader, which can be read only once"
        ) as error:
            session.push(batch)
        assert error.value.hint == "push reader.read_all()"
    assert session.push({"a": reader.read_all(), "b": ROWS})["q"].num_rows == 2


def cast_column(name: str, values: pa.Array) -> pa.Table:
    return ROWS.slice(0, len(values)).set_column(SCHEMA.get_field_index(name), name, values)


LOSSLESS: list[tuple[str, pa.DataType, pa.Array, object]] = [
    ("k", pa.int64(), pa.array([1], pa.int32()), 1),
    ("k", pa.int64(), pa.array([1], pa.uint64()), 1),
    ("k", pa.int8(), pa.array([1], pa.int64()), 1),
    ("k", pa.float64(), pa.array([1], pa.int64()), 1.0),
    ("k", pa.float64(), pa.array([1], pa.float32()), 1.0),
    ("k", pa.decimal128(21, 2), pa.array([1], pa.int64()), Decimal("1.00")),
    ("k", pa.decimal128(20, 2), pa.array([Decimal("1.0")]), Decimal("1.00")),
    ("ts", TS, pa.array([MICROS * 1000], pa.timestamp("ns", tz="UTC")), NOON),
    ("ts", TS, pa.array([MICROS // 1_000_000], pa.timestamp("s", tz="UTC")), NOON),
    ("ts", TS, pa.array([MICROS], pa.timestamp("us", tz="Europe/Berlin")), NOON),
    ("ts", TS, pa.array([MICROS], pa.timestamp("us", tz="Etc/UTC")), NOON),
    ("s", pa.string(), pa.array(["x"], pa.large_string()), "x"),
    ("s", pa.string(), pa.array(["x"], pa.string_view()), "x"),
    ("s", pa.string(), pa.array(["x"]).dictionary_encode(), "x"),
    ("s", pa.large_string(), pa.array(["x"]), "x"),
    ("s", pa.string(), pa.nulls(1), None),
    ("s", pa.binary(), pa.array([b"x"], pa.binary(1)), b"x"),
    ("s", pa.date32(), pa.array([date(2026, 1, 1)], pa.date64()), date(2026, 1, 1)),
    ("s", pa.list_(pa.int64()), pa.array([[1]], pa.large_list(pa.int32())), [1]),
    ("s", pa.struct({"x": pa.int64()}), pa.array([{"x": 1}], pa.struct({"x": pa.int32()})), {"x": 1}),
]


@pytest.mark.parametrize(("name", "declared", "values", "expected"), LOSSLESS)
def test_lossless_casts(name: str, declared: pa.DataType, values: pa.Array, expected: object) -> None:
    schema = SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, declared))
    result = pushed(cast_column(name, values), schema)
    assert result.column(name).to_pylist() == [expected]
    assert result.schema.field(name).type == declared


REFUSED: list[tuple[str, pa.DataType, pa.Array, str]] = [
    ("k", pa.int64(), pa.array([1.5]), "has type double; declared int64"),
    ("k", pa.int64(), pa.array([1.0]), "has type double; declared int64"),
    ("k", pa.int64(), pa.array(["1"]), "has type string; declared int64"),
    ("k", pa.float32(), pa.array([1.5]), "has type double; declared float"),
    ("s", pa.string(), pa.array([1]), "has type int64; declared string"),
    ("ts", TS, pa.array([MICROS * 1000 + 1], pa.timestamp("ns", tz="UTC")), "would lose data"),
    ("ts", TS, pa.array([MICROS // 1000]), "has type int64; declared timestamp"),
    ("ts", TS, pa.array([MICROS / 1_000_000]), "has type double; declared timestamp"),
    ("ts", TS, pa.array(["2026-01-01T12:00:00Z"]), "has type string; declared timestamp"),
    ("ts", pa.timestamp("us"), pa.array([MICROS], pa.timestamp("us", tz="Europe/Berlin")), "tz=Europe/Berlin"),
]


@pytest.mark.parametrize("origin", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize(("name", "declared", "values", "message"), REFUSED)
def test_refused_with_the_line_to_write(
    origin: str, name: str, declared: pa.DataType, values: pa.Array, message: str
) -> None:
    schema = SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, declared))
    table = cast_column(name, values)
    pl: Any = pytest.importorskip("polars") if origin == "polars" else None
    data = {"arrow": lambda: table, "pandas": table.to_pandas, "polars": lambda: pl.from_arrow(table)}[origin]()
    if origin == "pandas" and name == "ts" and "would lose" in message:
        data = data.assign(ts=data.ts.astype("datetime64[ns, UTC]").array + pd.Timedelta(1, "ns"))
    with pytest.raises(SchemaError, match=re.escape(f"stream 'a': column {name!r} has type ")) as error:
        session_of(schema).push({"a": data, "b": ROWS})
    if origin == "arrow":
        assert message in error.value.message
    followed = follow(error.value.hint, data, origin)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DovetailWarning)
        assert pushed(followed, schema).column(name).null_count == 0


def imports_of(hint: str) -> dict[str, Any]:
    """Run the imports that a hint names; return what they define."""
    names: dict[str, Any] = {}
    exec(hint.partition("; first: ")[2], names)  # noqa: S102 - the hint is code to run
    return names


def follow(hint: str | None, data: Any, origin: str) -> Any:
    """Run the line of a hint; return the converted table or frame."""
    assert hint is not None
    (line,) = re.findall(r"write (.*?)(?:;|$)", hint)
    pl: Any = pytest.importorskip("polars") if origin == "polars" else None
    names = {**imports_of(hint), "pd": pd, "pl": pl, "table": data, "df": data}
    exec(line, names)  # noqa: S102 - the hint is code to run
    return names["table" if origin == "arrow" else "df"]


GIVEN: dict[str, pa.Array] = {
    "int": pa.array([1, None]),
    "float": pa.array([1.0, None]),
    "decimal": pa.array([Decimal("1.00"), None]),
    "numbers as text": pa.array(["1", None]),
    "long number as text": pa.array(["9007199254740993", None]),
    "bool": pa.array([True, None]),
    "bools as text": pa.array(["True", None]),
    "binary": pa.array([b"x", None]),
    "date": pa.array([date(2026, 1, 1), None]),
    "dates as text": pa.array(["2026-01-01", None]),
    "midnight": pa.array([datetime(2026, 1, 1), None], pa.timestamp("us")),  # noqa: DTZ001 - on purpose
}
INTEGERS = (pa.int64(), pa.int8(), pa.uint16(), pa.uint64())
FLOATS = (pa.float64(), pa.float32())
CONVERTED: list[tuple[str, pa.DataType, object]] = [
    *(("float", dtype, 1) for dtype in INTEGERS),
    *(("numbers as text", dtype, 1) for dtype in (*INTEGERS, *FLOATS, pa.decimal128(10, 2))),
    ("long number as text", pa.int64(), 9007199254740993),
    ("long number as text", pa.decimal128(18, 0), Decimal(9007199254740993)),
    *(("bool", dtype, 1) for dtype in (*INTEGERS, *FLOATS)),
    *(("decimal", dtype, 1) for dtype in FLOATS),
    *((given, pa.bool_(), True) for given in ("int", "float", "bools as text")),
    ("int", pa.string(), {"1", "1.0"}),  # pandas reads it as floats, because of the NULL
    ("float", pa.string(), {"1", "1.0"}),
    ("decimal", pa.string(), "1.00"),
    ("bool", pa.string(), "true"),
    ("date", pa.string(), "2026-01-01"),
    ("binary", pa.string(), "x"),
    ("float", pa.decimal128(10, 2), Decimal("1.00")),
    ("numbers as text", pa.binary(), b"1"),
    ("dates as text", pa.date32(), date(2026, 1, 1)),
    ("midnight", pa.date32(), date(2026, 1, 1)),
]


@pytest.mark.parametrize("origin", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize(("given", "declared", "expected"), CONVERTED)
def test_conversion_lines_keep_null(origin: str, given: str, declared: pa.DataType, expected: object) -> None:
    schema = SCHEMA.set(2, pa.field("s", declared))
    table = ROWS.set_column(2, "s", GIVEN[given])
    data = data_of(table, origin)
    try:
        result = pushed(data, schema)
    except SchemaError as error:
        result = pushed(follow(error.hint, data, origin), schema)
    value, null = result.column("s").to_pylist()
    assert null is None
    assert value in expected if isinstance(expected, set) else value == expected


def test_no_line_makes_times_of_bools() -> None:
    with pytest.raises(SchemaError) as error:
        session_of().push({"a": cast_column("ts", pa.array([True]))})
    assert error.value.hint == "convert the column 'ts' to pa.timestamp('us', tz='UTC') before it is pushed"


def test_damaged_text_instead_of_times() -> None:
    damaged = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    with pytest.raises(SchemaError, match="column 'ts' has type string; declared timestamp"):
        session_of().push({"a": cast_column("ts", damaged)})


def data_of(table: pa.Table, origin: str) -> Any:
    if origin == "polars":
        return pytest.importorskip("polars").from_arrow(table)
    return table.to_pandas() if origin == "pandas" else table


NO_LINE: list[tuple[pa.Array, pa.DataType, str]] = [
    (pa.array([[1]]), pa.int64(), ""),
    (pa.array([1]), pa.list_(pa.int64()), "pa.int64()"),
    (pa.array([1]), pa.duration("us"), "pa.int64()"),
    (pa.array(["12:00"]), pa.time64("us"), "pa."),
    (pa.array([1], pa.duration("us")), pa.int64(), "pa.duration("),
    (pa.array([1], pa.time64("us")), pa.date32(), "pa.time64("),
    (pa.array([2**53 + 1]), pa.float64(), "pa.int64()"),
    (pa.array([Decimal("123.4")]), pa.decimal128(3, 1), "pa.decimal128("),
]


@pytest.mark.parametrize("origin", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize(("values", "declared", "given"), NO_LINE)
def test_where_no_line_converts_the_hint_is_to_declare_the_type(
    origin: str, values: pa.Array, declared: pa.DataType, given: str
) -> None:
    schema, data = SCHEMA.set(2, pa.field("s", declared)), data_of(cast_column("s", values), origin)
    with pytest.raises(SchemaError) as error:
        session_of(schema).push({"a": data})
    hint = str(error.value.hint)
    assert hint.startswith(f"declare the column 's' as {given}")
    assert hint.endswith(", or convert it before it is pushed")
    expression = hint.removeprefix("declare the column 's' as ").removesuffix(", or convert it before it is pushed")
    if expression.startswith("pa."):
        followed = SCHEMA.set(2, pa.field("s", eval(expression)))  # noqa: S307 - the hint is code to run
        assert pushed(data, followed).num_rows == 1


@pytest.mark.parametrize("origin", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize("dtype", [TS, pa.timestamp("us")])
@pytest.mark.parametrize("text", ["2026-01-01T12:00:00Z", "2026-01-01 12:00:00", "2026-01-01T14:00:00+0200", None])
def test_text_and_dates_as_times(origin: str, dtype: pa.DataType, text: str | None) -> None:
    schema = SCHEMA.set(0, pa.field("ts", dtype))
    data = data_of(cast_column("ts", pa.array([text or date(2026, 1, 1)])), origin)
    with pytest.raises(SchemaError) as error:
        session_of(schema).push({"a": data})
    followed = follow(error.value.hint, data, origin)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DovetailWarning)
        session = session_of(schema)
        session.push({"a": followed})
    expected = "2026-01-01T12:00:00.000000Z" if text else "2026-01-01T00:00:00.000000Z"
    assert session.metrics()["streams"]["a"]["max_event_time"] == expected


def test_times_without_a_zone_are_read_as_utc_and_said_so_once() -> None:
    naive = cast_column("ts", pa.array([MICROS], pa.timestamp("us")))
    session, batches = session_of(), [{"a": naive, "b": ROWS}, {"a": naive}]
    with pytest.warns(DovetailWarning, match="column 'ts' has no time zone and is declared with one") as caught:
        results = [session.push(batch)["q"] for batch in batches]
    assert results[0].column("a_ts").to_pylist() == [NOON]
    assert len(caught) == 1
    line = str(caught[0].message).partition("write ")[2].partition(";")[0]
    names = {**imports_of(str(caught[0].message)), "table": naive}
    exec(line, names)  # noqa: S102
    assert names["table"].schema.field("ts").type.tz == "UTC"


def test_wall_clock_streams() -> None:
    schema = SCHEMA.set(0, pa.field("ts", pa.timestamp("us")))
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, schema, event_time="ts")
    session.query("q", SQL)
    with pytest.warns(DovetailWarning, match="has the zone UTC and is declared with none: its times are read as UTC"):
        assert session.push({"a": ROWS, "b": ROWS.cast(schema)})["q"].num_rows == 2


HINTS: list[tuple[Any, str, str]] = [
    ([{"ts": NOON, "k": 1, "s": "x"}], "list", "push pa.Table.from_pylist(rows, schema=schema), for rows as dicts"),
    ({"ts": [NOON], "k": [1], "s": ["x"]}, "dict", "push pa.table(columns, schema=schema)"),
    ({"ts": NOON, "k": 1, "s": "x"}, "dict", "push pa.Table.from_pylist([row], schema=schema)"),
    (ROWS.to_batches(), "list", "push pa.Table.from_batches(batches)"),
    ([ROWS], "list", "push pa.concat_tables(tables)"),
    (
        "a.parquet",
        "'a.parquet' (str)",
        "read the file first: push pyarrow.parquet.read_table(path); first: import pyarrow.parquet",
    ),
    ("in/a.CSV", "'in/a.CSV' (str)", "read the file first: push pyarrow.csv.read_csv(path); first: import pyarrow.csv"),
    (
        "a.jsonl",
        "'a.jsonl' (str)",
        "read the file first: push pyarrow.json.read_json(path); first: import pyarrow.json",
    ),
    (
        Path("a.feather"),
        type(Path()).__name__,
        "read the file first: push pyarrow.feather.read_table(path); first: import pyarrow.feather",
    ),
    ("a", "'a' (str)", "read the file first: push pyarrow.parquet.read_table(path); first: import pyarrow.parquet"),
    (None, "NoneType", "leave a stream without new tuples out of the batch"),
    (ROWS.column("k"), "ChunkedArray", "push pa.Table.from_pylist(rows, schema=schema), for rows as dicts"),
]


def test_an_integer_that_does_not_fit() -> None:
    schema = SCHEMA.set(1, pa.field("k", pa.int8()))
    with pytest.raises(
        SchemaError, match=r"not every value fits int8 .tinyint.: Integer value 300 not in range"
    ) as error:
        session_of(schema).push({"a": cast_column("k", pa.array([300]))})
    assert error.value.hint == "declare the column 'k' as pa.int64(), which holds these values"


@pytest.mark.parametrize(("data", "kind", "hint"), HINTS)
def test_what_is_no_table(data: object, kind: str, hint: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(f"stream 'a': got {kind}; expected a pyarrow.Table")) as error:
        session_of().push({"a": data})
    assert error.value.hint == hint


@pytest.mark.parametrize("path", [hint[0] for hint in HINTS if isinstance(hint[0], str)])
def test_files_are_read_by_functions_that_exist(path: str) -> None:
    with pytest.raises(SchemaError) as error:
        session_of().push({"a": path})
    (module, function) = re.findall(r"push (.*)\.(\w+)\(path", str(error.value.hint))[0]
    assert callable(getattr(importlib.import_module(module), function))


EVENT_TIMES: list[pa.Array] = [
    pa.array([MICROS // 1000]),
    pa.array([MICROS / 1_000_000]),
    pa.array(["2026-01-01T12:00:00Z"]),
]


@pytest.mark.parametrize("origin", ["arrow", "pandas", "polars", "schema"])
@pytest.mark.parametrize("values", EVENT_TIMES, ids=str)
def test_an_event_time_that_is_no_timestamp_is_refused_with_the_line_to_write(origin: str, values: pa.Array) -> None:
    table = cast_column("ts", values)
    pl: Any = pytest.importorskip("polars") if origin == "polars" else None
    frames = {"pandas": table.to_pandas, "polars": lambda: pl.from_arrow(table)}
    data = frames[origin]() if origin in frames else table
    with pytest.raises(SchemaError, match=r"stream 'a': event time 'ts' has type \w+; it must be a timestamp") as error:
        session_of(table.schema if origin == "schema" else data)
    hint = str(error.value.hint)
    assert (origin == "schema") == hint.startswith(
        "declare it as pa.timestamp('us', tz='UTC') and convert what you push"
    )
    assert ("milliseconds since 1970" in hint) == pa.types.is_integer(values.type)
    (line,) = re.findall(r"write (.*?)(?:;|$)", hint)
    names = {**imports_of(hint), "pd": pd, "pl": pl, "table": data, "df": data}
    exec(line, names)  # noqa: S102 - the hint is code to run
    followed = names["df" if origin in frames else "table"]
    assert pushed(followed).column("ts").to_pylist() == [NOON]


@pytest.mark.parametrize("origin", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize("offset", ["", "Z"])
def test_the_hint_for_damaged_times_makes_them_null(origin: str, offset: str) -> None:
    table = pa.table({"ts": [f"2026-01-01T12:00:00{offset}", "damaged"], "k": [1, 2], "s": ["x", "y"]})
    pl: Any = pytest.importorskip("polars") if origin == "polars" else None
    data = {"arrow": lambda: table, "pandas": table.to_pandas, "polars": lambda: pl.from_arrow(table)}[origin]()
    with pytest.raises(SchemaError) as error:
        session_of(data)
    hint = str(error.value.hint)
    line, _, damaged = hint.partition("; first: ")[0].partition("; to read damaged values as NULL, ")
    names = {**imports_of(hint), "pd": pd, "pl": pl, "table": data, "df": data}
    if origin == "arrow":
        expression = damaged.removeprefix("use ").removesuffix(" with the format of your texts")
        times = eval(expression, names)  # noqa: S307 - the hint is code to run
    else:
        option = damaged.removeprefix("add ")
        exec(re.sub(r"(utc=True|time_zone='UTC')", rf"\1, {option}", line.partition("write ")[2]), names)  # noqa: S102
        times = pa.table(names["df"])["ts"]
    assert times.to_pylist() == [NOON, None]


def test_a_lazy_frame() -> None:
    frame = polars_frame().lazy()
    with pytest.raises(SchemaError, match="got LazyFrame") as error:
        session_of().push({"a": frame})
    assert error.value.hint == "push frame.collect()"
    assert pushed(frame.collect()).equals(ROWS)
    with pytest.raises(ConfigError, match="got a LazyFrame as schema") as schema_error:
        dt.LocalSession().stream("a", frame, event_time="ts")
    assert schema_error.value.hint == "write frame.collect()"


COLUMNS: list[tuple[pa.Table, str, str]] = [
    (
        ROWS.append_column("z", pa.array([1, 2])),
        "not declared 'z'",
        "push only the declared columns: table.select(['ts', 'k', 's'])",
    ),
    (
        ROWS.rename_columns(["TS", "k", "s"]),
        "missing 'ts'; not declared 'TS'",
        "rename them: table.rename_columns({'TS': 'ts'})",
    ),
    (
        ROWS.drop_columns(["s"]),
        "missing 's'",
        "push all declared columns; a column that no query reads need not be declared",
    ),
]


@pytest.mark.parametrize(("table", "message", "hint"), COLUMNS)
def test_other_columns(table: pa.Table, message: str, hint: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(message)) as error:
        session_of().push({"a": table})
    assert error.value.hint == hint
    line = hint.partition(": ")[2]
    if line:
        followed = eval(line, {"table": table})  # noqa: S307 - the hint is code to run
        assert pushed(followed).equals(ROWS)


def test_an_object_column_of_several_types() -> None:
    frame = pandas_frame().assign(s=["x", 2])
    with pytest.raises(SchemaError, match=r"the DataFrame cannot be converted to Arrow: .*column s") as error:
        session_of().push({"a": frame})
    assert error.value.hint == "give each column one type before pushing it"


def test_an_error_in_the_users_own_source_is_shown_as_it_is() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise OSError("no such bucket")

    session = session_of()
    with pytest.raises(OSError, match=r"^no such bucket$"):
        session.push({"a": Broken()})
    assert session.push({"a": ROWS, "b": ROWS})["q"].num_rows == 2
