"""The plan that runs: windows, and the joins over them, as data. It travels as JSON, and an engine that adopts it needs nothing else.

A window says what it keeps, for how long, and who sees which of its rows: a `View` is one bit per row, set when the row arrives. Users
with the same filters and keys that came at the same time have the same view. All of this follows from the steps, so `of` derives it;
the only choice is which bit a view has, and those of the plan before stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TypeAlias

from dovetail.errors import PlanError, listed
from dovetail.plan.needs import Kept, Needs
from dovetail.plan.steps import JOINED, JoinStep, Ledger, SourceUse, Spans, check_steps, once
from dovetail.query.expressions import Expression
from dovetail.query.model import CountWindow, TimeWindow

User: TypeAlias = tuple[str, str]
"""A step, and one of its sources."""
_Place: TypeAlias = tuple[str, str]
"""A group of windows, and the stream of one."""
_Sight: TypeAlias = tuple[tuple[Expression, ...], tuple[Expression, ...], int, bool, int]
"""What makes views the same: filters, keys, since when, and whether and from which batch on tuples from before are shown."""
MOST_BITS = 1 << 16
"""Views that a window may have."""


@dataclass(frozen=True)
class View:
    """Which rows of a window some users see: those that came in batch `since` or later, meet the filters, and have all keys.

    With `backfill` also those of batch `complete_from` or later that were there already, as far as it was known of them.
    """

    bit: int
    filters: tuple[Expression, ...]
    keys: tuple[Expression, ...]
    since: int
    backfill: bool
    users: tuple[User, ...]
    complete_from: int = 0

    @property
    def sight(self) -> _Sight:
        return self.filters, self.keys, self.since, self.backfill, self.complete_from


@dataclass(frozen=True)
class Retention:
    """How long tuples are needed: their window, counted from the watermark of the `others` that they are joined with."""

    others: tuple[str, ...]
    window: TimeWindow | CountWindow


@dataclass(frozen=True)
class WindowPlan:
    """One stream's tuples, for all steps of a group."""

    group: str
    stream: str
    kept: Kept
    ledgers: tuple[Ledger, ...]
    views: tuple[View, ...]
    retention: tuple[Retention, ...]

    @property
    def name(self) -> str:
        return f"{self.group}.{self.stream}"

    @cached_property
    def longest(self) -> int:
        """Microseconds of the longest time window; 0 when all are count windows."""
        return max(self.waits.values(), default=0)

    @cached_property
    def waits(self) -> dict[tuple[str, ...], int]:
        """Time windows, by the others that tuples are kept for: microseconds of the longest."""
        found: dict[tuple[str, ...], int] = {}
        for kept in self.retention:
            if isinstance(kept.window, TimeWindow):
                found[kept.others] = max(kept.window.micros, found.get(kept.others, 0))
        return found

    @cached_property
    def bits(self) -> dict[User, int]:
        """The bit of each user."""
        return {user: view.bit for view in self.views for user in view.users}

    @property
    def words(self) -> int:
        """Words of flags that each row has."""
        return max(view.bit for view in self.views) // 64 + 1


@dataclass(frozen=True)
class Reader:
    """A step that reads stored matches: it sees those of which it sees every tuple, for as long as its own windows say."""

    step: str
    bit: int
    spans: Spans


@dataclass(frozen=True)
class StoredPlan:
    """The matches of one step, kept for others."""

    state: str
    step: str
    kept: Kept
    """Over the step's sources."""
    spans: Spans
    """The step's own windows."""
    readers: tuple[Reader, ...]
    awaited: tuple[str, ...]
    """The streams that readers join the matches with."""

    @property
    def name(self) -> str:
        return f"{JOINED}.{self.state}"

    @cached_property
    def bits(self) -> dict[str, int]:
        """The bit of each reader."""
        return {reader.step: reader.bit for reader in self.readers}

    @property
    def words(self) -> int:
        """Words of flags that each match has."""
        return max(reader.bit for reader in self.readers) // 64 + 1


@dataclass(frozen=True)
class ExecutionPlan:
    """All that an engine runs."""

    windows: tuple[WindowPlan, ...] = ()
    stored: tuple[StoredPlan, ...] = ()
    steps: tuple[JoinStep, ...] = ()
    """Each after those whose stored matches it reads."""
    derived: bool = field(default=False, repr=False, compare=False)
    """Whether windows were derived from the steps; else they are compared with what the steps need."""

    def __post_init__(self) -> None:
        if self.derived:
            return
        check_steps(self.steps)
        for name, bits in _bits(self):
            once(f"bit of {name!r}", bits)
            if not all(0 <= bit < MOST_BITS for bit in bits):
                raise PlanError(f"the bits of {name!r} are not all from 0 to {MOST_BITS - 1}")
        needed = ExecutionPlan.of(self.steps, self)
        if needed != self:
            own, others = self.named, needed.named
            names = [name for name in own | others if own.get(name) != others.get(name)]
            raise PlanError(f"a plan's steps need other windows than it has: {listed(names)}")

    @classmethod
    def of(cls, steps: Iterable[JoinStep], before: ExecutionPlan | None = None) -> ExecutionPlan:
        """Give the plan of some steps; views and readers that were there `before` keep their bits."""
        chosen, before = tuple(steps), before or cls()
        check_steps(chosen)
        known = {(window.group, window.stream): window for window in before.windows}
        uses = _uses(chosen)
        windows = [_window(place, uses[place], known.get(place)) for place in sorted(uses)]
        return cls(tuple(windows), _all_stored(chosen, before), chosen, derived=True)

    @property
    def named(self) -> dict[str, WindowPlan | StoredPlan]:
        """Windows and stored matches by name."""
        found: dict[str, WindowPlan | StoredPlan] = {window.name: window for window in self.windows}
        return found | {state.name: state for state in self.stored}

    @cached_property
    def answers(self) -> dict[str, JoinStep]:
        """The step that each query takes its results from."""
        return {consumer.query: step for step in self.steps for consumer in step.consumers}

    @property
    def begins(self) -> list[int]:
        """The batches from which on steps see tuples."""
        return sorted({step.since for step in self.steps})

    @property
    def outline(self) -> list[list[object]]:
        """What tells plans apart that differ in more than their orders, as JSON: steps, whom they serve, windows, bits."""
        bits = {user: bit for window in self.windows for user, bit in window.bits.items()}
        found = []
        for step in self.steps:
            spans = step.windows
            sources = [[source.name, bits[step.name, source.name], spans.get(source.name)] for source in step.sources]
            found.append(
                [
                    step.name,
                    step.since,
                    step.backfill,
                    [consumer.query for consumer in step.consumers],
                    step.state,
                    sources,
                ]
            )
        return found

    def with_steps(self, steps: Iterable[JoinStep]) -> ExecutionPlan:
        """The plan with more steps, or with other ones of the same name; windows that these do not use stay as they are."""
        changed = {step.name: step for step in steps}
        before = {step.name: step for step in self.steps if step.name in changed}
        kept = tuple(changed.pop(step.name, step) if step.name in before else step for step in self.steps)
        added = tuple(changed.values())
        if before:
            return ExecutionPlan.of((*kept, *added), self)
        check_steps(added, kept)
        windows = {(window.group, window.stream): window for window in self.windows}
        for place, uses in _uses(added).items():
            windows[place] = _window(place, uses, windows.get(place), grows=True)
        whole = (*kept, *added)
        same = not any(step.state is not None or step.stored_inputs for step in added)
        stored = self.stored if same else _all_stored(whole, self)
        return ExecutionPlan(tuple(windows[place] for place in sorted(windows)), stored, whole, derived=True)

    def in_orders_of(self, before: ExecutionPlan) -> ExecutionPlan:
        """The plan with the orders that the same steps have in another, where they have been found to be better."""
        known = {step.name: step for step in before.steps}
        better = []
        for step in self.steps:
            other = known.get(step.name, step)
            if other.plan.paths != step.plan.paths:
                changed = replace(step, plan=replace(step.plan, paths=other.plan.paths))
                better += [other] if changed == other else []
        return self.with_steps(better) if better else self


def _uses(steps: Iterable[JoinStep]) -> dict[_Place, list[tuple[JoinStep, SourceUse]]]:
    found: dict[_Place, list[tuple[JoinStep, SourceUse]]] = {}
    for step in steps:
        group = step.group
        for source in step.sources:
            found.setdefault((group, source.stream), []).append((step, source))
    return found


def _window(
    place: _Place, uses: Sequence[tuple[JoinStep, SourceUse]], before: WindowPlan | None, *, grows: bool = False
) -> WindowPlan:
    """What a window has to be for some uses, besides those that it had `before` if it only `grows`."""
    needs, users, retention = Needs(), dict[_Sight, list[User]](), dict[Retention, None]()
    ledgers: dict[CountWindow, Ledger] = {}
    if before is not None and grows:
        needs = Needs.of(before.kept)
        users = {view.sight: list(view.users) for view in before.views}
        retention = dict.fromkeys(before.retention)
        ledgers = {ledger.window: ledger for ledger in before.ledgers}
    for step, source in uses:
        needs.update(step.needs[1][source.name])
        sight = (source.filters, source.keys, step.since, step.backfill, source.complete_from)
        users.setdefault(sight, []).append((step.name, source.name))
        others = dict.fromkeys(other.stream for other in step.sources if other.name != source.name)
        retention[Retention(tuple(others), source.window)] = None
        if (ledger := source.ledger) is not None:
            ledgers.setdefault(ledger.window, ledger)
    bits = {view.sight: view.bit for view in before.views} if before is not None else {}
    free = _free(bits.values())  # old rows still have the bits of views that are gone
    views = [
        View(bits[key] if key in bits else next(free), *key[:-1], tuple(own), key[-1]) for key, own in users.items()
    ]
    return WindowPlan(*place, needs.kept(), tuple(ledgers.values()), tuple(views), tuple(retention))


def _all_stored(steps: Sequence[JoinStep], before: ExecutionPlan) -> tuple[StoredPlan, ...]:
    known = {state.name: state for state in before.stored}
    return tuple(_stored(step, steps, known) for step in steps if step.state is not None)


def _stored(step: JoinStep, steps: Sequence[JoinStep], before: Mapping[str, StoredPlan]) -> StoredPlan:
    assert step.state is not None  # noqa: S101 - asked of steps with a state only
    needs, spans, awaited = Needs(), dict[str, Spans](), dict[str, None]()
    for reader in steps:
        inside = reader.stored_inputs.get(step.state)
        if inside is not None:
            needs.update(reader.needs[0][step.state])
            spans[reader.name] = inside
            names = {source for source, _ in inside}
            awaited |= dict.fromkeys(source.stream for source in reader.sources if source.name not in names)
    plan = StoredPlan(step.state, step.name, needs.kept(), tuple(step.windows.items()), (), tuple(sorted(awaited)))
    older = before.get(plan.name)
    bits = older.bits if older is not None else {}
    free = _free(bits.values())
    readers = [Reader(name, bits[name] if name in bits else next(free), own) for name, own in spans.items()]
    return replace(plan, readers=tuple(readers))


def _bits(plan: ExecutionPlan) -> Iterator[tuple[str, list[int]]]:
    for window in plan.windows:
        yield window.name, [view.bit for view in window.views]
    for state in plan.stored:
        yield state.name, [reader.bit for reader in state.readers]


def _free(taken: Iterable[int]) -> Iterator[int]:
    used = set(taken)
    return (bit for bit in count() if bit not in used)
