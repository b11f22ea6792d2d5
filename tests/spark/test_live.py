"""Live shards: taken once, given back under a token, swept when nobody can want them any more; and never anybody else's."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_sink_losses import small_disk

from dovetail.errors import StateError
from dovetail.spark.state import shared_memory as live
from dovetail.spark.state.shared_memory import (
    SharedMemoryShard,
    create_run_directory,
    remove_run_directory,
    shared_memory_root,
)

COMMON = f"dovetail-{os.getuid()}"
STRANGER = 12345
DAYS_AGO = time.time() - 3 * 86_400
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everybody may write."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(live, "shared_memory_parent", lambda: shared)
    return shared


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def run_of(base: Path, name: str, owner: object, moved: float | None = None) -> Path:
    home = base / name
    (home / "0" / "token").mkdir(parents=True)
    (home / "owner.json").write_text(json.dumps(owner), encoding="utf-8")
    for path in (home / "owner.json", home / "0", home):
        if moved is not None:
            os.utime(path, (moved, moved))
    return home


def test_only_one_attempt_gets_a_shard(tmp_path: Path) -> None:
    shard = SharedMemoryShard(tmp_path, 3)
    work = shard.create()
    (work / "array").write_text("x", encoding="utf-8")
    shard.publish(work, "token")
    taken = shard.acquire("token")
    assert taken is not None
    assert (taken / "array").read_text(encoding="utf-8") == "x"
    assert shard.acquire("token") is None
    assert shard.acquire("another") is None
    assert shard.acquire(None) is None


def test_a_dead_drivers_run_is_swept_and_a_living_ones_is_not(place: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True, text=True
    )
    here, base, alone = live._machine(), place / COMMON, place / f"{COMMON}-alone"
    run_of(base, "dead", [here, int(dead.stdout), "1"])
    run_of(base, "reused pid", [here, os.getpid(), "1"])
    run_of(base, "alive", [here, os.getpid(), live._start_time(os.getpid())])
    run_of(base, "elsewhere", ["another host", 1, "1"])
    run_of(base, "long ago elsewhere", ["another host", 1, "1"], DAYS_AGO)
    run_of(alone, "alone", [here, int(dead.stdout), "1"])
    create_run_directory("mine")
    assert sorted(path.name for path in base.iterdir()) == ["alive", "elsewhere", "mine"]
    assert not alone.exists()


def test_what_is_not_a_run_is_not_swept(place: Path, tmp_path: Path) -> None:
    base, outside = place / COMMON, tmp_path / "outside"
    gone = [live._machine(), 1 << 30, "1"]
    run_of(outside, "victim", gone, DAYS_AGO)
    base.mkdir()
    (base / "linked").symlink_to(outside / "victim")
    run_of(base, "without an owner", [])
    (base / "without an owner" / "owner.json").unlink()
    linked_owner = run_of(base, "with another's owner", gone)
    (linked_owner / "owner.json").unlink()
    (linked_owner / "owner.json").symlink_to(outside / "victim" / "owner.json")
    owners: list[object] = ["text", [], {}, [1, 2], [live._machine(), "x", None], None]
    for number, owner in enumerate(owners):
        run_of(base, f"odd {number}", owner)
    for path in base.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    before = sorted(path.name for path in base.iterdir())
    create_run_directory("mine")
    assert sorted(path.name for path in base.iterdir()) == sorted([*before, "mine"])
    assert (outside / "victim" / "0" / "token").is_dir()


def test_links_in_a_swept_run_are_not_followed(place: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x", encoding="utf-8")
    dead = run_of(place / COMMON, "dead", [live._machine(), 1 << 30, "1"])
    (dead / "1").symlink_to(outside)
    create_run_directory("mine")
    assert not dead.exists()
    assert (outside / "precious").exists()


# -- a name that somebody else has ------------------------------------------------------------------------------------------------


def a_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def a_link_to_nothing(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "nothing")


def a_file(path: Path, victim: Path) -> None:  # noqa: ARG001
    path.write_text("", encoding="utf-8")


def a_strangers_directory(path: Path, victim: Path) -> None:
    shutil.copytree(victim, path)
    path.chmod(0o777)
    os.chown(path, STRANGER, STRANGER)


@pytest.mark.parametrize(
    "plant", [a_link, a_link_to_nothing, a_file, pytest.param(a_strangers_directory, marks=as_root)]
)
def test_a_planted_name_costs_nothing_and_stops_nobody(place: Path, tmp_path: Path, plant: object) -> None:
    victim = tmp_path / "victim"
    run_of(victim, "precious", ["another host", 1, "1"], DAYS_AGO)
    run_of(victim, "dead", [live._machine(), 1 << 30, "1"])
    assert callable(plant)
    plant(place / COMMON, victim)
    planted = (place / COMMON).lstat()
    create_run_directory("mine")
    root = shared_memory_root("mine")
    assert root == place / f"{COMMON}-mine" / "mine"
    assert mode(root.parent) == mode(root) == 0o700
    shard = SharedMemoryShard(root, 0)
    shard.publish(shard.create(), "token")
    assert SharedMemoryShard(shared_memory_root("mine"), 0).acquire("token") is not None
    assert sorted(path.name for path in victim.iterdir()) == ["dead", "precious"]
    assert (place / COMMON).lstat() == planted
    (place / COMMON).rename(place / "elsewhere")  # who once went there stays there
    assert shared_memory_root("mine") == root
    remove_run_directory("mine")
    assert not root.parent.exists()


def test_the_name_of_its_own_may_not_be_planted_either(place: Path, tmp_path: Path) -> None:
    for name in (COMMON, f"{COMMON}-mine"):
        (place / name).symlink_to(tmp_path)
    with pytest.raises(StateError, match="another user's"):
        create_run_directory("mine")


@pytest.mark.parametrize("wrong", [0o777, 0o755, 0o2770, 0o000])
def test_a_wrong_mode_is_corrected(place: Path, wrong: int) -> None:
    (place / COMMON).mkdir()
    (place / COMMON).chmod(wrong)
    create_run_directory("mine")
    assert mode(place / COMMON) == 0o700
    assert shared_memory_root("mine") == place / COMMON / "mine"


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o277])
def test_any_umask(place: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        create_run_directory("mine")
        shard = SharedMemoryShard(shared_memory_root("mine"), 0)
        shard.publish(shard.create(), "token")
        other = SharedMemoryShard(shared_memory_root("other"), 0)  # no driver on this host
        other.publish(other.create(), "token")
    finally:
        os.umask(before)
    paths = [place / COMMON, *(place / COMMON / run / sub for run in ("mine", "other") for sub in ("", "0"))]
    assert {oct(mode(path)) for path in paths} == {"0o700"}
    for run in ("mine", "other"):
        assert SharedMemoryShard(shared_memory_root(run), 0).acquire("token") is not None
        remove_run_directory(run)
    assert list((place / COMMON).iterdir()) == []


def test_a_host_without_a_driver_is_swept_by_the_first_worker_of_a_run(place: Path) -> None:
    old = SharedMemoryShard(shared_memory_root("old"), 0)
    old.publish(old.create(), "token")
    for path in (place / COMMON / "old" / "owner.json", place / COMMON / "old" / "0", place / COMMON / "old"):
        os.utime(path, (DAYS_AGO, DAYS_AGO))
    SharedMemoryShard(shared_memory_root("new"), 0)
    assert [path.name for path in (place / COMMON).iterdir()] == ["new"]


# -- places -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("safe", [True, False])
def test_a_place_without_a_sticky_bit_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, safe: bool
) -> None:
    loose, home = tmp_path / "loose", tmp_path / "home"
    for path in (loose, home):
        path.mkdir()
    loose.chmod(0o777)
    home.chmod(0o755 if safe else 0o777)
    monkeypatch.setattr(live, "_MIN_SHARED_MEMORY", 1 << 60)
    monkeypatch.setattr("tempfile.tempdir", str(loose))
    monkeypatch.setenv("HOME", str(home))
    if safe:
        assert shared_memory_root("run") == home / COMMON / "run"
        loose.chmod(0o1777)
        assert shared_memory_root("run") == loose / COMMON / "run"
    else:
        with pytest.raises(StateError, match="other users can write to"):
            shared_memory_root("run")


# -- full disks -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 64 KiB, chosen by its user."""
    with small_disk(tmp_path / "small", "64k") as disk:
        monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_DIR", str(disk))
        yield disk


def fill(path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        path.write_bytes(bytes(1 << 20))


def test_a_full_disk_is_named(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(small / "others")
    for call in (lambda: create_run_directory("mine"), lambda: SharedMemoryShard(shared_memory_root("mine"), 0)):
        with pytest.raises(StateError) as error:
            call()
        assert error.value.message == f"no space is left for the windows of shards: 0 B of 64 KiB are free in {small}"
        assert error.value.hint is not None
        assert "set DOVETAIL_SHARED_MEMORY_DIR to a directory on a disk with room" in error.value.hint
        assert list((small / COMMON).iterdir()) == []
    (tmp_path / "roomy").mkdir()  # what the hint says
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_DIR", str(tmp_path / "roomy"))
    create_run_directory("mine")
    (small / "others").unlink()
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_DIR", str(small))
    create_run_directory("mine")


def test_dead_runs_are_swept_before_there_is_need_for_space(small: Path) -> None:
    dead = run_of(small / COMMON, "dead", [live._machine(), 1 << 30, "1"])
    fill(dead / "0" / "array")
    create_run_directory("mine")
    assert [path.name for path in (small / COMMON).iterdir()] == ["mine"]


@pytest.mark.parametrize("chosen", ["missing", "file", "relative"])
def test_a_directory_that_cannot_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    (tmp_path / "file").touch()
    path = "." if chosen == "relative" else str(tmp_path / chosen)
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_DIR", path)
    with pytest.raises(
        StateError, match=rf"DOVETAIL_SHARED_MEMORY_DIR is '{path}' on .*; expected the absolute path"
    ) as error:
        create_run_directory("mine")
    assert error.value.hint == "create it there, or unset DOVETAIL_SHARED_MEMORY_DIR"
