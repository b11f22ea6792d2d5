"""Every key of a TOML file has its line, however it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail as dt
from dovetail.cli.job.toml_table import NUMBER, TEXT, JobFileError, TomlFile, TomlTable

TEXT_OF_FILE = '''\
# a comment
a = 1

[t."b c"]
d.e = [
  1,
  2,
]
sql = """
[not.a.table]
f = 1
"""
g = { h = 1, i = { j = 2 } }
[[list]]
k = 1
'''


def table(text: str, tmp_path: Path) -> TomlTable:
    (tmp_path / "x.toml").write_text(text)
    return TomlTable.read(tmp_path / "x.toml")


def test_lines_of_keys() -> None:
    assert TomlFile(Path("x"), TEXT_OF_FILE).lines == {
        ("a",): 2,
        ("t", "b c"): 4,
        ("t", "b c", "d"): 5,
        ("t", "b c", "d", "e"): 5,
        ("t", "b c", "sql"): 9,
        ("t", "b c", "g"): 13,
        ("t", "b c", "g", "h"): 13,
        ("t", "b c", "g", "i"): 13,
        ("t", "b c", "g", "i", "j"): 13,
        ("list",): 14,
        ("list", "k"): 15,
    }


def test_an_error_is_reported_at_the_key_that_it_is_about(tmp_path: Path) -> None:
    content = table('a = "x"\nrate = -1\nlateness = "5 parsecs"\n', tmp_path)

    def raised(message: str) -> str:
        with pytest.raises(JobFileError) as caught, content.located():
            raise dt.ConfigError(message, "a hint")
        return str(caught.value).partition(": ")[0].rpartition(" ")[2]

    assert raised("rate is -1") == "2"
    assert raised("'5 parsecs' is no duration, a pity") == "3"
    assert raised("S(rate=-1, a=2)") == "2"
    assert raised("nothing of it") == "1"


def test_kinds_of_values(tmp_path: Path) -> None:
    content = table("a = true\nb = 1\n", tmp_path)
    content.check({"a": ("true or false", (bool,)), "b": NUMBER})
    with pytest.raises(JobFileError, match="line 1: a is true; allowed: a number"):
        content.check({"a": NUMBER, "b": NUMBER})
    with pytest.raises(JobFileError, match="line 2: b is 1; allowed: text in quotes"):
        content.check({"a": ("true or false", (bool,)), "b": TEXT})


def test_paths_begin_at_the_directory_of_the_file(tmp_path: Path) -> None:
    content = table('a = "x/y"\nb = "/x"\nc = "s3://x/y"\n', tmp_path)
    assert [content.location(key) for key in "abc"] == [f"{tmp_path}/x/y", "/x", "s3://x/y"]
