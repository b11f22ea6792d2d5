"""Random scenarios: streams, queries over them, and batches that produce results.

A `RandomCase` is small enough for the oracle and covers what goes wrong: types that compare only after a cast, NaN, -0.0,
NULLs, ties, disorder, late tuples, empty batches, windows of zero length, count windows, self-joins, cycles. `random_scenario`
makes one from a `random.Random`. `scenarios` lets hypothesis choose the structure and a seed for the rest, so that shrinking
removes aliases, batches and features, and thousands of cases stay fast.

Key values come from small domains, and streams are short enough for a few thousand results at most. `progress_by`, `max_ahead`
and `idle_after` have separate tests, because they need a clock or a promise about the data.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dovetail.schema import StreamSchema
from dovetail.testing.sampling import SHAPES, Pushes, ScenarioOptions, random_pushes, random_stream, recut
from dovetail.testing.values import stored_values


@dataclass(frozen=True, repr=False)
class RandomCase:
    """Streams, queries by name, and the batches to push; `repr` shows all of them."""

    streams: tuple[StreamSchema, ...]
    sql: dict[str, str]
    pushes: Pushes

    @property
    def catalog(self) -> dict[str, StreamSchema]:
        """The streams by name, as `parse_query` takes them."""
        return {stream.name: stream for stream in self.streams}

    def __repr__(self) -> str:
        lines = []
        for stream in self.streams:
            columns = ", ".join(f"{field.name} {field.type}" for field in stream.columns)
            lines.append(f"stream {stream.name} (lateness {stream.lateness} us): {columns}")
        lines += [f"query {name}: {sql}" for name, sql in self.sql.items()]
        for index, push in enumerate(self.pushes):
            for name, table in push.items():
                rows = zip(*(stored_values(column) for column in table.columns), strict=True)
                lines += [f"push {index}, {name}: {table.num_rows} rows", *(f"    {row}" for row in rows)]
        return "\n".join(lines)


def random_scenario(rng: random.Random, **options: Any) -> RandomCase:
    """Return a random scenario; `options` are the fields of `ScenarioOptions`.

    The same generator state and options give the same scenario.

    >>> repr(random_scenario(random.Random(7), aliases=3)) == repr(random_scenario(random.Random(7), aliases=3))
    True
    """
    complete = _complete_options(rng, ScenarioOptions(**options))
    assert complete.aliases is not None
    assert complete.queries is not None
    kinds = [rng.choice(list(complete.kinds)) for _ in range(rng.choice((1, 1, 2, 3)))]
    count = complete.aliases if not complete.self_joins else rng.randint(1, complete.aliases - 1)
    streams = tuple(random_stream(rng, f"s{index}", kinds, complete) for index in range(1, count + 1))
    sql = {}
    for index in range(complete.queries):
        aliases = complete.aliases if index == 0 else rng.randint(2, complete.aliases)
        sql[f"q{index + 1}"] = _Query(rng, streams, kinds, replace(complete, aliases=aliases)).text()
    return RandomCase(streams, sql, random_pushes(rng, streams, kinds, complete))


def scenarios(**options: Any) -> st.SearchStrategy[RandomCase]:
    """Return a hypothesis strategy for scenarios with some `options` of `random_scenario` fixed.

    >>> from hypothesis import given
    >>> @given(scenarios(aliases=3, count_windows=False))
    ... def law(scenario): ...
    """
    feature = st.sampled_from((False, None, True))
    structure: dict[str, st.SearchStrategy[Any]] = {
        "aliases": st.sampled_from((2, 2, 3, 3, 3, 4, 5, 6)),
        "pushes": st.integers(1, 6),
        "queries": st.sampled_from((1, 1, 1, 2)),
        "tuples": st.sampled_from((3, 10, 20, 40)),
        "shape": st.sampled_from(SHAPES),
        **dict.fromkeys(("self_joins", "nulls", "filters", "theta", "expression_keys", "late"), feature),
        **dict.fromkeys(("count_windows", "nested_payload"), st.sampled_from((False, False, None, True))),
    }
    drawn = {name: strategy for name, strategy in structure.items() if name not in options}
    return st.builds(
        lambda seed, **chosen: random_scenario(random.Random(seed), **chosen, **options),  # noqa: S311 - a replayable seed
        seed=st.integers(0, 2**32 - 1),
        **drawn,
    )


def batch_cuts(
    pushes: Sequence[Mapping[str, pa.Table]], *, max_pushes: int = 6, shuffle: bool = False
) -> st.SearchStrategy[Pushes]:
    """Return a hypothesis strategy for other splits of the same input into batches; see `recut`."""
    return st.builds(
        lambda count, seed: recut(random.Random(seed), pushes, count, shuffle=shuffle),  # noqa: S311
        count=st.integers(1, max_pushes),
        seed=st.integers(0, 2**32 - 1),
    )


def _complete_options(rng: random.Random, options: ScenarioOptions) -> ScenarioOptions:
    """Choose the options that are None; queries use an enabled feature only now and then."""
    chances = {"self_joins": 0.3, "nulls": 0.5, "filters": 0.4, "theta": 0.4, "expression_keys": 0.2}
    chances |= {"count_windows": 0.15, "late": 0.5, "nested_payload": 0.15}
    choices: dict[str, Any] = {name: rng.random() < chance for name, chance in chances.items()}
    choices["aliases"] = rng.choice((2, 2, 3, 3, 3, 4, 5, 6))
    choices["pushes"] = rng.randint(1, 6)
    choices["queries"] = rng.choice((1, 1, 1, 2))
    choices["shape"] = rng.choice(SHAPES)
    choices["tuples"] = rng.choice((8, 15, 25, 40))
    return replace(options, **{name: value for name, value in choices.items() if getattr(options, name) is None})


class _Query:
    """Random SQL text of one query, built clause by clause."""

    def __init__(
        self, rng: random.Random, streams: Sequence[StreamSchema], kinds: Sequence[str], options: ScenarioOptions
    ) -> None:
        assert options.aliases is not None
        self.rng, self.kinds, self.options = rng, kinds, options
        self.aliases = list(string.ascii_lowercase[: options.aliases])
        repeat = len(streams) < len(self.aliases)
        chosen = rng.choices(streams, k=len(self.aliases)) if repeat else rng.sample(streams, len(self.aliases))
        # With short windows everywhere hardly anything would match, the less the more aliases there are.
        self.lengths = ["0 s", "1500 ms", "3 SECONDS", "8 sec"]
        self.lengths += ["1 MINUTE"] * rng.choice((3, 6, 30)) * (1 + options.aliases // 4)
        self.stream = dict(zip(self.aliases, chosen, strict=True))

    def text(self) -> str:
        conjuncts: list[tuple[str, tuple[str, ...]]] = [
            (self._edge(left, right), (left, right)) for left, right in self._edges()
        ]
        if self.options.theta:
            conjuncts += [self._comparison() for _ in range(self.rng.randint(1, 2))]
        if self.options.filters:
            conjuncts += [
                (self._filter(alias), (alias,)) for alias in self.aliases if self.rng.random() < 1 / len(self.aliases)
            ]
        tables, joined = [self._table(alias) for alias in self.aliases], self.rng.random() < 0.3
        if not joined:
            for index in range(len(tables) - 1):
                if self.rng.random() < 0.08:  # without a window of its own it uses the next one to its right
                    tables[index] = f"{self.stream[self.aliases[index]].name} {self.aliases[index]}"
            condition = " AND ".join(text for text, _ in conjuncts)
            return " ".join(["SELECT", self._select(), "FROM", ", ".join(tables), "WHERE", condition])
        clauses, remaining = [tables[0]], conjuncts
        for index in range(1, len(tables)):
            joined_aliases = set(self.aliases[: index + 1])
            # Some filters stay for WHERE, but a join always has a condition.
            on = [
                conjunct
                for conjunct in remaining
                if joined_aliases.issuperset(conjunct[1]) and (len(conjunct[1]) > 1 or self.rng.random() < 0.5)
            ]
            remaining = [conjunct for conjunct in remaining if conjunct not in on]
            clauses.append(f"JOIN {tables[index]} ON {' AND '.join(text for text, _ in on)}")
        where = ["WHERE", " AND ".join(text for text, _ in remaining)] if remaining else []
        return " ".join(["SELECT", self._select(), "FROM", *clauses, *where])

    def _edges(self) -> list[tuple[str, str]]:
        """Return pairs of aliases to connect; each alias but the first is connected to an earlier one."""
        rng, names, shape = self.rng, self.aliases, self.options.shape
        later = range(1, len(names))
        if shape == "star":
            pairs = [(0, right) for right in later]
        elif shape == "complete":
            pairs = [(left, right) for right in later for left in range(right)]
        elif shape in ("common", "tree"):
            pairs = [(rng.randrange(right), right) for right in later]
        else:
            pairs = [(right - 1, right) for right in later]
        if shape == "cycle" and len(names) > 2:
            pairs.append((len(names) - 1, 0))
        if shape == "tree":
            extra = [(left, right) for right in later for left in range(right) if (left, right) not in pairs]
            pairs += rng.sample(extra, rng.randint(0, min(2, len(extra))))
        return [(names[left], names[right]) for left, right in pairs]

    def _edge(self, left: str, right: str) -> str:
        rng = self.rng
        if self.options.shape == "common":
            return f"{left}.k0 = {right}.k0"
        if self.options.theta and rng.random() < 0.15:
            return self._between(left, right)
        if self.options.expression_keys and rng.random() < 0.4:
            text_keys = [f"k{index}" for index, kind in enumerate(self.kinds) if kind == "text"]
            if text_keys and rng.random() < 0.5:
                return f"lower({left}.{text_keys[0]}) = lower({right}.{text_keys[-1]})"
            return rng.choice(
                (f"{left}.x + 1 = {right}.x", f"{left}.x = {right}.x - 1", f"{left}.x % 3 = {right}.x % 3")
            )
        key = rng.randrange(len(self.kinds))
        same_kind = [other for other, kind in enumerate(self.kinds) if kind == self.kinds[key]]
        equalities = [f"{left}.k{key} = {right}.k{rng.choice(same_kind)}"]
        if len(self.kinds) > 1 and rng.random() < 0.15:
            second = (key + 1) % len(self.kinds)
            equalities.append(f"{right}.k{second} = {left}.k{second}")
        return " AND ".join(equalities)

    def _between(self, left: str, right: str) -> str:
        width = self.rng.randint(0, 2)
        if self.rng.random() < 0.3:
            return f"{right}.ts BETWEEN {left}.ts AND {left}.ts + INTERVAL {width} SECONDS"
        return f"{right}.x BETWEEN {left}.x - {width} AND {left}.x + {width}"

    def _comparison(self) -> tuple[str, tuple[str, ...]]:
        pair = tuple(self.rng.sample(self.aliases, 2))
        left, right = pair
        if len(self.aliases) > 2 and self.rng.random() < 0.3:
            three = tuple(self.rng.sample(self.aliases, 3))
            return f"{three[0]}.x + {three[1]}.x >= {three[2]}.x", three
        choices = (
            f"{left}.x < {right}.x",
            f"{left}.x <> {right}.x",
            f"{left}.ts <= {right}.ts",
            f"{left}.x >= {right}.x",
        )
        return self.rng.choice((*choices, self._between(left, right), f"({left}.x > 1 OR {right}.x > 2)")), pair

    def _filter(self, alias: str) -> str:
        choices = [
            f"{alias}.x > 1",
            f"{alias}.x <> 3",
            f"{alias}.x % 2 = 0",
            f"{alias}.p IS NOT NULL",
            f"{alias}.x <= 4",
        ]
        choices += [f"({alias}.x = 1 OR {alias}.x >= 3)", f"{alias}.k0 IS NOT NULL", f"{alias}.p LIKE '%a%'"]
        return self.rng.choice(choices)

    def _table(self, alias: str) -> str:
        rng, name = self.rng, self.stream[alias].name
        if self.options.count_windows and rng.random() < 0.5:
            partition = f"PARTITION BY {rng.choice(('k0', 'x'))} " if rng.random() < 0.35 else ""
            window = f"[{partition}ROWS {rng.randint(1, 4)}]"
        else:
            window = f"[RANGE {rng.choice(self.lengths)}]"
        spellings = f"{name} {alias} {window}", f"{name} AS {alias} {window}", f"{name} {window} {alias}"
        return rng.choice((spellings[0], *spellings))

    def _select(self) -> str:
        rng = self.rng
        if rng.random() < 0.5:
            return "*"
        items = []
        for number in range(rng.randint(1, 5)):
            left, right = rng.choice(self.aliases), rng.choice(self.aliases)
            column = f"{left}.{rng.choice(self.stream[left].columns.names)}"
            item = rng.choice(
                (column, column, column, f"{left}.x + {right}.x", f"coalesce({left}.x, 0)", f"{left}.x * 2")
            )
            items.append(f"{item} AS c{number}")
        return ", ".join(items)
