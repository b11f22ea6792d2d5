"""Errors of `Config` and `Budget` name the option, the value and the allowed values."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import dovetail as dt
from dovetail.codec import from_json, to_json
from dovetail.errors import ConfigError, DovetailError, PlanError, SchemaError, StateError

BAD_CONFIGS: list[Any] = [
    ({"join": "merge"}, "Config(join=...) is 'merge'; allowed: 'auto', 'hash', 'nested-loop', 'hybrid'"),
    ({"nested_loop": "deep"}, "Config(nested_loop=...) is 'deep'; allowed: 'multi-way', 'naive', 'general'"),
    ({"evaluation": "now"}, "Config(evaluation=...) is 'now'; allowed: 'lazy', 'eager'"),
    ({"expiration": None}, "Config(expiration=...) is None; allowed: 'lazy', 'eager'"),
    ({"ordering": "random"}, "Config(ordering=...) is 'random'; allowed:"),
    ({"stage_rows": 0}, "Config(stage_rows=0): allowed are whole numbers from 1"),
    ({"stage_rows": -7}, "Config(stage_rows=-7)"),
    ({"evaluation": "lazy", "expiration": "eager"}, "would lose results"),
    ({"expiration": "eager"}, "use expiration='lazy', or evaluation='eager' with either expiration"),
    ({"nested_loop": "naive"}, "needs join='nested-loop', not 'auto'"),
    ({"nested_loop": "general", "join": "hash"}, "needs join='nested-loop', not 'hash'"),
    (
        {"nested_loop": "general", "join": "nested-loop", "evaluation": "eager"},
        "is an algorithm for lazy evaluation; evaluation is 'eager'",
    ),
    pytest.param({"stage_rows": "many"}, "stage_rows"),
    ({"stage_rows": True}, "Config(stage_rows=True): allowed are whole numbers from 1"),
    ({"adaptive": "no"}, "Config(adaptive=...) is 'no'; allowed: True, False"),
    ({"adaptve": True}, "Config(adaptve=...): there is no such option; allowed: 'shedding',"),
    ({"adaptve": True}, "Hint: did you mean 'adaptive'?"),
    ({"xyz": True}, "Config(xyz=...): there is no such option"),
    pytest.param({"stage_rows": 1.5}, "stage_rows"),
]


@pytest.mark.parametrize(("options", "message"), BAD_CONFIGS)
def test_bad_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        dt.Config(**options)


@pytest.mark.parametrize("kind", [dt.Config, dt.Shedding])
def test_modes_are_those_of_the_types(kind: Any) -> None:
    modes = {name: get_args(hint) for name, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}
    assert len(modes) == {dt.Config: 7, dt.Shedding: 2}[kind]
    for name, allowed in modes.items():
        listed = ", ".join(repr(mode) for mode in allowed if mode)
        with pytest.raises(
            ConfigError, match=re.escape(f"{kind.__name__}({name}=...) is 'no'; allowed: {listed}") + "$"
        ):
            kind(**{name: "no"})


def test_options_are_given_by_name() -> None:
    make: Any = dt.Config
    with pytest.raises(TypeError, match="positional"):
        make("hash")


def test_a_config_in_an_older_order_is_read() -> None:
    """Options were in this order in earlier snapshots and plan logs."""
    stored = {
        "join": "nested-loop",
        "nested_loop": "naive",
        "evaluation": "lazy",
        "expiration": "lazy",
        "ordering": "golab",
        "adaptive": False,
        "stage_rows": 3,
        "strategy": "mjoin",
        "driver_policy": "timestamp",
    }
    config = from_json(dt.Config, stored)
    assert to_json(config) == stored
    assert (config.join, config.driver_policy, config.stage_rows) == ("nested-loop", "timestamp", 3)
    with pytest.raises(StateError, match=r"Config.ordering is 'alphabetic'; expected one of \('f-greedy',"):
        from_json(dt.Config, stored | {"ordering": "alphabetic"})


@pytest.mark.parametrize("name", ["cpu_ms_per_second", "memory_bytes"])
@pytest.mark.parametrize("value", [0, -1, -0.5, float("nan"), pytest.param("1 GB")])
def test_bad_budget(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Budget({name}={value!r})")):
        dt.Budget(**{name: value})


def test_good_budget_and_error_bases() -> None:
    assert dt.Budget(cpu_ms_per_second=1.5, memory_bytes=1).memory_bytes == 1
    for error, base in (
        (ConfigError, ValueError),
        (SchemaError, ValueError),
        (PlanError, ValueError),
        (StateError, RuntimeError),
    ):
        assert issubclass(error, base)
        assert issubclass(error, DovetailError)
