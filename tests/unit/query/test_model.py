"""A bound query is shown by its name, its results and its aliases; a notebook also shows its SQL."""

from __future__ import annotations

import pyarrow as pa

from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema

STREAMS = {name: StreamSchema(name, pa.schema([("ts", TIMESTAMP), ("k", pa.int64())]), "ts") for name in "ab"}
SQL = "SELECT x.k, y.ts AS seen FROM a x [RANGE 1 s], b y [RANGE 1 s] WHERE x.k = y.k AND x.ts < y.ts"


def test_a_query_is_shown_briefly() -> None:
    query = parse_query("pairs", SQL, STREAMS)
    assert repr(query) == "<JoinQuery 'pairs': k, seen from x, y>"
    assert query._repr_html_() == (
        "<pre>&lt;JoinQuery &#x27;pairs&#x27;: k, seen from x, y&gt;\n" + SQL.replace("<", "&lt;") + "</pre>"
    )
