"""`expected` gives the results that a session returns."""

import pyarrow as pa
import pytest
from two_streams import SCHEMA, TS, table

import dovetail as dt
from dovetail.errors import ConfigError, SchemaError
from dovetail.testing import assert_same_rows, expected


class TestExpected:
    def session(self, lateness: str = "0 seconds") -> dt.LocalSession:
        session = dt.LocalSession()
        for name in ("A", "B"):
            session.stream(name, SCHEMA, event_time="ts", lateness=lateness)
        session.query("pairs", "SELECT a.k, b.p FROM A a [RANGE 5 SECONDS], B b [RANGE 5 SECONDS] WHERE a.k = b.k")
        session.query("twins", "SELECT a.k FROM A a [ROWS 1], A b [RANGE 5 SECONDS] WHERE a.p = b.p")
        return session

    def test_expected_equals_the_results_of_the_session(self) -> None:
        batches = [
            {"A": table((1, 1, "x"), (2, 2, "x"))},
            {"B": table((5, 1, "y"), (7, 2, "z"), (3, 2, "late")), "A": table((3, 2, None), (1, 1, "late"))},
            {"B": table((6, 2, "late"), (9, 2, "w"))},
        ]
        session = self.session()
        tables = expected(session, batches)
        assert list(tables) == ["pairs", "twins"]
        outputs = [session.push(push) for push in batches]
        for name, rows in tables.items():
            assert rows.num_rows > 1
            assert_same_rows(pa.concat_tables([output[name] for output in outputs]), rows, name)
        assert_same_rows(expected(session, batches)["pairs"], tables["pairs"])  # also for a session that has run

    def test_frames_are_accepted_and_tuples_without_a_time_are_dropped(self) -> None:
        session, whole = self.session(), table((1, 1, "x"), (2, 2, "x"))
        row = pa.table([pa.nulls(1, TS), [1], ["y"]], schema=SCHEMA)
        push = {"A": pa.concat_tables([whole, row]), "B": table((3, 1, "y"))}
        frames = {"A": whole.to_pandas(), "B": push["B"].to_pandas()}
        assert expected(session, [frames])["pairs"].to_pylist() == [{"k": 1, "p": "y"}]
        assert_same_rows(expected(session, [push])["pairs"], session.push(push)["pairs"])

    def test_unknown_sessions_and_streams_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"got a str; expected a dt\.LocalSession or a dt\.Session"):
            expected("session", [])
        with pytest.raises(SchemaError, match="stream 'C' is not declared"):
            expected(self.session(), [{"C": table((1, 1, None))}])
