"""What a user may set, checked when it is set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import wraps
from sys import float_info
from typing import Any, TypeVar

from dovetail.errors import ConfigError, listed

_T = TypeVar("_T")

JOINS = ("auto", "hash", "nested-loop", "hybrid")
LOOPS = ("multi-way", "naive", "general")
ORDERINGS = ("f-greedy", "dmjoin", "treeopt", "fab", "q-aware", "golab", "weave")
MODES = ("lazy", "eager")
PLANNERS = ("exchange", "shared", "shared-naive", "naive", "exact", "mjoin", "bjtree")
STRATEGIES = ("auto", *PLANNERS)
INTERLEAVING = ("timestamp", "round-robin")
"""Policies that take the tuples of a batch's inputs in turn; the others take one input after another."""
POLICIES = (*INTERLEAVING, "consumption-rate", "initial-output-size", "output-rate", "declared")

SHEDDING = ("auto", "arrival-order", "frequency", "frequency-own", "output", "random", "fifo")
SHARES = ("session", "window")


def is_number(value: object) -> bool:
    """Whether an option is a finite number (booleans are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max


def names_checked(kind: type[_T]) -> type[_T]:
    """Let a dataclass of options refuse unknown names with a suggestion, where Python would only say that they are unexpected."""
    make: Callable[..., None] = kind.__init__
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]

    @wraps(make)
    def checked(self: _T, *args: Any, **options: Any) -> None:
        unknown = [name for name in options if name not in known]
        if unknown:
            close = get_close_matches(unknown[0], known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else None
            raise ConfigError(
                f"{kind.__name__}({unknown[0]}=...): there is no such option; allowed: {listed(known)}", hint
            )
        make(self, *args, **options)

    kind.__init__ = checked  # type: ignore[method-assign, assignment]
    return kind


@names_checked
@dataclass(frozen=True, slots=True)
class Budget:
    """What the queries of a session may use together.

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
                raise ConfigError(f"Budget({name}={value!r}): it must be a number above zero, or None for no limit")


@names_checked
@dataclass(frozen=True, slots=True)
class Shedding:
    """What is forgotten when windows become too large, and how large they may become. See docs/shedding.md.

    Parameters
    ----------
    policy
        Which tuple goes: the one whose key has been seen in such windows, in such an order, that it promises least
        (`arrival-order`, Kwon et al.), whose key is rarest in all windows (`frequency`) or in its own (`frequency-own`), whose key
        has given fewest results (`output`), any (`random`), the oldest (`fifo`), or whichever of these keeps most (`auto`).
    max_tuples
        Most tuples that windows hold at any event time.
    max_bytes
        Most bytes that the arrays of windows take at any moment. One of the two has to be given.
    per
        Whether that is for all windows together (`session`) or for each (`window`).
    seed
        Of everything that is left to chance.
    """

    policy: str = "auto"
    max_tuples: int | None = None
    max_bytes: int | None = None
    per: str = "session"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("policy", SHEDDING), ("per", SHARES)):
            if getattr(self, name) not in allowed:
                raise ConfigError.choice(f"Shedding({name}=...)", getattr(self, name), allowed)
        for name, least in (("max_tuples", 1), ("max_bytes", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 62:
                raise ConfigError(f"Shedding({name}={value!r}): it must be a whole number from {least} on")
        if (self.max_tuples is None) == (self.max_bytes is None):
            given = "neither" if self.max_tuples is None else "both"
            raise ConfigError(
                f"Shedding got {given} of max_tuples and max_bytes: windows are measured in one of them",
                "give one, e.g. Shedding(max_tuples=100_000)",
            )

    def part(self, shards: int) -> Shedding:
        """What each of some shards has of it."""
        return replace(
            self,
            max_tuples=None if self.max_tuples is None else max(1, self.max_tuples // shards),
            max_bytes=None if self.max_bytes is None else max(1, self.max_bytes // shards),
        )


@names_checked
@dataclass(frozen=True, slots=True)
class Config:
    """How queries are run. Results never depend on it, but for what is shed.

    Parameters
    ----------
    join
        How a window is searched: `hash` (an index on the equated columns), `nested-loop` (a scan), `hybrid` (an index on the
        windows expected to be large, a scan of the others), `auto` (an index wherever an equality allows it).
    nested_loop
        Where new tuples stand in a nested-loop plan (Golab and Özsu): in the outermost loop (`multi-way`, section 3.2), at their
        stream's place in one global order (`naive`, 3.1), or wherever it is cheapest (`general`, 3.3). Loops outside the new
        tuples run once per batch.
    evaluation
        `lazy` joins a batch at a time; `eager` joins each tuple, in event-time order, with exactly those before it.
    expiration
        `lazy` forgets expired tuples after a batch; `eager` hides them from each later tuple. Eager expiration needs eager
        evaluation (3.3).
    ordering
        The method that orders the probes of each input: `weave` (the default: exact up to 20 inputs and on acyclic graphs, close
        to it elsewhere; for queries that can share stages the orders are chosen together), `q-aware`, `dmjoin` (always exact, at
        most 22 inputs), `treeopt`, `fab`, `f-greedy` or `golab`; see `dovetail.optimizer.order_probes`. Nested-loop plans
        minimise comparisons, all others tuples produced.
    adaptive
        Whether probe orders may change while a query runs, by what its probes have found, and stored sub-joins with them.
    strategy
        How the queries of a session are planned together: `auto` (n-ary joins, equal ones computed once; under a budget
        `exchange`), or one of `dovetail.optimizer.plan_queries`, which may store sub-joins that several queries share.
    driver_policy
        Whose tuples of a batch are joined first (Valsomatzis and Gounaris): one input after another, `declared` (as streams were
        declared), `consumption-rate`, `initial-output-size` or `output-rate` (the default); or tuple by tuple, `timestamp` or
        `round-robin`. Under eager evaluation it is `timestamp`. See docs/driver-policies.md.
    stage_rows
        Most partial results held at once between two probes; bounds memory, not results.
    shedding
        What to forget when windows become too large; None to forget nothing.
    """

    join: str = "auto"
    nested_loop: str = "multi-way"
    evaluation: str = "lazy"
    expiration: str = "lazy"
    ordering: str = "weave"
    adaptive: bool = True
    stage_rows: int = 1 << 17
    strategy: str = "auto"
    driver_policy: str = ""
    shedding: Shedding | None = field(default=None, metadata={"optional": True})

    def __post_init__(self) -> None:
        if not self.driver_policy:
            chosen = "timestamp" if self.evaluation == "eager" else "output-rate"
            object.__setattr__(self, "driver_policy", chosen)
        choices = {"join": JOINS, "nested_loop": LOOPS, "evaluation": MODES, "expiration": MODES}
        choices |= {"ordering": ORDERINGS, "strategy": STRATEGIES, "driver_policy": POLICIES}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError.choice(f"Config({name}=...)", getattr(self, name), allowed)
        if self.evaluation == "lazy" and self.expiration == "eager":
            raise ConfigError(
                "Config(evaluation='lazy', expiration='eager') would lose results: a tuple could be forgotten before the "
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
        if self.strategy not in ("auto", "mjoin") and not self.can_store:
            raise ConfigError(
                f"Config(strategy={self.strategy!r}) may store sub-joins, which lazy evaluation, multi-way loops and inputs that "
                f"are joined one after another can read; evaluation is {self.evaluation!r}, nested_loop {self.nested_loop!r}, "
                f"driver_policy {self.driver_policy!r}",
                "use strategy='mjoin' or 'auto'",
            )
        if not isinstance(self.stage_rows, int) or isinstance(self.stage_rows, bool) or self.stage_rows < 1:
            raise ConfigError(f"Config(stage_rows={self.stage_rows!r}): it must be at least 1, and whole")
        if not isinstance(self.adaptive, bool):
            raise ConfigError.choice("Config(adaptive=...)", self.adaptive, (True, False))
        if self.shedding is not None and not isinstance(self.shedding, Shedding):
            raise ConfigError(
                f"Config(shedding=...) is a {type(self.shedding).__name__}; expected a dovetail.Shedding, or None",
                "e.g. Config(shedding=dt.Shedding(max_tuples=100_000))",
            )

    @property
    def joins_in_turn(self) -> bool:
        """Whether inputs of a batch are joined one after another, each with all that is there: then paths can share stages."""
        return self.driver_policy not in INTERLEAVING

    @property
    def can_store(self) -> bool:
        """Whether joins may read stored sub-joins."""
        return self.driver_policy not in INTERLEAVING and self.nested_loop == "multi-way"
