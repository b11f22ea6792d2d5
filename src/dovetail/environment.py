"""Checks of the environment of this process: Python, packages, compiled code, extras, time zone."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dovetail._extras import EXTRAS

_PACKAGES = ("numba", "numpy", "pyarrow", "sqlglot")


@dataclass(frozen=True)
class Finding:
    """Result of a check of the environment."""

    name: str
    is_ok: bool
    text: str
    hint: str | None = None
    """How to fix it, or how to get what is missing."""


def check_process() -> list[Finding]:
    """Check this process, without Spark."""
    return [
        Finding("Python", is_ok=True, text=f"{platform.python_version()}, {sys.executable}"),
        Finding("packages", is_ok=True, text=", ".join(f"{name} {installed_version(name)}" for name in _PACKAGES)),
        _check_kernel_cache(),
        *(_check_extra(name, modules) for name, modules in EXTRAS.items()),
        _check_time_zone(),
    ]


def installed_version(package: str) -> str:
    """Return the version of a package; `?` if its installation does not say."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _check_kernel_cache() -> Finding:
    from dovetail.engine.warm_up import cache_directory  # noqa: PLC0415 - it loads Numba

    directory = cache_directory()
    if directory is None:
        hint = "set NUMBA_CACHE_DIR to a directory that you can write"
        return Finding("compiled code", False, "no directory can be written: each process compiles for a minute", hint)
    files = len(list(Path(directory).glob("*.nbc"))) if Path(directory).is_dir() else 0
    text = (
        f"{files} functions in {directory}"
        if files
        else f"none yet in {directory}: the first run compiles for a minute"
    )
    return Finding("compiled code", is_ok=True, text=text)


def _check_extra(name: str, modules: tuple[str, ...]) -> Finding:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        return Finding(
            f"extra {name}", True, f"not installed ({', '.join(missing)})", f"pip install 'dovetail[{name}]'"
        )
    return Finding(f"extra {name}", is_ok=True, text=f"installed ({modules[0]} {installed_version(modules[0])})")


def _check_time_zone() -> Finding:
    zone = os.environ.get("TZ") or "/".join(time.tzname)
    return Finding("time zone", is_ok=True, text=f"{zone}; event times are in UTC, and so is dt.spark.session()")
