"""`dovetail generate` writes the files of a scenario and refuses bad arguments."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.errors import DovetailError
from dovetail.workloads import (
    scenario,
)


def test_generate_writes_files_and_prints_how_to_read_them(tmp_path: Path) -> None:
    out = tmp_path / "data"
    command = [
        "generate",
        "packets",
        "--out",
        str(out),
        "--seconds",
        "12",
        "--rate",
        "80",
        "--seed",
        "6",
        "--files",
        "3",
    ]
    answer = CliRunner().invoke(app, [*command, "--set", "routers=2", "--set", "skew=0.5"])
    assert answer.exit_code == 0, answer.output
    workload = scenario("packets", seed=6, rate=80.0, routers=2, skew=0.5)
    for name in ("r1", "r2"):
        wanted = workload.table(name, 0, 12)
        assert pq.read_table(out / name).equals(wanted)
        assert f"  {name}: {wanted.num_rows:,} tuples" in answer.output
        assert len([*(out / name).iterdir()]) == 3
    assert f"pyarrow.parquet.read_table('{out}/r1')" in answer.output
    assert "schema('ts timestamp, pid bigint, size bigint, destination bigint')" in answer.output
    assert "lateness='1 seconds'" in answer.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["funnel"], "the scenario is 'funnel'; allowed: 'ad_funnel', 'packets'"),
        (["packets", "--set", "router=3"], "Hint: did you mean 'routers'?"),
        (["packets", "--set", "routers"], "--set routers: there is no '='"),
        (["packets", "--set", "routers=many"], "routers is 'many'; it must be a whole number"),
        (["packets", "--rate", "-1"], "arrivals: rate is -1.0; it must be a number above 0"),
        (["packets", "--seconds", "0"], "seconds is 0.0; it must be a number above 0"),
        (["packets", "--files", "0"], "files is 0; it must be a whole number from 1"),
        (["packets", "--seed", "-1"], "seed is -1; it must be a whole number from 0 on"),
    ],
)
def test_generate_refuses_bad_arguments(tmp_path: Path, arguments: list[str], message: str) -> None:
    answer = CliRunner().invoke(app, ["generate", *arguments, "--out", str(tmp_path / "new")])
    assert answer.exit_code == 2
    assert message in answer.output
    assert not (tmp_path / "new").exists()


def test_an_error_of_the_demo_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def demo(*_: object, **__: object) -> bool:
        raise DovetailError("a Python process did not connect", "the machine is busy")

    monkeypatch.setattr("dovetail.cli.demo.demo_on_spark", demo)
    answer = CliRunner().invoke(app, ["demo"])
    assert (answer.exit_code, answer.output) == (1, "a Python process did not connect\nHint: the machine is busy\n")
