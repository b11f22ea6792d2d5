"""`dovetail inspect` shows a checkpoint without Spark."""

from __future__ import annotations

import fcntl
import json
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app

STORED = Path(__file__).resolve().parents[2] / "spark" / "stored_job.zip"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint that an earlier release has written."""
    zipfile.ZipFile(STORED).extractall(tmp_path)
    return next(path.parent for path in tmp_path.rglob("dovetail") if path.is_dir())


def call(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["inspect", *arguments], env={"COLUMNS": "300"})
    return answer.exit_code, answer.output


def test_what_a_checkpoint_holds(checkpoint: Path) -> None:
    code, shown = call(str(checkpoint), "--json")
    content = json.loads(shown)
    assert code == 0
    assert content["path"] == str(checkpoint.resolve())
    assert content["last_committed_batch"] is not None
    assert not content["is_in_use"]
    assert content["queries"]
    assert all(query["sql"].strip().upper().startswith("SELECT") for query in content["queries"].values())
    assert all("timestamp" in stream["columns"] for stream in content["streams"].values())
    assert [entry["epoch"] for entry in content["plan_log"]] == sorted(entry["epoch"] for entry in content["plan_log"])
    shown = call(str(checkpoint))[1]
    assert f"not in use; last batch begun {content['last_begun_batch']}, last committed" in shown
    for name in (*content["queries"], *content["streams"]):
        assert name in shown


def test_a_checkpoint_in_use(checkpoint: Path) -> None:
    with (checkpoint / "dovetail" / "_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert json.loads(call(str(checkpoint), "--json")[1])["is_in_use"]


def test_mistakes(checkpoint: Path, tmp_path: Path) -> None:
    assert call(f"{checkpoint}x") == (1, f"{checkpoint}x does not exist\nHint: did you mean '{checkpoint}'?\n")
    (tmp_path / "empty").mkdir()
    code, shown = call(str(tmp_path / "empty"))
    assert (code, shown.splitlines()[0]) == (1, f"{tmp_path / 'empty'} holds no checkpoint of Dovetail")
