"""The window of each alias: its own bracket, what the conditions say, or the next bracket to its right.

A tuple of an alias is needed as long after its own time as another tuple of a result can lie behind it. Where
conditions and the other aliases' own brackets bound that, the window follows from them: it is the shortest that loses
nothing. The conditions are checked all the same. A bracket that takes away what a condition allows, or leaves nothing,
is told as a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from dovetail.query.bounds import Bound, bounds_of, close
from dovetail.query.brackets import FromItem, WindowBracket, own_window, window_for
from dovetail.query.durations import LONGEST, as_written, in_words
from dovetail.query.model import Condition, Equality, TimeWindow, Window
from dovetail.query.sql_from import FromEntry
from dovetail.query.sql_text import SourceText

_EXAMPLE = 600_000_000
_MOST_ADDED = 2
"""Conditions in a hint; more are harder to read than windows."""
Resolve = Callable[[FromEntry, WindowBracket], Window]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows by alias; for those that follow from conditions, the texts of these; what may not be meant."""

    of: Mapping[str, Window]
    inferred: tuple[tuple[str, tuple[str, ...]], ...]
    warnings: tuple[str, ...]


class WindowFinder:
    """Finds the windows of one query. `times` gives the event-time column of each alias."""

    def __init__(
        self,
        source: SourceText,
        entries: Sequence[FromEntry],
        items: Sequence[FromItem],
        times: Mapping[str, str],
        conjuncts: Sequence[Condition | Equality],
    ) -> None:
        self._source = source
        self._entries = entries
        self._names = [entry.alias for entry in entries]
        self._times = times
        self._own = {entry.alias: own_window(items, entry.extent[0]) for entry in entries}
        self._next = {entry.alias: window_for(items, entry.extent[0]) for entry in entries}
        self._written = [bound for each in conjuncts for bound in bounds_of(each.expression, each.text, times)]
        brackets = [bound for alias, bracket in self._own.items() for bound in self._of(alias, bracket)]
        self._brackets = brackets if self._written else []
        self._conditions = close(self._written)
        self._all = close([*self._written, *self._brackets])

    def _of(self, alias: str, bracket: WindowBracket | None) -> Iterator[Bound]:
        """What a bracket says: no tuple of a result lies further behind its alias's."""
        if bracket is not None and isinstance(bracket.window, TimeWindow):
            text, micros = f"{alias} {self._text(bracket)}", bracket.window.micros
            yield from (Bound(name, alias, micros, text) for name in self._names if name != alias)

    def _text(self, bracket: WindowBracket) -> str:
        return " ".join(self._source.sql[bracket.start : bracket.end].split())

    def find(self, resolve: Resolve) -> Windows:
        """Give every alias a window; raise `QueryError` if one has none."""
        windows: dict[str, Window] = {}
        inferred: list[tuple[str, tuple[str, ...]]] = []
        for entry in self._entries:
            alias, bracket = entry.alias, self._next[entry.alias]
            found = self._reach(alias) if self._own[alias] is None else None
            if found is not None:
                windows[alias] = TimeWindow(found[0])
                inferred.append((alias, tuple(dict.fromkeys(bound.text for bound in found[1]))))
            elif bracket is None:
                raise self._source.refusal(self._missing(alias), self._hint(), entry.extent)
            else:
                windows[alias] = resolve(entry, bracket)
        return Windows(windows, tuple(inferred), tuple(self._warnings(dict(inferred))))

    def _reach(self, alias: str) -> tuple[int, tuple[Bound, ...]] | None:
        if self._all.conflict:
            return 0, self._all.conflict  # there is no result to lose
        found = self._all.reach(alias, self._names) if self._written else None
        return found if found is not None and found[0] <= LONGEST else None

    # -- what may not be meant ----------------------------------------------------------------------------------------------

    def _warnings(self, inferred: Collection[str]) -> Iterator[str]:
        if not self._written:
            return
        written = {alias: bracket for alias, bracket in self._next.items() if alias not in inferred and bracket}
        brackets = [bound for alias, bracket in written.items() for bound in self._of(alias, bracket)]
        final, allowed = close([*self._written, *brackets]), self._conditions
        conflict = allowed.conflict or final.conflict
        if conflict:
            texts = list(dict.fromkeys(repr(bound.text) for bound in conflict))
            verb = "contradict each other" if len(texts) > 1 else "never holds"
            yield f"there can be no result: {' and '.join(texts)} {verb}"
            return
        cuts: dict[str, tuple[int, tuple[str, str]]] = {}
        for pair, (most, _) in allowed.paths.items():
            reached, path = final.paths[pair]
            if reached < most:
                blamed = next(bound.right for bound in reversed(path) if bound in brackets)
                cuts[blamed] = max(cuts.get(blamed, (0, pair)), (most - reached, pair))
        for alias, (lost, pair) in cuts.items():
            yield self._cut(alias, written[alias], lost, pair)

    def _cut(self, alias: str, bracket: WindowBracket, lost: int, pair: tuple[str, str]) -> str:
        most, path = self._conditions.paths[pair]
        why = " and ".join(dict.fromkeys(repr(bound.text) for bound in path))
        late, early = map(self._time, pair)
        needed = lost + (bracket.window.micros if isinstance(bracket.window, TimeWindow) else 0)
        return (
            f"{self._text(bracket)} of alias {alias!r} leaves out results that {why} would let in: "
            f"{late} may be {_span(most)} {early}, with this window only {_span(most - lost)} it; "
            f"write {alias} [RANGE {_rounded(needed)}] to keep them, or a condition that says the same as the window"
        )

    # -- what is missing ----------------------------------------------------------------------------------------------------

    def _time(self, alias: str) -> str:
        return f"{alias}.{self._times[alias]}"

    def _missing(self, alias: str) -> str:
        behind = next((name for name in self._names if name != alias and self._all.upper(name, alias) is None), None)
        if not self._written or behind is None:
            return f"alias {alias!r} has no window"
        return f"alias {alias!r} has no window: nothing says how long after {self._time(alias)} {self._time(behind)} may be"

    def _hint(self) -> str:
        """Windows and conditions that make the query run and leave out nothing that its conditions let in."""
        missing = [name for name in self._names if self._next[name] is None and self._reach(name) is None]
        largest = max((_ample(bound.micros) for bound in self._written), default=0) or _EXAMPLE
        named = {e.alias: e.stream if e.stream == e.alias else f"{e.stream} {e.alias}" for e in self._entries}
        spare = self._spare(missing, largest)
        windows = [f"{named[alias]} [RANGE {as_written(micros)}]" for alias, micros in spare.items()]
        write = f"write {', '.join(windows)}"
        added = self._additions(missing, largest)
        if len(added) <= _MOST_ADDED:
            parts = [f"add {' AND '.join(added)}", write]
            write = ", or ".join(parts if self._written else reversed(parts))
        return write

    def _spare(self, missing: Sequence[str], largest: int) -> dict[str, int]:
        """Windows of the size of the bounds around them; longer ones if those would take away what is bounded."""
        lengths = {}
        for alias in missing:
            known = (self._all.upper(*pair) for name in self._names for pair in ((name, alias), (alias, name)))
            lengths[alias] = max((_ample(micros) for micros in known if micros is not None), default=0) or largest
        while True:
            added = [
                Bound(name, alias, micros, "")
                for alias, micros in lengths.items()
                for name in self._names
                if name != alias
            ]
            closed = close([*self._written, *self._brackets, *added])
            if not closed.conflict and all(closed.upper(*pair) == most for pair, (most, _) in self._all.paths.items()):
                return lengths
            lengths = {alias: 2 * micros for alias, micros in lengths.items()}

    def _additions(self, missing: Sequence[str], largest: int) -> list[str]:
        """Conditions that bound what is not bounded."""
        bounds, added, closed = list(self._written), list[str](), self._all
        for alias, name in product(missing, self._names):
            if name == alias or closed.upper(name, alias) is not None:
                continue
            one, other, known = self._time(alias), self._time(name), closed.upper(alias, name)
            if known is not None and known > 0:
                text, micros = f"{one} >= {other}", 0
            else:
                micros = max(largest, _ample(known or 0))
                until = f"{one} + INTERVAL {_rounded(micros)}"
                text = f"{other} <= {until}" if known is not None else f"{other} BETWEEN {one} AND {until}"
            added.append(text)
            bounds += [Bound(name, alias, micros, text), *([Bound(alias, name, 0, text)] if known is None else [])]
            closed = close([*bounds, *self._brackets])
        return added


def _span(micros: int) -> str:
    """A bound for people: strict ones are one microsecond short of what was written."""
    if micros < 0:
        return f"as little as {in_words(-micros)} before"
    return f"less than {in_words(micros + 1)} after" if micros % 1000 == 999 else f"up to {in_words(micros)} after"


def _ample(micros: int) -> int:
    """A length that a bound suggests: itself if it is an upper one, twice a lower one, as it was written if it is strict."""
    return micros + (micros % 1000 == 999) if micros >= 0 else 2 * (-micros - (-micros % 1000 == 1))


def _rounded(micros: int) -> str:
    """For a hint: what is a few microseconds short of a round number, because bounds are strict, is that number."""
    return as_written(-(-micros // 1000) * 1000 if micros % 1000 >= 990 else micros)
