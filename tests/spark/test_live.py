"""Live shards: taken once, given back under a token, swept when nobody can want them any more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.spark import live
from dovetail.spark.live import LiveShard, claim, live_root


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(live, "live_root", lambda run: tmp_path / run)
    return tmp_path


def test_only_one_attempt_gets_a_shard(tmp_path: Path) -> None:
    shard = LiveShard(tmp_path, 3)
    work = shard.new()
    (work / "array").write_text("x", encoding="utf-8")
    shard.give(work, "token")
    taken = shard.take("token")
    assert taken is not None
    assert (taken / "array").read_text(encoding="utf-8") == "x"
    assert shard.take("token") is None
    assert shard.take("another") is None
    assert shard.take(None) is None


def test_a_dead_drivers_run_is_swept_and_a_living_ones_is_not(home: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True, text=True
    )
    for name, pid, started in (
        ("dead", int(dead.stdout), "1"),
        ("reused pid", os.getpid(), "1"),
        ("alive", os.getpid(), live._started(os.getpid())),
    ):
        (home / name).mkdir()
        (home / name / "owner.json").write_text(json.dumps([socket.gethostname(), pid, started]), encoding="utf-8")
    (home / "elsewhere").mkdir()
    (home / "elsewhere" / "owner.json").write_text(json.dumps(["another host", 1, "1"]), encoding="utf-8")
    (home / "forgotten").mkdir()
    os.utime(home / "forgotten", (0, 0))
    claim("mine")
    assert sorted(path.name for path in home.iterdir()) == ["alive", "elsewhere", "mine"]


def test_the_root_is_private_to_the_user() -> None:
    assert live_root("run").parent.name == f"dovetail-{os.getuid()}"
