"""Set up the hypothesis profiles for all tests.

They are chosen by DOVETAIL_PROFILE: `dev` (the default), `ci` (more cases, the same every time), `nojit` (few).
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", max_examples=75, deadline=None, derandomize=True, suppress_health_check=_SLOW)
# Uncompiled kernels are a hundred times slower: fewer cases, for coverage and readable tracebacks.
settings.register_profile("nojit", max_examples=10, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("DOVETAIL_PROFILE", "dev"))


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        # Hashes wrap around on purpose; compiled code does so silently, NumPy scalars warn.
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered:RuntimeWarning")
