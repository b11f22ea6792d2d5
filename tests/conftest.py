"""Set up the hypothesis profiles for all tests, temporary files and Java.

Profiles are chosen by DOVETAIL_PROFILE: `dev` (the default), `ci` (more cases, the same every time), `nojit` (few).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", max_examples=75, deadline=None, derandomize=True, suppress_health_check=_SLOW)
# Uncompiled kernels are a hundred times slower: fewer cases, for coverage and readable tracebacks.
settings.register_profile("nojit", max_examples=10, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("DOVETAIL_PROFILE", "dev"))

_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own is made in it
_LEAST_MEMORY = 4 << 30


def _use_memory() -> None:
    """Keep temporary files in memory, if there is much of it: a file there takes 0.1 ms, one on a busy disk 9 ms.

    With TMPDIR set, files go there, and those of the last runs are kept.
    """
    if "TMPDIR" in os.environ or not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _LEAST_MEMORY:
        return
    for left in _MEMORY.glob("dovetail-tests-*"):  # by a run that was killed
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"dovetail-tests-{os.getpid()}-", dir=_MEMORY)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


_use_memory()
# For all JVMs that tests start. They live too briefly for Java's second compiler, which took a third of their CPU.
os.environ.setdefault("JDK_JAVA_OPTIONS", f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={tempfile.gettempdir()}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        # Hashes wrap around on purpose; compiled code does so silently, NumPy scalars warn.
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered:RuntimeWarning")
