"""The execution plan: windows and the joins over them, as frozen data.

It is serialized as JSON. With stream schemas and a `Config` it is all that an engine needs.

A window plan lists columns, retention and views: a `View` is one bit per row, set when the row arrives. The *users* of a view are the
sources of steps (`StepSource`) that see its rows; sources with the same filters, keys and starting batch share a view.
`ExecutionPlan.of` derives all of this from the steps, except the bits of views: those of the previous plan do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TypeAlias

from dovetail.errors import PlanError, listed
from dovetail.plan.needs import Needs, WindowContents
from dovetail.plan.steps import JOINED, CountWindowPlan, JoinStep, SourceUse, Spans, check_steps, check_unique
from dovetail.query.expressions import Expression
from dovetail.query.model import CountWindow, TimeWindow

StepSource: TypeAlias = tuple[str, str]
"""The name of a step, and of one of its sources."""
_WindowKey: TypeAlias = tuple[str, str]
"""A window group and a stream."""
_ViewKey: TypeAlias = tuple[tuple[Expression, ...], tuple[Expression, ...], int, bool, int]
"""The fields that identify a view: filters, keys, `first_batch`, `backfill` and `complete_from`."""
MAX_VIEWS = 1 << 16
"""Maximum number of views of a window."""


@dataclass(frozen=True)
class View:
    """The rows of a window that its users see.

    They are those of batch `first_batch` or later that pass the filters and have all keys.

    With `backfill`, also older rows of batch `complete_from` or later, if the window can tell whether they qualify.
    """

    bit: int
    filters: tuple[Expression, ...]
    keys: tuple[Expression, ...]
    first_batch: int = field(metadata={"name": "since"})
    backfill: bool
    users: tuple[StepSource, ...]
    complete_from: int = 0

    @property
    def key(self) -> _ViewKey:
        return self.filters, self.keys, self.first_batch, self.backfill, self.complete_from


@dataclass(frozen=True)
class Retention:
    """A window that tuples are kept for.

    It is measured from the watermarks of the `others`, the streams that its tuples are joined with.
    """

    others: tuple[str, ...]
    window: TimeWindow | CountWindow


@dataclass(frozen=True)
class WindowPlan:
    """The window of one stream, for all steps of a group."""

    group: str
    stream: str
    kept: WindowContents
    expiry_tables: tuple[CountWindowPlan, ...] = field(metadata={"name": "ledgers"})
    """Its count windows: for each, the store keeps when they end."""
    views: tuple[View, ...]
    retention: tuple[Retention, ...]

    @property
    def name(self) -> str:
        return f"{self.group}.{self.stream}"

    @cached_property
    def longest_micros(self) -> int:
        """Longest time window in microseconds; 0 when all are count windows."""
        return max(self.micros_by_others.values(), default=0)

    @cached_property
    def micros_by_others(self) -> dict[tuple[str, ...], int]:
        """Longest time window in microseconds, by the streams that the tuples are joined with."""
        longest: dict[tuple[str, ...], int] = {}
        for retention in self.retention:
            if isinstance(retention.window, TimeWindow):
                longest[retention.others] = max(retention.window.micros, longest.get(retention.others, 0))
        return longest

    @cached_property
    def bits(self) -> dict[StepSource, int]:
        """The view bit of each user."""
        return {user: view.bit for view in self.views for user in view.users}

    @cached_property
    def words(self) -> int:
        """Number of 64-bit flag words per row."""
        return max(view.bit for view in self.views) // 64 + 1


@dataclass(frozen=True)
class Reader:
    """A step that reads a materialized join.

    A reader sees a match if it sees each of the match's tuples and all are inside its windows.
    """

    step: str
    bit: int
    spans: Spans


@dataclass(frozen=True)
class MaterializedJoinPlan:
    """A materialized join: the matches of one step, held for other steps."""

    id: str = field(metadata={"name": "state"})
    """Name of the materialized join."""
    step: str
    kept: WindowContents
    """Over the step's sources."""
    spans: Spans
    """The step's windows."""
    readers: tuple[Reader, ...]
    awaited: tuple[str, ...]
    """The streams that readers join the matches with."""

    @property
    def name(self) -> str:
        return f"{JOINED}.{self.id}"

    @cached_property
    def bits(self) -> dict[str, int]:
        """The bit of each reader."""
        return {reader.step: reader.bit for reader in self.readers}

    @property
    def words(self) -> int:
        """Number of 64-bit flag words per match."""
        return max(reader.bit for reader in self.readers) // 64 + 1


@dataclass(frozen=True)
class ExecutionPlan:
    """Everything that an engine runs."""

    windows: tuple[WindowPlan, ...] = ()
    materialized: tuple[MaterializedJoinPlan, ...] = field(default=(), metadata={"name": "stored"})
    steps: tuple[JoinStep, ...] = ()
    """Each after the steps whose materialized joins it reads."""
    derived: bool = field(default=False, repr=False, compare=False)
    """Whether windows were derived from the steps; otherwise they are checked against them."""

    def __post_init__(self) -> None:
        if self.derived:
            return
        check_steps(self.steps)
        for name, bits in _bits(self):
            check_unique(f"bit of {name!r}", bits)
            if not all(0 <= bit < MAX_VIEWS for bit in bits):
                raise PlanError(f"the bits of {name!r} are {bits}; allowed: 0 to {MAX_VIEWS - 1}")
        needed = ExecutionPlan.of(self.steps, self)
        if needed != self:
            actual, expected = self.by_name, needed.by_name
            names = [name for name in actual | expected if actual.get(name) != expected.get(name)]
            raise PlanError(f"the windows of a plan differ from what its steps need: {listed(names)}")

    @classmethod
    def of(cls, steps: Iterable[JoinStep], before: ExecutionPlan | None = None) -> ExecutionPlan:
        """Derive the plan of some steps; views and readers of the plan `before` keep their bits."""
        all_steps, before = tuple(steps), before or cls()
        check_steps(all_steps)
        old_windows = {(window.group, window.stream): window for window in before.windows}
        uses = _uses(all_steps)
        windows = [_window(key, uses[key], old_windows.get(key)) for key in sorted(uses)]
        return cls(tuple(windows), _all_materialized(all_steps, before), all_steps, derived=True)

    @property
    def by_name(self) -> dict[str, WindowPlan | MaterializedJoinPlan]:
        """Windows and materialized joins by name."""
        windows: dict[str, WindowPlan | MaterializedJoinPlan] = {window.name: window for window in self.windows}
        return windows | {join.name: join for join in self.materialized}

    @cached_property
    def answers(self) -> dict[str, JoinStep]:
        """The step that produces each query's results."""
        return {consumer.query: step for step in self.steps for consumer in step.consumers}

    @property
    def start_batches(self) -> list[int]:
        """The first batch that each step sees, sorted, without repetitions."""
        return sorted({step.first_batch for step in self.steps})

    @property
    def structure(self) -> list[list[object]]:
        """Steps, consumers, windows and bits as JSON: equal for plans that differ only in their probe orders."""
        bits = {user: bit for window in self.windows for user, bit in window.bits.items()}
        structure: list[list[object]] = []
        for step in self.steps:
            spans = step.windows
            sources = [[source.name, bits[step.name, source.name], spans.get(source.name)] for source in step.sources]
            consumers = [consumer.query for consumer in step.consumers]
            structure.append([step.name, step.first_batch, step.backfill, consumers, step.materialized_as, sources])
        return structure

    def with_steps(self, steps: Iterable[JoinStep]) -> ExecutionPlan:
        """Add steps, or replace those of the same name; windows that these steps do not use stay as they are."""
        added = {step.name: step for step in steps}
        replaced = {step.name for step in self.steps if step.name in added}
        all_steps = tuple(added.pop(step.name, step) for step in self.steps) + tuple(added.values())
        if replaced:
            return ExecutionPlan.of(all_steps, self)
        check_steps(tuple(added.values()), self.steps)
        windows = {(window.group, window.stream): window for window in self.windows}
        for key, uses in _uses(added.values()).items():
            windows[key] = _window(key, uses, windows.get(key), extend=True)
        reuse = not any(step.materialized_as is not None or step.materialized_inputs for step in added.values())
        materialized = self.materialized if reuse else _all_materialized(all_steps, self)
        return ExecutionPlan(tuple(windows[key] for key in sorted(windows)), materialized, all_steps, derived=True)

    def with_orders_of(self, before: ExecutionPlan) -> ExecutionPlan:
        """Return the plan with the probe orders of `before` in steps that differ from it in nothing else."""
        old_steps = {step.name: step for step in before.steps}
        reordered = []
        for step in self.steps:
            old = old_steps.get(step.name, step)
            if old.plan.paths != step.plan.paths:
                changed = replace(step, plan=replace(step.plan, paths=old.plan.paths))
                reordered += [old] if changed == old else []
        return self.with_steps(reordered) if reordered else self


def _uses(steps: Iterable[JoinStep]) -> dict[_WindowKey, list[tuple[JoinStep, SourceUse]]]:
    uses: dict[_WindowKey, list[tuple[JoinStep, SourceUse]]] = {}
    for step in steps:
        group = step.group
        for source in step.sources:
            uses.setdefault((group, source.stream), []).append((step, source))
    return uses


def _window(
    key: _WindowKey, uses: Sequence[tuple[JoinStep, SourceUse]], before: WindowPlan | None, *, extend: bool = False
) -> WindowPlan:
    """Return the window plan for some uses and, with `extend`, for those of the plan `before`."""
    needs, users, retention = Needs(), dict[_ViewKey, list[StepSource]](), dict[Retention, None]()
    count_windows: dict[CountWindow, CountWindowPlan] = {}
    if before is not None and extend:
        needs = Needs.of(before.kept)
        users = {view.key: list(view.users) for view in before.views}
        retention = dict.fromkeys(before.retention)
        count_windows = {plan.window: plan for plan in before.expiry_tables}
    for step, source in uses:
        needs.update(step.needs.sources[source.name])
        view_key = (source.filters, source.keys, step.first_batch, step.backfill, source.complete_from)
        users.setdefault(view_key, []).append((step.name, source.name))
        others = dict.fromkeys(other.stream for other in step.sources if other.name != source.name)
        retention[Retention(tuple(others), source.window)] = None
        if (plan := source.count_window_plan) is not None:
            count_windows.setdefault(plan.window, plan)
    bits = {view.key: view.bit for view in before.views} if before is not None else {}
    free = _free_bits(bits.values())  # old rows still have the bits of removed views
    views = [
        View(bits[view_key] if view_key in bits else next(free), *view_key[:-1], tuple(view_users), view_key[-1])
        for view_key, view_users in users.items()
    ]
    return WindowPlan(*key, needs.contents(), tuple(count_windows.values()), tuple(views), tuple(retention))


def _all_materialized(steps: Sequence[JoinStep], before: ExecutionPlan) -> tuple[MaterializedJoinPlan, ...]:
    old_joins = {join.name: join for join in before.materialized}
    return tuple(_materialized(step, steps, old_joins) for step in steps if step.materialized_as is not None)


def _materialized(
    step: JoinStep, steps: Sequence[JoinStep], before: Mapping[str, MaterializedJoinPlan]
) -> MaterializedJoinPlan:
    assert step.materialized_as is not None  # noqa: S101 - called for materialized steps only
    needs, spans, awaited = Needs(), dict[str, Spans](), dict[str, None]()
    for reader in steps:
        input_spans = reader.materialized_inputs.get(step.materialized_as)
        if input_spans is not None:
            needs.update(reader.needs.materialized[step.materialized_as])
            spans[reader.name] = input_spans
            names = {source for source, _ in input_spans}
            awaited |= dict.fromkeys(source.stream for source in reader.sources if source.name not in names)
    plan = MaterializedJoinPlan(
        step.materialized_as, step.name, needs.contents(), tuple(step.windows.items()), (), tuple(sorted(awaited))
    )
    old = before.get(plan.name)
    bits = old.bits if old is not None else {}
    free = _free_bits(bits.values())
    readers = [Reader(name, bits[name] if name in bits else next(free), span) for name, span in spans.items()]
    return replace(plan, readers=tuple(readers))


def _bits(plan: ExecutionPlan) -> Iterator[tuple[str, list[int]]]:
    for window in plan.windows:
        yield window.name, [view.bit for view in window.views]
    for join in plan.materialized:
        yield join.name, [reader.bit for reader in join.readers]


def _free_bits(bits: Iterable[int]) -> Iterator[int]:
    used = set(bits)
    return (bit for bit in count() if bit not in used)
