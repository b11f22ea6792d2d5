"""The options of a session, validated at construction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import wraps
from sys import float_info
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from dovetail.errors import ConfigError, listed

_T = TypeVar("_T")

Join: TypeAlias = Literal["auto", "hash", "nested-loop", "hybrid"]
NestedLoop: TypeAlias = Literal["multi-way", "naive", "general"]
Ordering: TypeAlias = Literal["f-greedy", "dmjoin", "treeopt", "fab", "q-aware", "golab", "weave"]
Mode: TypeAlias = Literal["lazy", "eager"]
Strategy: TypeAlias = Literal["exchange", "shared", "shared-naive", "naive", "exact", "mjoin", "bjtree"]
"""Strategies for the joint planning of queries."""
StrategyOption: TypeAlias = Literal["auto", Strategy]
InterleavingPolicy: TypeAlias = Literal["timestamp", "round-robin"]
"""Driver policies that interleave the streams of a batch; the others join one stream after another."""
DriverPolicy: TypeAlias = Literal[
    InterleavingPolicy, "consumption-rate", "initial-output-size", "output-rate", "declared"
]
SheddingPolicy: TypeAlias = Literal["auto", "arrival-order", "frequency", "frequency-own", "output", "random", "fifo"]
SheddingScope: TypeAlias = Literal["session", "window"]

JOINS: tuple[Join, ...] = get_args(Join)
NESTED_LOOPS: tuple[NestedLoop, ...] = get_args(NestedLoop)
ORDERINGS: tuple[Ordering, ...] = get_args(Ordering)
MODES: tuple[Mode, ...] = get_args(Mode)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
STRATEGY_OPTIONS: tuple[StrategyOption, ...] = get_args(StrategyOption)
INTERLEAVING: tuple[InterleavingPolicy, ...] = get_args(InterleavingPolicy)
POLICIES: tuple[DriverPolicy, ...] = get_args(DriverPolicy)
SHEDDING: tuple[SheddingPolicy, ...] = get_args(SheddingPolicy)
SHEDDING_SCOPES: tuple[SheddingScope, ...] = get_args(SheddingScope)


def is_number(value: object) -> bool:
    """Whether an option is a finite number (booleans are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max


def reject_unknown_options(kind: type[_T]) -> type[_T]:
    """Make a dataclass of options reject unknown names with a suggestion."""
    init: Callable[..., None] = kind.__init__
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]

    @wraps(init)
    def checked_init(self: _T, *args: Any, **options: Any) -> None:
        unknown = [name for name in options if name not in names]
        if unknown:
            close = get_close_matches(unknown[0], names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else None
            raise ConfigError(
                f"{kind.__name__}({unknown[0]}=...): there is no such option; allowed: {listed(names)}", hint
            )
        init(self, *args, **options)

    kind.__init__ = checked_init  # type: ignore[method-assign, assignment]
    return kind


@reject_unknown_options
@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the CPU and memory that all queries of a session use together.

    Parameters
    ----------
    cpu_ms_per_second
        Milliseconds of processor time per second of stream.
    memory_bytes
        Bytes of window state.
    """

    cpu_ms_per_second: float | None = None
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("cpu_ms_per_second", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                example = "2 << 30, which is 2 GiB" if name == "memory_bytes" else "500, which is half a core"
                raise ConfigError(
                    f"Budget({name}={value!r}): allowed are numbers above zero, or None for no limit",
                    f"write {name}={example}",
                )


@reject_unknown_options
@dataclass(frozen=True, slots=True)
class Shedding:
    """A cap on window state, and the policy that drops tuples above it. See docs/shedding.md.

    Parameters
    ----------
    policy
        The tuple to drop: the one with the lowest expected number of results, given its arrival pattern (`arrival-order`, Kwon et
        al.), the one whose key is rarest in all windows (`frequency`) or in its own window (`frequency-own`), the one whose key has
        given the fewest results (`output`), a random one (`random`), the oldest (`fifo`), or the choice of whichever of these
        policies, `frequency-own` aside, keeps the most results on a sample of the keys (`auto`).
    max_tuples
        Maximum number of tuples that windows hold at any event time.
    max_bytes
        Maximum number of bytes that the arrays of windows take at any moment. Give either `max_tuples` or `max_bytes`.
    per
        Whether the cap applies to all windows together (`session`) or to each one (`window`).
    seed
        Seed of all random choices.
    dead_keys_first
        Where each key occurs at most once in each stream, drop tuples that can produce no more results before the policy decides.
        Turn it off to measure the policies as published.
    """

    policy: SheddingPolicy = "auto"
    max_tuples: int | None = None
    max_bytes: int | None = None
    per: SheddingScope = "session"
    seed: int = 0
    dead_keys_first: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.dead_keys_first, bool):
            raise ConfigError(f"Shedding(dead_keys_first={self.dead_keys_first!r}): allowed are True and False")
        for name, allowed in (("policy", SHEDDING), ("per", SHEDDING_SCOPES)):
            if getattr(self, name) not in allowed:
                raise ConfigError.choice(f"Shedding({name}=...)", getattr(self, name), allowed)
        for name, minimum in (("max_tuples", 1), ("max_bytes", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value < 1 << 62:
                raise ConfigError(f"Shedding({name}={value!r}): allowed are whole numbers from {minimum}")
        if (self.max_tuples is None) == (self.max_bytes is None):
            quantity = "neither" if self.max_tuples is None else "both"
            raise ConfigError(
                f"Shedding(...) got {quantity} of max_tuples and max_bytes; allowed: exactly one",
                "write e.g. Shedding(max_tuples=100_000)",
            )


@reject_unknown_options
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Options of how queries run, given by name. They never change results, except for shedding.

    Those under Other Parameters are for experiments: the papers compare them, and the defaults suit any query.

    Parameters
    ----------
    shedding
        What to drop when windows become too large; None to drop nothing.
    driver_policy
        The order in which a batch is joined (Valsomatzis and Gounaris): stream by stream, `declared` (in order of declaration),
        `consumption-rate`, `initial-output-size` or `output-rate` (the default); or tuple by tuple, `timestamp` or `round-robin`.
        Under eager evaluation it is `timestamp`. See docs/driver-policies.md.
    strategy
        How the queries of a session are planned together: `auto` (n-ary joins, equal ones computed once; under a budget
        `exchange`), or one of `dovetail.optimizer.plan_queries`, which may materialize joins that several queries share.
    adaptive
        Whether measured selectivities may change probe orders and materialized joins while a query runs.

    Other Parameters
    ----------------
    join
        How a window is searched: `hash` (an index on the equated columns), `nested-loop` (a scan), `hybrid` (an index on the
        windows expected to be large, a scan of the others), `auto` (an index wherever an equality allows it).
    nested_loop
        The loop over new tuples in a nested-loop plan (Golab and Özsu): the outermost (`multi-way`, section 3.2), the one that
        their stream has in one global order (`naive`, 3.1), or the cheapest (`general`, 3.3). Loops outside the loop over new
        tuples run once per batch.
    ordering
        The method that orders the probes of each input: `weave` (the default: exact up to 20 inputs and on acyclic graphs, close
        to optimal elsewhere; orders of queries that can share stages are chosen together), `q-aware`, `dmjoin` (always exact, at
        most 22 inputs), `treeopt`, `fab`, `f-greedy` or `golab`; see `dovetail.optimizer.order_probes`. Nested-loop plans
        minimise comparisons, all others tuples produced.
    evaluation
        `lazy` joins a batch at a time; `eager` joins each tuple, in event-time order, with exactly the tuples before it.
    expiration
        `lazy` removes expired tuples after a batch; `eager` hides them from each later tuple. Eager expiration needs eager
        evaluation (3.3).
    stage_rows
        Maximum number of partial results held between two probes; bounds memory, not results.
    """

    shedding: Shedding | None = field(default=None, metadata={"optional": True})
    driver_policy: Literal["", DriverPolicy] = ""
    strategy: StrategyOption = "auto"
    adaptive: bool = True

    # for experiments
    join: Join = "auto"
    nested_loop: NestedLoop = "multi-way"
    ordering: Ordering = "weave"
    evaluation: Mode = "lazy"
    expiration: Mode = "lazy"
    stage_rows: int = 1 << 17

    def __post_init__(self) -> None:
        if not self.driver_policy:
            chosen = "timestamp" if self.evaluation == "eager" else "output-rate"
            object.__setattr__(self, "driver_policy", chosen)
        choices: dict[str, tuple[str, ...]] = {
            "join": JOINS,
            "nested_loop": NESTED_LOOPS,
            "evaluation": MODES,
            "expiration": MODES,
        }
        choices |= {"ordering": ORDERINGS, "strategy": STRATEGY_OPTIONS, "driver_policy": POLICIES}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError.choice(f"Config({name}=...)", getattr(self, name), allowed)
        if self.evaluation == "lazy" and self.expiration == "eager":
            raise ConfigError(
                "Config(evaluation='lazy', expiration='eager') would lose results: a tuple could be removed before the "
                "batch that needs it is joined",
                "use expiration='lazy', or evaluation='eager' with either expiration",
            )
        if self.evaluation == "eager" and self.driver_policy != "timestamp":
            raise ConfigError(
                f"Config(driver_policy={self.driver_policy!r}): eager evaluation joins each tuple in event-time order",
                "leave driver_policy out, or use evaluation='lazy'",
            )
        if self.nested_loop != "multi-way" and self.join != "nested-loop":
            raise ConfigError(
                f"Config(nested_loop={self.nested_loop!r}) needs join='nested-loop', not {self.join!r}",
                "add join='nested-loop', or leave nested_loop out",
            )
        if self.nested_loop == "general" and self.evaluation == "eager":
            raise ConfigError(
                "Config(nested_loop='general') is an algorithm for lazy evaluation; evaluation is 'eager'",
                "use nested_loop='naive' or 'multi-way', or evaluation='lazy'",
            )
        if self.strategy not in ("auto", "mjoin") and not can_materialize(self):
            raise ConfigError(
                f"Config(strategy={self.strategy!r}) may materialize joins, which needs lazy evaluation, multi-way loops and a "
                f"driver policy that joins stream by stream; evaluation is {self.evaluation!r}, nested_loop {self.nested_loop!r}, "
                f"driver_policy {self.driver_policy!r}",
                "use strategy='mjoin' or 'auto'",
            )
        if not isinstance(self.stage_rows, int) or isinstance(self.stage_rows, bool) or self.stage_rows < 1:
            raise ConfigError(f"Config(stage_rows={self.stage_rows!r}): allowed are whole numbers from 1")
        if not isinstance(self.adaptive, bool):
            raise ConfigError.choice("Config(adaptive=...)", self.adaptive, (True, False))
        if self.shedding is not None and not isinstance(self.shedding, Shedding):
            raise ConfigError(
                f"Config(shedding=...) is a {type(self.shedding).__name__}; expected a dovetail.Shedding, or None",
                "write e.g. Config(shedding=dt.Shedding(max_tuples=100_000))",
            )


def can_share_stages(config: Config) -> bool:
    """Whether probe paths can share stages: streams are joined one by one, with all rows in the windows."""
    return config.driver_policy not in INTERLEAVING


def can_materialize(config: Config) -> bool:
    """Whether joins may read materialized joins."""
    return can_share_stages(config) and config.nested_loop == "multi-way"


def shedding_per_shard(shedding: Shedding, shards: int) -> Shedding:
    """Return the shedding of one shard: the cap is divided evenly."""
    return replace(
        shedding,
        max_tuples=None if shedding.max_tuples is None else max(1, shedding.max_tuples // shards),
        max_bytes=None if shedding.max_bytes is None else max(1, shedding.max_bytes // shards),
    )
