"""The window of each alias.

It is that of its own bracket, one inferred from conditions, or that of the next bracket to its right.

A window must hold a tuple as long as a later tuple can still match it. Where conditions and the brackets of the other
aliases bound that time, the window is inferred: it is the shortest that loses no result. The conditions are still
evaluated. A bracket that excludes results that the conditions allow, or all results, gives a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from dovetail.query.binder import sql_name
from dovetail.query.bounds import Bound, bounds_of, close_bounds
from dovetail.query.brackets import FromExtent, WindowBracket, applicable_bracket, own_bracket
from dovetail.query.durations import LONGEST, format_duration, sql_duration
from dovetail.query.model import Condition, Equality, TimeWindow, Window
from dovetail.query.sql_from import FromEntry
from dovetail.query.sql_text import SqlText

_EXAMPLE = 600_000_000
_MAX_CONDITIONS = 2
"""Maximum number of conditions in a hint; more are harder to read than windows."""
WindowBinder = Callable[[FromEntry, WindowBracket], Window]
"""Returns the window of a FROM entry, given the bracket that applies to it."""


@dataclass(frozen=True, slots=True)
class AliasWindows:
    """The windows of a query, the conditions that inferred windows follow from, and warnings."""

    by_alias: Mapping[str, Window]
    inferred: tuple[tuple[str, tuple[str, ...]], ...]
    warnings: tuple[str, ...]
    never_holds: bool = False
    """Whether the conditions on event times contradict each other, which `warnings` say."""


class WindowResolver:
    """Resolver of the windows of one query."""

    def __init__(
        self,
        sql_text: SqlText,
        entries: Sequence[FromEntry],
        extents: Sequence[FromExtent],
        event_time_columns: Mapping[str, str],
        conjuncts: Sequence[Condition | Equality],
    ) -> None:
        self._sql_text = sql_text
        self._entries = entries
        self._names = [entry.alias for entry in entries]
        self._event_time_columns = event_time_columns
        self._own_brackets = {entry.alias: own_bracket(extents, entry.extent[0]) for entry in entries}
        self._applicable_brackets = {entry.alias: applicable_bracket(extents, entry.extent[0]) for entry in entries}
        self._condition_bounds = [
            bound for c in conjuncts for bound in bounds_of(c.expression, c.text, event_time_columns)
        ]
        brackets = [
            bound for alias, bracket in self._own_brackets.items() for bound in self._bracket_bounds(alias, bracket)
        ]
        self._window_bounds = brackets if self._condition_bounds else []
        self._condition_closure = close_bounds(self._condition_bounds)
        self._closure = close_bounds([*self._condition_bounds, *self._window_bounds])

    def _bracket_bounds(self, alias: str, bracket: WindowBracket | None) -> Iterator[Bound]:
        """Yield the bounds of a bracket.

        No tuple of a result is later than its alias's by more than the window.
        """
        if bracket is not None and isinstance(bracket.window, TimeWindow):
            text, micros = f"{alias} {self._text(bracket)}", bracket.window.micros
            yield from (Bound(name, alias, micros, text) for name in self._names if name != alias)

    def _text(self, bracket: WindowBracket) -> str:
        return " ".join(self._sql_text.sql[bracket.start : bracket.end].split())

    def resolve(self, bind: WindowBinder) -> AliasWindows:
        """Return a window for every alias; raise `QueryError` if one has none."""
        windows: dict[str, Window] = {}
        inferred: list[tuple[str, tuple[str, ...]]] = []
        for entry in self._entries:
            alias, bracket = entry.alias, self._applicable_brackets[entry.alias]
            inference = self._infer(alias) if self._own_brackets[alias] is None else None
            if inference is not None:
                windows[alias] = TimeWindow(inference[0])
                inferred.append((alias, tuple(dict.fromkeys(bound.text for bound in inference[1]))))
            elif bracket is None:
                raise self._sql_text.error(self._missing(alias), self._hint(), entry.extent)
            else:
                windows[alias] = bind(entry, bracket)
        warnings, conflict = tuple(self._warnings(dict(inferred))), self._condition_closure.conflict
        return AliasWindows(windows, tuple(inferred), warnings, bool(conflict))

    def _infer(self, alias: str) -> tuple[int, tuple[Bound, ...]] | None:
        """Return the inferred window of an alias in microseconds, and the bounds it follows from."""
        if self._closure.conflict:
            return 0, self._closure.conflict  # there are no results, so no window loses any
        window = self._closure.required_window(alias, self._names) if self._condition_bounds else None
        return window if window is not None and window[0] <= LONGEST else None

    # -- warnings -----------------------------------------------------------------------------------------------------------

    def _warnings(self, inferred: Collection[str]) -> Iterator[str]:
        if not self._condition_bounds:
            return
        written = {
            alias: bracket for alias, bracket in self._applicable_brackets.items() if alias not in inferred and bracket
        }
        brackets = [bound for alias, bracket in written.items() for bound in self._bracket_bounds(alias, bracket)]
        final, allowed = close_bounds([*self._condition_bounds, *brackets]), self._condition_closure
        conflict = allowed.conflict or final.conflict
        if conflict:
            texts = list(dict.fromkeys(repr(bound.text) for bound in conflict))
            verb = "contradict each other" if len(texts) > 1 else "never holds"
            yield f"there can be no result: {' and '.join(texts)} {verb}"
            return
        losses: dict[str, tuple[int, tuple[str, str]]] = {}
        for pair, (limit, _) in allowed.paths.items():
            final_limit, path = final.paths[pair]
            if final_limit < limit:
                cause = next(bound.right for bound in reversed(path) if bound in brackets)
                losses[cause] = max(losses.get(cause, (0, pair)), (limit - final_limit, pair))
        for alias, (lost, pair) in losses.items():
            yield self._loss_warning(alias, written[alias], lost, pair)

    def _loss_warning(self, alias: str, bracket: WindowBracket, lost: int, pair: tuple[str, str]) -> str:
        limit, path = self._condition_closure.paths[pair]
        conditions = " and ".join(dict.fromkeys(repr(bound.text) for bound in path))
        late, early = map(self._time, pair)
        needed = lost + (bracket.window.micros if isinstance(bracket.window, TimeWindow) else 0)
        return (
            f"{self._text(bracket)} of alias {alias!r} excludes results that {conditions} would allow: "
            f"{late} may be {_span(limit)} {early}, with this window only {_span(limit - lost)} it; "
            f"write {alias} [RANGE {_rounded(needed)}] to keep them, or a condition as tight as the window"
        )

    # -- missing windows ----------------------------------------------------------------------------------------------------

    def _time(self, alias: str) -> str:
        return f"{sql_name(alias)}.{sql_name(self._event_time_columns[alias])}"

    def _missing(self, alias: str) -> str:
        unbounded = next((n for n in self._names if n != alias and self._closure.upper(n, alias) is None), None)
        if not self._condition_bounds or unbounded is None:
            return f"alias {alias!r} has no window"
        return f"alias {alias!r} has no window: no condition limits how long after {self._time(alias)} {self._time(unbounded)} may be"

    def _hint(self) -> str:
        """Return windows and conditions to add that exclude nothing that the conditions allow."""
        missing = [
            name for name in self._names if self._applicable_brackets[name] is None and self._infer(name) is None
        ]
        largest = max((_suggested_micros(bound.micros) for bound in self._condition_bounds), default=0) or _EXAMPLE
        named = {
            e.alias: sql_name(e.stream) if e.stream == e.alias else f"{sql_name(e.stream)} {sql_name(e.alias)}"
            for e in self._entries
        }
        suggested = self._suggest_windows(missing, largest)
        windows = [f"{named[alias]} [RANGE {sql_duration(micros)}]" for alias, micros in suggested.items()]
        hint = f"write {', '.join(windows)}"
        conditions = self._suggest_conditions(missing, largest)
        if len(conditions) <= _MAX_CONDITIONS:
            parts = [f"add {' AND '.join(conditions)}", hint]
            hint = ", or ".join(parts if self._condition_bounds else reversed(parts))
        return hint

    def _suggest_windows(self, missing: Sequence[str], largest: int) -> dict[str, int]:
        """Return windows of the size of the related bounds.

        They are longer where those would exclude allowed results.
        """
        lengths = {}
        for alias in missing:
            uppers = (self._closure.upper(*pair) for name in self._names for pair in ((name, alias), (alias, name)))
            sizes = (_suggested_micros(micros) for micros in uppers if micros is not None)
            lengths[alias] = max(sizes, default=0) or largest
        while True:
            added = [
                Bound(name, alias, micros, "")
                for alias, micros in lengths.items()
                for name in self._names
                if name != alias
            ]
            closure = close_bounds([*self._condition_bounds, *self._window_bounds, *added])
            limits = self._closure.paths.items()
            if not closure.conflict and all(closure.upper(*pair) == limit for pair, (limit, _) in limits):
                return lengths
            lengths = {alias: 2 * micros for alias, micros in lengths.items()}

    def _suggest_conditions(self, missing: Sequence[str], largest: int) -> list[str]:
        """Return conditions that bound the pairs of event times without a bound."""
        bounds, conditions, closure = list(self._condition_bounds), list[str](), self._closure
        for alias, name in product(missing, self._names):
            if name == alias or closure.upper(name, alias) is not None:
                continue
            time, other, upper = self._time(alias), self._time(name), closure.upper(alias, name)
            if upper is not None and upper > 0:
                text, micros = f"{time} >= {other}", 0
            else:
                micros = max(largest, _suggested_micros(upper or 0))
                until = f"{time} + INTERVAL {_rounded(micros)}"
                text = f"{other} <= {until}" if upper is not None else f"{other} BETWEEN {time} AND {until}"
            conditions.append(text)
            bounds += [Bound(name, alias, micros, text), *([Bound(alias, name, 0, text)] if upper is None else [])]
            closure = close_bounds([*bounds, *self._window_bounds])
        return conditions


def _span(micros: int) -> str:
    """Format a bound; a strict one is one microsecond less than written."""
    if micros < 0:
        return f"as little as {format_duration(-micros)} before"
    return (
        f"less than {format_duration(micros + 1)} after"
        if micros % 1000 == 999
        else f"up to {format_duration(micros)} after"
    )


def _suggested_micros(micros: int) -> int:
    """Return the window that a bound suggests.

    It has the length of the bound, or twice that of a lower bound; strict bounds count as written.
    """
    return micros + (micros % 1000 == 999) if micros >= 0 else 2 * (-micros - (-micros % 1000 == 1))


def _rounded(micros: int) -> str:
    """Format a duration for a hint.

    It is rounded up if strict bounds left it a few microseconds below a round number.
    """
    return sql_duration(-(-micros // 1000) * 1000 if micros % 1000 >= 990 else micros)
