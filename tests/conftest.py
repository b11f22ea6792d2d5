"""Set up hypothesis profiles and the Numba cache for all tests.

Hypothesis profiles are chosen by DOVETAIL_PROFILE: `dev` (the default), `ci` (more cases, the same every time), `nojit` (few).

Numba's on-disk cache notices a change in a kernel's own file, not in the files of the kernels it calls. The cache directory is
named after the digest of all kernel sources, so a stale kernel never runs.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", max_examples=75, deadline=None, derandomize=True, suppress_health_check=_SLOW)
# Uncompiled kernels are a hundred times slower: fewer cases, for coverage and readable tracebacks.
settings.register_profile("nojit", max_examples=10, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("DOVETAIL_PROFILE", "dev"))

_ROOT = Path(__file__).resolve().parents[1]
_KERNELS = sorted((_ROOT / "src" / "dovetail" / "engine" / "kernels").glob("*.py"))
_DIGEST = sha256(b"".join(path.read_bytes() for path in _KERNELS)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(_ROOT / ".pytest_cache" / f"numba-{_DIGEST}"))


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        # Hashes wrap around on purpose; compiled code does so silently, NumPy scalars warn.
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered:RuntimeWarning")
