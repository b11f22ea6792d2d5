"""Mistakes in job files and on the command line, each with the text that it gives; nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app

JOB = """\
checkpoint = "out/checkpoint"
trigger = "10 seconds"

[streams.clicks]
path = "clicks.csv"
columns = "ts timestamp, user_id bigint"
event_time = "ts"
lateness = "30 seconds"

[streams.orders]
generator = "ad_funnel"
options = { rate = 100 }

[queries.bought]
sql = \"\"\"
SELECT c.user_id, o.amount
FROM clicks c [RANGE 10 MIN], orders o [RANGE 10 MIN]
WHERE c.user_id = o.user_id\"\"\"
sink = { type = "parquet", path = "out/bought" }

[budget]
memory_bytes = 1e9
"""
CLICKS = "ts,user_id\n2026-03-02T09:00:00Z,7\n"
QUERY = "SELECT c.user_id FROM clicks c [RANGE 1 H], clicks d [RANGE 1 H] WHERE c.user_id = d.user_id AND c.ts < d.ts"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clicks.csv").write_text(CLICKS)
    Path("two_times.csv").write_text("a,b\n2026-03-02T09:00:00Z,2026-03-02T09:00:00Z\n")
    Path("job.toml").write_text(JOB)
    Path("query.sql").write_text(f"{QUERY};\n")


def call(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    return answer.exit_code, answer.output


def test_the_job_file_is_right() -> None:
    code, shown = call("check", "job.toml")
    assert (code, shown.splitlines()[0]) == (
        0,
        "stream clicks: event time ts, lateness 30 s, rate not declared; used by bought.c",
    )


IN_JOB_FILES = {
    "unknown key": (
        ('lateness = "30', 'latenes = "30'),
        (
            "job.toml, line 8: [streams.clicks]: there is no key 'latenes'; allowed: 'path', 'generator', 'format', 'columns', "
            "'options', 'event_time', 'lateness', 'rate', 'progress_by', 'idle_after', 'max_ahead'\n"
            "  8 | latenes = \"30 seconds\"\nHint: did you mean 'lateness'?\n"
        ),
    ),
    "unknown table": (
        ("[budget]", "[bugdet]"),
        (
            "job.toml, line 21: there is no key 'bugdet'; allowed: 'checkpoint', 'trigger', 'shards', 'streams', 'queries', "
            "'budget', 'shedding', 'config', 'spark'\n  21 | [bugdet]\nHint: did you mean 'budget'?\n"
        ),
    ),
    "value of another type": (
        ("memory_bytes = 1e9", 'memory_bytes = "1 GB"'),
        "job.toml, line 22: [budget]: memory_bytes is '1 GB'; allowed: a number\n  22 | memory_bytes = \"1 GB\"\n",
    ),
    "value out of range": (
        ("memory_bytes = 1e9", "memory_bytes = -1"),
        (
            "job.toml, line 22: [budget]: Budget(memory_bytes=-1): allowed are numbers above zero, or None for no limit\n"
            "  22 | memory_bytes = -1\n"
        ),
    ),
    "duration": (
        ('"30 seconds"', '"30 secondz"'),
        "job.toml, line 8: [streams.clicks]: duration '30 secondz' has ",
    ),
    "no quotes": (
        ('"10 seconds"', "10 seconds"),
        (
            "job.toml, line 2: this is not TOML: expected newline or end of document after a statement\n"
            "  2 | trigger = 10 seconds\n    |              ^\n"
        ),
    ),
    "trigger": (
        ('"10 seconds"', '"often"'),
        (
            "job.toml, line 2: trigger is 'often'; allowed: an interval such as '10 seconds', or 'available now' to read what is "
            'there and end\n  2 | trigger = "often"\n'
        ),
    ),
    "no checkpoint": (
        ('checkpoint = "out/checkpoint"', ""),
        "job.toml, line 1: the key 'checkpoint' is missing\n  1 | \nHint: add checkpoint = ... below this line\n",
    ),
    "no event time": (
        ('event_time = "ts"\n', ""),
        (
            "job.toml, line 4: [streams.clicks]: the key 'event_time' is missing\n  4 | [streams.clicks]\n"
            "Hint: add event_time = ... below this line\n"
        ),
    ),
    "event time is no column": (
        ('event_time = "ts"', 'event_time = "time"'),
        (
            "job.toml, line 7: [streams.clicks]: stream 'clicks': event_time='time' is not a column; columns: 'ts', 'user_id'\n"
            "  7 | event_time = \"time\"\nHint: timestamp columns: 'ts'\n"
        ),
    ),
    "type of a column": (
        ("user_id bigint", "user_id bigin"),
        (
            "job.toml, line 6: [streams.clicks]: column 'user_id' has type 'bigin'; allowed: 'tinyint', 'smallint', 'int', 'bigint', "
            "'float', 'double', 'string', 'binary', 'boolean', 'date', 'timestamp', 'timestamp_ntz', 'decimal(p,s)'\n"
            "  6 | columns = \"ts timestamp, user_id bigin\"\nHint: did you mean 'bigint'?\n"
        ),
    ),
    "CSV without columns": (
        ('columns = "ts timestamp, user_id bigint"\n', ""),
        (
            "job.toml, line 5: [streams.clicks]: the key 'columns' is missing; csv files do not have types\n"
            '  5 | path = "clicks.csv"\nHint: add columns = "ts timestamp, user_id bigint", the types as inferred '
            "from the first rows\n"
        ),
    ),
    "no such scenario": (
        ('"ad_funnel"', '"ad_funel"'),
        (
            "job.toml, line 11: [streams.orders]: generator is 'ad_funel'; allowed: 'ad_funnel', 'packets', 'sensors', 'news', "
            "'join', 'drift', 'overlap'\n  11 | generator = \"ad_funel\"\nHint: did you mean 'ad_funnel'?\n"
        ),
    ),
    "no such generated stream": (
        ("{ rate = 100 }", '{ stream = "order" }'),
        (
            "job.toml, line 12: [streams.orders]: 'ad_funnel' has no stream 'order'; allowed: 'impressions', 'clicks', 'orders'\n"
            "  12 | options = { stream = \"order\" }\nHint: did you mean 'orders'?\n"
        ),
    ),
    "setting of a scenario": (
        ("{ rate = 100 }", "{ raet = 100 }"),
        "job.toml, line 12: [streams.orders]: scenario 'ad_funnel': there is no setting 'raet'; allowed: 'seed', 'rate'",
    ),
    "column of a query": (
        ("c.user_id = o.user_id", "c.user_id = o.userid"),
        (
            "job.toml, line 18: query 'bought': stream 'orders' has no column 'userid'; columns: 'ts', 'user_id', 'amount'\n"
            '  18 | WHERE c.user_id = o.userid"""\n     |                   ^^^^^^^^\nHint: did you mean \'user_id\'?\n'
        ),
    ),
    "stream of a query": (
        ("orders o [", "order o ["),
        (
            "job.toml, line 17: query 'bought': there is no stream 'order'; declared: 'clicks', 'orders'\n"
            "  17 | FROM clicks c [RANGE 10 MIN], order o [RANGE 10 MIN]\n     |                               ^^^^^\n"
            "Hint: did you mean 'orders'?\n"
        ),
    ),
    "sink": (
        ('type = "parquet"', 'type = "parket"'),
        (
            "job.toml, line 19: [queries.bought.sink]: type is 'parket'; allowed: 'parquet', 'delta', 'iceberg', 'table', 'format', "
            "'console'\n  19 | sink = { type = \"parket\", path = \"out/bought\" }\nHint: did you mean 'parquet'?\n"
        ),
    ),
    "key of a sink": (
        (', path = "out/bought"', ""),
        (
            "job.toml, line 19: [queries.bought.sink]: the key 'path' is missing\n"
            '  19 | sink = { type = "parquet" }\nHint: add path = ... below this line\n'
        ),
    ),
    "SQL and file": (
        ("sink = {", 'file = "query.sql"\nsink = {'),
        "job.toml, line 19: [queries.bought]: there is both 'sql' and 'file'; give one of the two\n  19 | file = \"query.sql\"\n",
    ),
    "no such source": (
        ('generator = "ad_funnel"', 'path = "nowhere"\nevent_time = "ts"'),
        "job.toml, line 11: [streams.orders]: there is no file 'nowhere'\n",
    ),
    "Kafka without columns": (
        ('generator = "ad_funnel"', 'format = "kafka"\nevent_time = "ts"'),
        (
            "job.toml, line 11: [streams.orders]: the key 'columns' is missing, which Kafka does not know\n  11 | format = \"kafka\"\n"
            "Hint: add columns = 'ts timestamp, user_id bigint': those of the JSON objects that the messages hold\n"
        ),
    ),
}


@pytest.mark.parametrize("name", IN_JOB_FILES)
def test_a_mistake_in_a_job_file(name: str) -> None:
    (before, after), message = IN_JOB_FILES[name]
    assert before in JOB
    Path("job.toml").write_text(JOB.replace(before, after, 1))
    code, shown = call("run", "job.toml")
    assert (code, shown[: len(message)]) == (2, message)


def test_a_mistake_in_a_query_of_its_own_file() -> None:
    Path("bought.sql").write_text(
        "-- who bought\nSELECT c.user_id FROM clicks c [RANGE 1 MIN], orders o [RANGE 1 PARSEC]\n"
    )
    head, _, tail = JOB.partition('sql = """')
    Path("job.toml").write_text(f'{head}file = "bought.sql"\nsink{tail.partition("sink")[2]}')
    code, shown = call("run", "job.toml")
    assert code == 2
    assert shown.startswith("bought.sql, line 2: query 'bought': ")
    assert "  2 | SELECT c.user_id FROM clicks c [RANGE 1 MIN], orders o [RANGE 1 PARSEC]\n" in shown
    Path("job.toml").write_text(f'{head}file = "bougth.sql"\nsink{tail.partition("sink")[2]}')
    assert call("run", "job.toml")[1] == (
        "job.toml, line 15: [queries.bought]: file is 'bougth.sql', and there is no file 'bougth.sql'\n"
        "  15 | file = \"bougth.sql\"\nHint: did you mean 'bought.sql'?\n"
    )


ON_THE_COMMAND_LINE = {
    "no such file": (
        ["join", "clics.csv", "--sql", "query.sql"],
        "there is no file 'clics.csv'\nHint: did you mean 'clicks.csv'?\n",
    ),
    "no query": (["join", "clicks.csv"], "there is no query\nHint: add --sql FILE, or --query 'SELECT ...'\n"),
    "no such query": (
        ["join", "clicks.csv", "--sql", "quary.sql"],
        "--sql quary.sql: there is no such file\nHint: did you mean 'query.sql'?\n",
    ),
    "two streams of one name": (
        ["join", "clicks.csv", "clicks=two_times.csv", "--sql", "query.sql"],
        "two streams are named 'clicks': clicks.csv and two_times.csv\nHint: give one another name: other=two_times.csv\n",
    ),
    "two event times": (
        ["join", "two_times.csv", "--sql", "query.sql"],
        (
            "stream 'two_times' (two_times.csv) has the timestamp columns 'a', 'b'\n"
            "Hint: say which one is the event time: --event-time two_times=a\n"
        ),
    ),
    "unknown event time": (
        ["join", "clicks.csv", "--sql", "query.sql", "--event-time", "time"],
        (
            "stream 'clicks': --event-time names 'time', which is not a column; columns: 'ts', 'user_id'\n"
            "Hint: timestamp columns: 'ts'\n"
        ),
    ),
    "unknown stream": (
        ["join", "clicks.csv", "--sql", "query.sql", "--lateness", "click=5 s"],
        "--lateness click=5 s: there is no stream 'click'; streams: 'clicks'\nHint: did you mean 'clicks'?\n",
    ),
    "output": (
        ["join", "clicks.csv", "--sql", "query.sql", "--out", "out.xls"],
        (
            "--out is 'out.xls', whose suffix names no format; allowed: 'csv', 'parquet', 'jsonl'\n"
            "Hint: add --format csv, or a suffix such as .parquet\n"
        ),
    ),
    "several queries": (
        ["join", "clicks.csv", "--sql", "query.sql", "--query", QUERY],
        "got the queries 'query', 'query2'; one is joined at a time\nHint: name one of them\n",
    ),
    "mistake in SQL": (
        ["join", "clicks.csv", "--query", "SELECT c.user FROM clicks c [RANGE 1 H], clicks d [RANGE 1 H]"],
        (
            "stream 'clicks' has no column 'user'; columns: 'ts', 'user_id'\n"
            "  line 1: SELECT c.user FROM clicks c [RANGE 1 H], clicks d [RANGE 1 H]\n                 ^^^^^^\nHint: "
        ),
    ),
    "no job file": (["run", "jobs.toml"], "there is no job file 'jobs.toml'\nHint: did you mean 'job.toml'?\n"),
    "unknown option": (["run", "job.toml", "--onec"], "Usage: "),
    "unknown command": (["rum", "job.toml"], "Usage: "),
}


@pytest.mark.parametrize("name", ON_THE_COMMAND_LINE)
def test_a_mistake_on_the_command_line(name: str) -> None:
    arguments, message = ON_THE_COMMAND_LINE[name]
    code, shown = call(*arguments)
    assert (code, shown[: len(message)]) == (2, message)
    if message == "Usage: ":
        assert "Possible options: --once" in shown or "Did you mean 'run'" in shown
