"""Compiled kernels are cached on disk, and compiled again when any kernel has changed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

import dovetail
from dovetail.engine.kernels.compile import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")

_INLINED = """
from dovetail.engine.kernels.compile import inlined

@inlined
def increment():
    return 1
"""
_CALLER = """
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.increment import increment

@kernel
def add(value):
    return value + increment()
"""
_RUN = """
from dovetail.engine.kernels.caller import add
print(add(1), sum(add.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Copy the package and add a kernel that inlines another; return the directory of kernels."""
    copied = copytree(Path(dovetail.__file__).parent, tmp_path / "dovetail", ignore=lambda *_: {"__pycache__"})
    kernels = copied / "engine" / "kernels"
    (kernels / "increment.py").write_text(_INLINED)
    (kernels / "caller.py").write_text(_CALLER)
    return kernels


def _run(kernels: Path, **environment: str) -> tuple[int, int]:
    """Return the sum of 1 and the increment, and the number of cached kernels that were used."""
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment = {**inherited, "PYTHONPATH": str(kernels.parents[2]), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    output = subprocess.run([sys.executable, "-c", _RUN], env=environment, capture_output=True, check=True, text=True)
    total, hits = output.stdout.split()
    return int(total), int(hits)


def test_editing_an_inlined_kernel_recompiles_its_callers(package: Path) -> None:
    assert [_run(package), _run(package)] == [(2, 0), (2, 1)]
    (package / "increment.py").write_text(_INLINED.replace("return 1", "return 5"))
    assert [_run(package), _run(package)] == [(6, 0), (6, 1)]


def test_a_package_that_is_not_writable_uses_the_cache_directory_of_the_user(package: Path, tmp_path: Path) -> None:
    (package / "__pycache__").write_text("")  # no directory can be created, not even by root
    cache = tmp_path / "cache"
    assert [_run(package, XDG_CACHE_HOME=str(cache)) for _ in range(2)] == [(2, 0), (2, 1)]
    assert list(cache.rglob("*.nbi"))


@pytest.fixture
def homeless(package: Path, tmp_path: Path) -> dict[str, str]:
    """Give an environment where neither the package nor the home directory is writable, and an empty temporary directory."""
    (package / "__pycache__").write_text("")
    (tmp_path / "cache").write_text("")
    (tmp_path / "tmp").mkdir(mode=0o700)
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}


def test_without_a_home_a_private_temporary_directory_is_used(package: Path, homeless: dict[str, str]) -> None:
    assert [_run(package, **homeless) for _ in range(2)] == [(2, 0), (2, 1)]
    (private,) = Path(homeless["TMPDIR"]).iterdir()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(private.rglob("*.nbi"))


def test_a_relative_cache_directory_is_not_used(
    package: Path, homeless: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    # Numba's path where a user has no home directory.
    assert _run(package, **homeless | {"XDG_CACHE_HOME": "~/.cache"}) == (2, 0)
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("kind", ["file", "link", "writable for others", "in a directory of others"])
def test_kernels_run_without_any_private_directory(
    package: Path, homeless: dict[str, str], tmp_path: Path, kind: str
) -> None:
    private = Path(homeless["TMPDIR"], f"dovetail-kernels-{os.getuid()}")
    if kind == "file":
        private.write_text("")
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        private.symlink_to(tmp_path / "elsewhere")
    elif kind == "writable for others":
        private.mkdir()
        private.chmod(0o777)
    else:
        private.parent.chmod(0o777)
    assert [_run(package, **homeless) for _ in range(2)] == [(2, 0), (2, 0)]
    assert not list(tmp_path.rglob("*.nbi"))
