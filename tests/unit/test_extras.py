"""What `pip install dovetail` leaves out is named when it is needed, with the line that installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dovetail._extras import EXTRAS, requires_extra
from dovetail.errors import ConfigError, MissingExtraError

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
SETUP = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in WITHOUT else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Finder, sys.meta_path)
import dovetail as dt
"""
LOCAL = """
import pyarrow as pa
columns = pa.schema({"ts": pa.timestamp("us", tz="UTC"), "k": pa.int64()})
session = dt.LocalSession()
for name in "ab":
    session.stream(name, columns, event_time="ts")
session.query("q", "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k")
table = pa.table([[0], [7]], schema=columns)
print(session.push({"a": table, "b": table})["q"].to_pylist())
"""


def run(program: str, *without: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process where `import` does not find some packages."""
    program = f"WITHOUT = {without}{SETUP}{program}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_a_session_in_one_process_needs_no_extra() -> None:
    result = run(LOCAL, *(module for modules in EXTRAS.values() for module in modules))
    assert result.stdout == "[{'k': 7}]\n", result.stderr


@pytest.mark.parametrize("name", ["Session", "spark", "sinks", "reshard", "RunningSession", "Comparison"])
def test_spark_is_named(name: str) -> None:
    result = run(
        f"try:\n    dt.{name}\nexcept ImportError as error:\n    print(type(error).__name__, error)", "pyspark"
    )
    assert result.stdout == (
        "MissingExtraError dovetail on Spark needs the package 'pyspark', which is not installed\n"
        "Hint: pip install 'dovetail[spark]'\n"
    )


def test_names_that_need_spark_are_not_listed_without_it() -> None:
    result = run(
        "print('Session' in dir(dt), 'LocalSession' in dir(dt)); import pydoc; pydoc.render_doc(dt)", "pyspark"
    )
    assert (result.stdout, result.returncode) == ("False True\n", 0), result.stderr
    assert run("print('Session' in dir(dt))").stdout == "True\n"


@pytest.mark.parametrize(
    ("without", "arguments", "message"),
    [
        ("typer", [], "the command 'dovetail' needs the package 'typer', which is not installed\nHint: pip install 'dovetail[cli]'"),
        ("rich", [], "the command 'dovetail' needs the package 'rich', which is not installed\nHint: pip install 'dovetail[cli]'"),
        ("pyspark", ["reshard", "a", "b", "--shards", "2"], "Hint: pip install 'dovetail[spark]'"),
        ("pyspark", ["demo"], "Hint: pip install 'dovetail[spark]'"),
    ],
)  # fmt: skip
def test_the_command_line_says_what_to_install(without: str, arguments: list[str], message: str) -> None:
    result = run(f"sys.argv[1:] = {arguments}; from dovetail.cli import run; run()", without)
    assert result.returncode == 1
    assert message in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_other_missing_modules_are_not_taken_for_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'own'") as error, requires_extra("spark", "x"):
        raise ModuleNotFoundError("No module named 'own'", name="own")
    assert not isinstance(error.value, MissingExtraError)


def test_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {*extras} == {*EXTRAS, "all"}
    assert extras["all"] == [f"dovetail[{','.join(sorted(EXTRAS))}]"]


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.spark import compat  # noqa: PLC0415 - the other tests need no PySpark

    compat.check_installed()
    monkeypatch.setattr(compat, "INSTALLED", "3.5.9")
    with pytest.raises(ConfigError, match=r"PySpark is version 3\.5\.9; needed: 4\.0 or later") as error:
        compat.check_installed()
    assert error.value.hint == "pip install 'pyspark>=4.0'"
    monkeypatch.setattr(compat, "INSTALLED", "4.1.4")
    with pytest.raises(ConfigError, match=r"generated streams need 4\.2 or later") as error:
        compat.check_generated_source()
    assert "`dovetail generate`" in str(error.value.hint)
