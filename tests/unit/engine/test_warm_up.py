"""Kernels are compiled when a session starts, never inside a batch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail.engine.kernels.compile import INTERPRETED

_UNCOMPILED = """
from dovetail.engine.kernels import append, extend, follow, gather, index, times, trees, verify
from dovetail.engine.warm_up import warm_up

warm_up()
for module in (append, extend, follow, gather, index, times, trees, verify):
    for name, found in vars(module).items():
        if getattr(found, "__module__", "") == module.__name__ and found.__class__.__name__ == "CPUDispatcher":
            part = found.targetoptions.get("forceinline")  # compiled into its callers
            print(*([] if found.signatures or part else [name]))
"""


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_every_kernel_is_compiled() -> None:
    """Run in a subprocess, because other tests have compiled kernels here."""
    done = subprocess.run([sys.executable, "-c", _UNCOMPILED], capture_output=True, check=True, text=True)
    assert done.stdout.split() == []
