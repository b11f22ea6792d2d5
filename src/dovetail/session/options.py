"""Checks of the budget and the configuration that a session is made with."""

from __future__ import annotations

from typing import Any

from dovetail.config import Budget, Config
from dovetail.errors import ConfigError


def check_options(caller: str, budget: Any, config: Any) -> None:
    """Refuse a budget or a configuration of another type; `caller` is the class of the session."""
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(
            f"{caller}(budget=...) is a {type(budget).__name__}; expected a dovetail.Budget",
            _budget_hint(caller, budget),
        )
    if config is not None and not isinstance(config, Config):
        raise ConfigError(
            f"{caller}(config=...) is a {type(config).__name__}; expected a dovetail.Config",
            'write config=dt.Config(ordering="weave"), for example',
        )


def _budget_hint(caller: str, given: Any) -> str:
    """Return what to write instead of an argument in the place of the budget."""
    if isinstance(given, Config):
        return "write config=..."
    if caller == "Session":
        is_count = isinstance(given, int) and not isinstance(given, bool)
        return f"write shards={given}" if is_count else "write dt.Session(spark, dt.Budget(memory_bytes=1e9))"
    if isinstance(given, str) or hasattr(given, "readStream"):
        return "a LocalSession needs no Spark: write dt.LocalSession(), or dt.Session(spark)"
    return "write LocalSession(dt.Budget(memory_bytes=1e9), dt.Config(...)), or name the arguments"
