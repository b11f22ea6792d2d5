"""The oracle on cases worked out by hand, drawn as timelines (seconds of event time)."""

import ast
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import QueryError, SchemaError
from dovetail.query.expressions import Call, Column, Expression, Literal
from dovetail.query.model import (
    Condition,
    CountWindow,
    Equality,
    JoinQuery,
    Key,
    Output,
    StreamRef,
    TimeWindow,
    Window,
    equality_classes,
)
from dovetail.schema import TIMESTAMP, StreamSchema, common_type, sql_type
from dovetail.testing import Oracle
from dovetail.testing import asserts as asserts_module
from dovetail.testing import oracle as oracle_module
from dovetail.testing import values as values_module

SECOND = 1_000_000
BOOL, INT, LONG, FLOAT, DOUBLE, TEXT = pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()


def stream(name: str, key: pa.DataType = LONG, **options: Any) -> StreamSchema:
    return StreamSchema(name, pa.schema({"ts": TIMESTAMP, "k": key, "p": TEXT}), "ts", **options)


def batch(schema: StreamSchema, *rows: tuple[Any, ...]) -> pa.Table:
    """Build a batch from rows of (seconds, key, payload); a missing payload is NULL."""
    full = [(row[0] * SECOND, row[1], row[2] if len(row) > 2 else None) for row in rows]
    ts = pa.array([row[0] for row in full], pa.int64()).cast(TIMESTAMP)
    key = pa.array([row[1] for row in full], schema.columns.field("k").type)
    return pa.table([ts, key, pa.array([row[2] for row in full], TEXT)], schema=schema.columns)


def seconds(count: float) -> TimeWindow:
    return TimeWindow(int(count * SECOND))


def join(
    refs: Mapping[str, tuple[StreamSchema, Window]],
    *,
    on: Sequence[tuple[str, str]] = (),
    conditions: Sequence[Expression] = (),
    filters: Sequence[Expression] = (),
    select: Sequence[str] = (),
) -> JoinQuery:
    """Build a query: `on` pairs columns as `alias.column`; the output is the `ts` of each alias unless `select` is given."""

    def column(text: str) -> Column:
        alias, name = text.split(".")
        return Column(alias, name, refs[alias][0].columns.field(name).type)

    equalities = tuple(
        Equality(
            Key(column(left).alias, column(left)),
            Key(column(right).alias, column(right)),
            common_type(sql_type(column(left).type), sql_type(column(right).type)),
            f"{left} = {right}",
        )
        for left, right in on
    )
    return JoinQuery(
        name="q",
        sql="",
        refs=tuple(StreamRef(alias, schema.name, window) for alias, (schema, window) in refs.items()),
        equalities=equalities,
        conditions=tuple(Condition(expression, "") for expression in conditions),
        filters=tuple(Condition(expression, "") for expression in filters),
        outputs=tuple(
            Output(text.replace(".", "_"), column(text)) for text in (select or [f"{alias}.ts" for alias in refs])
        ),
        classes=equality_classes(equalities),
    )


def times(oracle: Oracle) -> list[tuple[Any, ...]]:
    """Return results that are event times, in seconds, sorted."""
    return sorted(tuple(value / SECOND for value in row) for row in oracle.results("q"))


def run(query: JoinQuery, streams: Sequence[StreamSchema], *pushes: Mapping[str, pa.Table]) -> Oracle:
    oracle = Oracle(streams)
    oracle.add_query(query)
    for push in pushes:
        oracle.push(push)
    return oracle


A, B, C = stream("A"), stream("B"), stream("C")


class TestTimeWindows:
    def test_edges_are_closed(self) -> None:
        # a  1......6         window 5: a tuple takes part up to 5 s after its own time
        # b        6.7        window 0: only at its own time
        query = join({"a": (A, seconds(5)), "b": (B, seconds(0))}, on=[("a.k", "b.k")])
        oracle = run(query, [A, B], {"A": batch(A, (1, 1)), "B": batch(B, (6, 1), (7, 1))})
        assert times(oracle) == [(1, 6)]

    def test_one_microsecond_outside(self) -> None:
        query = join({"a": (A, TimeWindow(5 * SECOND - 1)), "b": (B, seconds(0))}, on=[("a.k", "b.k")])
        oracle = run(query, [A, B], {"A": batch(A, (1, 1)), "B": batch(B, (6, 1))})
        assert times(oracle) == []

    def test_windows_are_per_alias_and_the_later_tuple_needs_none(self) -> None:
        # a  1.....4     a's window 3, b's 1
        # b  1..2..4..6
        query = join({"a": (A, seconds(3)), "b": (B, seconds(1))}, on=[("a.k", "b.k")])
        oracle = run(query, [A, B], {"A": batch(A, (1, 1), (4, 1)), "B": batch(B, (1, 1), (2, 1), (4, 1), (6, 1))})
        assert times(oracle) == [(1, 1), (1, 2), (1, 4), (4, 4), (4, 6)]

    def test_paper_003_table_3(self) -> None:
        # windows of 100       s1  90 100          (90 and 205, 100 and 205 are more than 100 apart;
        #                      s2          150 180  so are 90 and 195)
        #                      s3                   195 205
        query = join(
            {"a": (A, seconds(100)), "b": (B, seconds(100)), "c": (C, seconds(100))},
            on=[("a.k", "b.k"), ("b.k", "c.k")],
        )
        first = {"A": batch(A, (90, 1), (100, 1)), "B": batch(B, (150, 1), (180, 1))}
        oracle = run(query, [A, B, C], first, {"C": batch(C, (195, 1), (205, 1))})
        assert times(oracle) == [(100, 150, 195), (100, 180, 195)]

    def test_the_order_of_arrival_does_not_matter(self) -> None:
        # b is pushed first although a is older; b's window is 0, a's 5
        slow = stream("A", lateness=10 * SECOND)
        query = join({"a": (slow, seconds(5)), "b": (B, seconds(0))}, on=[("a.k", "b.k")])
        oracle = run(query, [slow, B], {"B": batch(B, (6, 1))}, {"A": batch(slow, (9, 1))}, {"A": batch(slow, (2, 1))})
        assert times(oracle) == [(2, 6)]


class TestLate:
    def test_judged_by_earlier_batches_only(self) -> None:
        # lateness 2          push 1: 10, 1      1 is not late: no batch came before
        #                     push 2: 8, 7, 30   H = 10: 8 is on time (closed), 7 is late although 30 is beside it
        late = stream("A", lateness=2 * SECOND)
        query = join({"a": (late, seconds(100)), "b": (B, seconds(100))}, on=[("a.k", "b.k")])
        oracle = run(
            query,
            [late, B],
            {"A": batch(late, (10, 1), (1, 1))},
            {"A": batch(late, (8, 1), (7, 1), (30, 1))},
            {"B": batch(B, (10, 1))},
        )
        assert times(oracle) == [(1, 10), (8, 10), (10, 10), (30, 10)]
        assert oracle.late == {"A": 1, "B": 0}
        assert oracle.progress == {"A": 30 * SECOND, "B": 10 * SECOND}

    def test_advance_raises_and_never_lowers(self) -> None:
        oracle = Oracle([A])
        oracle.advance({"A": 5 * SECOND})
        oracle.advance({"A": 3 * SECOND})
        oracle.push({"A": batch(A, (4, 1), (5, 1))})
        assert oracle.late == {"A": 1}
        oracle.push({"A": batch(A, (4, 1))})
        assert oracle.late == {"A": 2}
        assert oracle.progress == {"A": 5 * SECOND}

    def test_progress_by_takes_the_minimum_and_never_goes_back(self) -> None:
        parts = stream("A", progress_by="k")
        oracle = Oracle([parts])
        oracle.push({"A": batch(parts, (10, 1), (4, None))})
        assert oracle.progress == {"A": 4 * SECOND}  # the part NULL is read at 4
        oracle.push({"A": batch(parts, (4, 1), (3, 2), (8, None))})
        assert oracle.late == {"A": 1}  # (3, 2), judged by H = 4
        assert oracle.progress == {"A": 4 * SECOND}  # part 2 stands at 3, yet 4 was promised
        oracle.push({"A": batch(parts, (9, 2))})
        assert oracle.progress == {"A": 8 * SECOND}

    def test_far_future_is_set_aside(self) -> None:
        clock = stream("A", max_ahead=10 * SECOND)
        oracle = Oracle([clock])
        oracle.push({"A": batch(clock, (15, 1), (16, 1))}, now=5 * SECOND)
        assert oracle.ahead == {"A": 1}
        assert oracle.progress == {"A": 15 * SECOND}
        oracle.push({"A": batch(clock, (16, 1))})
        assert oracle.ahead == {"A": 1}  # no clock, no judgement

    def test_event_time_must_not_be_null(self) -> None:
        with pytest.raises(SchemaError, match="event time 'ts' is NULL"):
            Oracle([A]).push({"A": pa.table([[None], [1], [None]], schema=A.columns)})


class TestSelfJoin:
    def test_each_pair_of_aliases_once(self) -> None:
        # one stream under two aliases: t1 at 1, t2 at 2 give (1,1), (1,2), (2,1), (2,2), each once
        query = join({"x": (A, seconds(5)), "y": (A, seconds(5))}, on=[("x.k", "y.k")])
        oracle = run(query, [A], {"A": batch(A, (1, 7))}, {"A": batch(A, (2, 7))})
        assert times(oracle) == [(1, 1), (1, 2), (2, 1), (2, 2)]

    def test_equal_tuples_are_different_tuples(self) -> None:
        query = join({"x": (A, seconds(5)), "y": (A, seconds(5))}, on=[("x.k", "y.k")])
        oracle = run(query, [A], {"A": batch(A, (1, 7), (1, 7))})
        assert times(oracle) == [(1, 1)] * 4


class TestCountWindows:
    def query(self, window: CountWindow, filters: Sequence[Expression] = ()) -> JoinQuery:
        return join(
            {"a": (A, window), "b": (B, seconds(0))}, on=[("a.k", "b.k")], filters=filters, select=["a.p", "b.ts"]
        )

    def results(self, query: JoinQuery, *pushes: Mapping[str, pa.Table]) -> list[tuple[Any, ...]]:
        return sorted((row[0], row[1] / SECOND) for row in run(query, [A, B], *pushes).results("q"))

    def test_waits_for_the_watermark_to_pass(self) -> None:
        # a  1   3      b at 3 sees the last of a; not settled while another a at 3 may come
        rows = {"A": batch(A, (1, 1, "old"), (3, 1, "new")), "B": batch(B, (3, 1))}
        assert self.results(self.query(CountWindow(1)), rows) == []
        assert self.results(self.query(CountWindow(1)), rows, {"A": batch(A, (4, 9))}) == [("new", 3)]

    def test_counts_up_to_the_latest_tuple_of_the_result(self) -> None:
        # a  1  2  3  4          b at 2.5 must not see 3 and 4 although they are there
        rows = {"A": batch(A, (1, 1, "1"), (2, 1, "2"), (3, 1, "3"), (4, 9)), "B": batch(B, (2, 1))}
        assert self.results(self.query(CountWindow(2)), rows) == [("1", 2), ("2", 2)]

    def test_ties_are_broken_by_content_null_first(self) -> None:
        # three tuples at 1: contents NULL < "x" < "y"; the last two stay
        rows = {"A": batch(A, (1, 1, "y"), (1, 1), (1, 1, "x"), (2, 9)), "B": batch(B, (1, 1))}
        assert self.results(self.query(CountWindow(2)), rows) == [("x", 1), ("y", 1)]

    def test_filters_and_null_keys_take_part_in_the_count(self) -> None:
        wanted = Call("eq", (Column("a", "p", TEXT), Literal("x", TEXT)), BOOL)
        rows = {"A": batch(A, (1, 1, "x"), (2, None, "x"), (3, 1, "y"), (4, 9)), "B": batch(B, (3, 1))}
        assert self.results(self.query(CountWindow(2), [wanted]), rows) == []
        assert self.results(self.query(CountWindow(3), [wanted]), rows) == [("x", 3)]

    def test_partitions_null_is_one(self) -> None:
        # the last one per k: "b" for k = 1, "n2" for k NULL (which joins nothing but b.p = a.p below)
        query = join(
            {"a": (A, CountWindow(1, "k")), "b": (B, seconds(0))},
            on=[("a.p", "b.p")],
            select=["a.p", "b.ts"],
        )
        rows = {
            "A": batch(A, (1, 1, "a"), (1, None, "n1"), (2, 1, "b"), (2, None, "n2"), (5, 9)),
            "B": batch(B, (3, 1, "a"), (3, 1, "b"), (3, 1, "n1"), (3, 1, "n2")),
        }
        assert self.results(query, rows) == [("b", 3), ("n2", 3)]

    def test_lateness_moves_the_watermark(self) -> None:
        late = stream("A", lateness=2 * SECOND)
        query = join({"a": (late, CountWindow(1)), "b": (B, seconds(0))}, on=[("a.k", "b.k")])
        oracle = run(query, [late, B], {"A": batch(late, (3, 1)), "B": batch(B, (3, 1))})
        oracle.advance({"A": 5 * SECOND})
        assert times(oracle) == []
        oracle.advance({"A": 5 * SECOND + 1})
        assert times(oracle) == [(3, 3)]


class TestPredicates:
    def keys(self, left: pa.DataType, right: pa.DataType, pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
        """Return whether each pair joins."""
        found = []
        for one, other in pairs:
            a, b = stream("A", left), stream("B", right)
            query = join({"a": (a, seconds(1)), "b": (b, seconds(1))}, on=[("a.k", "b.k")])
            found.append(bool(run(query, [a, b], {"A": batch(a, (1, one)), "B": batch(b, (1, other))}).results("q")))
        return found

    def test_nan_zero_and_null_keys(self) -> None:
        nan = math.nan
        pairs = [(nan, nan), (0.0, -0.0), (None, None), (nan, math.inf), (math.inf, math.inf)]
        assert self.keys(DOUBLE, DOUBLE, pairs) == [True, True, False, False, True]

    def test_keys_are_compared_in_the_common_type(self) -> None:
        assert self.keys(FLOAT, DOUBLE, [(0.5, 0.5), (0.1, 0.1)]) == [True, False]
        assert self.keys(LONG, DOUBLE, [(2**53 + 1, 2.0**53), (3, 3.5)]) == [True, False]
        assert self.keys(pa.decimal128(10, 2), INT, [(Decimal("3.00"), 3), (Decimal("3.01"), 3)]) == [True, False]
        assert self.keys(pa.uint32(), INT, [(2**32 - 1, -1), (7, 7)]) == [False, True]
        assert self.keys(pa.date32(), TIMESTAMP, [(date(1970, 1, 2), 86_400 * SECOND), (date(1970, 1, 2), 1)]) == [
            True,
            False,
        ]

    def test_conditions_over_three_aliases_and_null_is_not_true(self) -> None:
        total = Call("add", (Column("a", "k", LONG), Column("b", "k", LONG)), LONG)
        query = join(
            {"a": (A, seconds(9)), "b": (B, seconds(9)), "c": (C, seconds(9))},
            conditions=[Call("lt", (total, Column("c", "k", LONG)), BOOL)],
            select=["a.k", "b.k", "c.k"],
        )
        rows = {"A": batch(A, (1, 1), (1, 2)), "B": batch(B, (1, 1), (1, None)), "C": batch(C, (1, 3), (1, 2))}
        assert run(query, [A, B, C], rows).results("q") == [(1, 1, 3)]

    def test_a_condition_without_columns(self) -> None:
        query = join({"a": (A, seconds(9)), "b": (B, seconds(9))}, on=[("a.k", "b.k")], filters=[Literal(False, BOOL)])
        assert run(query, [A, B], {"A": batch(A, (1, 1)), "B": batch(B, (1, 1))}).results("q") == []

    def test_six_aliases_are_feasible(self) -> None:
        streams = [stream(name) for name in "ABCDEF"]
        pairs = [("A.k", f"{name}.k") for name in "BCDEF"]
        query = join({schema.name: (schema, seconds(99)) for schema in streams}, on=pairs, select=["A.k"])
        rows = {schema.name: batch(schema, *((ts, ts % 13) for ts in range(25))) for schema in streams}
        assert len(run(query, streams, rows).results("q")) == 12 * 2**6 + 1


class TestQueries:
    def test_a_query_sees_only_what_comes_after_it(self) -> None:
        query = join({"a": (A, seconds(9)), "b": (B, seconds(9))}, on=[("a.k", "b.k")])
        oracle = Oracle([A, B])
        oracle.push({"A": batch(A, (5, 1))})
        oracle.add_query(query)
        oracle.push({"A": batch(A, (4, 1), (6, 1)), "B": batch(B, (6, 1))})
        assert times(oracle) == [(6, 6)]
        assert oracle.late["A"] == 1  # H = 5 was counted before the query came
        oracle.drop_query("q")
        oracle.add_query(query)
        assert times(oracle) == []

    def test_unknown_names(self) -> None:
        oracle = Oracle([A])
        with pytest.raises(QueryError, match="'q' is not running; running: none"):
            oracle.results("q")
        with pytest.raises(SchemaError, match="'Z' is not declared; declared: 'A'"):
            oracle.push({"Z": batch(A)})
        with pytest.raises(SchemaError, match="the table lacks 'k', 'p'"):
            oracle.push({"A": batch(A).select(["ts"])})
        with pytest.raises(SchemaError, match="'B' is not declared"):
            oracle.add_query(join({"a": (A, seconds(1)), "b": (B, seconds(1))}))

    def test_twice_the_same_name(self) -> None:
        oracle = Oracle([A, B])
        oracle.add_query(join({"a": (A, seconds(1)), "b": (B, seconds(1))}))
        with pytest.raises(QueryError, match="added already"):
            oracle.add_query(join({"a": (A, seconds(1)), "b": (B, seconds(1))}))


class TestTables:
    def test_payload_comes_back_unchanged(self) -> None:
        # types that Python values would lose: nanoseconds, nested times, maps
        moment = pa.timestamp("ns", "UTC")
        columns = pa.schema({"ts": moment, "k": pa.uint8(), "n": pa.list_(moment), "m": pa.map_(TEXT, INT)})
        odd = StreamSchema("A", columns, "ts")
        row = pa.table(
            [pa.array([1001], pa.int64()).cast(moment), [200], pa.array([[5]], pa.list_(moment)), [[("u", 1)]]],
            schema=columns,
        )
        query = join(
            {"a": (odd, seconds(9)), "b": (odd, seconds(9))}, on=[("a.k", "b.k")], select=["a.ts", "b.n", "a.m"]
        )
        table = run(query, [odd], {"A": row}).results_table("q")
        assert table.schema == query.schema
        assert table.column("a_ts").cast(pa.int64()).to_pylist() == [1001]
        assert table.column("b_n").combine_chunks().values.cast(pa.int64()).to_pylist() == [5]
        assert table.column("a_m").to_pylist() == [[("u", 1)]]

    def test_computed_columns_have_the_declared_type(self) -> None:
        late = Call("subtract", (Column("b", "ts", TIMESTAMP), Column("a", "ts", TIMESTAMP)), pa.duration("us"))
        query = join({"a": (A, seconds(9)), "b": (B, seconds(9))}, on=[("a.k", "b.k")])
        query = replace(query, outputs=(Output("late", late),))
        table = run(query, [A, B], {"A": batch(A, (1, 1))}, {"B": batch(B, (3, 1))}).results_table("q")
        assert table.schema == pa.schema({"late": pa.duration("us")})
        assert table.column("late").cast(pa.int64()).to_pylist() == [2 * SECOND]

    def test_no_results_is_an_empty_table(self) -> None:
        query = join({"a": (A, seconds(9)), "b": (B, seconds(9))}, on=[("a.k", "b.k")])
        assert run(query, [A, B]).results_table("q").schema == query.schema

    def test_encoded_input_is_taken_as_declared(self) -> None:
        query = join({"a": (A, seconds(9)), "b": (A, seconds(9))}, on=[("a.p", "b.p")], select=["a.p"])
        table = batch(A, (1, 1, "x"))
        table = table.set_column(2, "p", table.column("p").combine_chunks().dictionary_encode())
        assert run(query, [A], {"A": table}).results_table("q").to_pylist() == [{"a_p": "x"}]


def test_the_oracle_imports_neither_engine_nor_compute() -> None:
    # Only the imports named in these files count, not what the package imports for other reasons.
    allowed = {"dovetail.errors", "dovetail.query", "dovetail.schema", "dovetail.testing", "pyarrow"}
    for module in (oracle_module, values_module, asserts_module):
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        named |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        ours = {name for name in named if name.split(".")[0] not in sys.stdlib_module_names}
        assert ours, module
        assert all(name in allowed or name.rpartition(".")[0] in allowed - {"pyarrow"} for name in ours), ours


def test_importing_the_oracle_loads_no_compiler() -> None:
    program = "import sys, dovetail.testing; print([m for m in ('numba', 'hypothesis', 'pyspark') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
