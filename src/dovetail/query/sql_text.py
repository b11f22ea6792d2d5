"""Positions of the nodes of a parsed query in its text.

sqlglot records the offsets of names and literals, but not of operators, keywords, casts or NULL. The extent of any other
node is that of its parts, extended over the tokens that belong to it. The text of a condition is parsed again and
compared with the node, so it is either exact or sqlglot's rendering, never another condition's. All of this takes time
linear in the text, however long a list or a chain of conditions is, without recursion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlglot import Token, TokenType, exp, parse_one
from sqlglot.errors import SqlglotError

from dovetail.errors import QueryError

DIALECT = "spark"
Extent = tuple[int, int]

_TYPED_LITERALS = {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}
_CONSTANTS = {TokenType.IS, TokenType.NOT, TokenType.NULL, TokenType.TRUE, TokenType.FALSE}
_PREFIXES: dict[type[exp.Expr], set[TokenType]] = {
    exp.Neg: {TokenType.DASH},
    exp.Not: {TokenType.NOT},
    exp.Interval: {TokenType.INTERVAL},
}
_BOUNDARIES = {
    TokenType.AND,
    TokenType.WHERE,
    TokenType.ON,
    TokenType.COMMA,
    TokenType.JOIN,
    TokenType.INNER,
    TokenType.CROSS,
    TokenType.LEFT,
    TokenType.RIGHT,
    TokenType.FULL,
    TokenType.NATURAL,
    TokenType.SEMICOLON,
}
_BEFORE = _BOUNDARIES | {TokenType.L_PAREN}
_AFTER = _BOUNDARIES | {TokenType.R_PAREN}


def error_at(sql: str, token: Token, message: str, hint: str) -> QueryError:
    """Return an error that underlines one token."""
    return QueryError(message, hint, sql=sql, start=token.start, end=token.end + 1)


class SqlText:
    """The text of a query with its tokens (window brackets extracted)."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self._at_start = {token.start: position for position, token in reversed(list(enumerate(tokens)))}
        self._at_end = {token.end: position for position, token in enumerate(tokens)}
        self._partner = _partners(tokens)
        self._runs: dict[int, tuple[int, int] | None] = {}
        """First and last token of a node, by its id."""

    def error(self, message: str, hint: str | None, extent: Extent) -> QueryError:
        return QueryError(message, hint, sql=self.sql, start=extent[0], end=extent[1])

    @contextmanager
    def locating_errors(self, node: exp.Expr | Extent) -> Iterator[None]:
        """Point errors raised inside at a node or an extent, unless they already have a position."""
        try:
            yield
        except QueryError as error:
            extent = self.extent(node) if isinstance(node, exp.Expr) else node
            if error.sql or extent is None:
                raise
            raise self.error(error.message, error.hint, extent) from None

    def extent(self, node: exp.Expr) -> Extent | None:
        """Return the start and end offsets of a node; None if no part of it has offsets."""
        run = self._run(node)
        return self._offsets(run) if run else None

    def keyword(self, *kinds: str) -> Extent | None:
        """Return the offsets of the first tokens outside parentheses with these types, in this order."""
        depth = 0
        for position, token in enumerate(self.tokens):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
            names = [following.token_type.name for following in self.tokens[position : position + len(kinds)]]
            if depth == 0 and names == list(kinds):
                return self._offsets((position, position + len(kinds) - 1))
        return None

    def token_extent(self, *texts: str) -> Extent | None:
        """Return the offsets of the first token with one of these texts, in any case."""
        return next(((t.start, t.end + 1) for t in self.tokens if t.text.upper() in texts), None)

    def words_before(self, offset: int, kinds: set[TokenType]) -> Extent:
        """Return the offsets of the tokens of these kinds directly before the token at `offset`."""
        last = first = max(0, self._at_start.get(offset, 0) - 1)
        while first > 0 and self.tokens[first - 1].token_type in kinds:
            first -= 1
        return self._offsets((first, last))

    def select_items(self) -> list[Extent]:
        """Return the offsets of the entries of the select list."""
        items: list[Extent] = []
        depth = 0
        first = 2 if self._kind(1) == TokenType.ALL else 1
        for position, token in enumerate(self.tokens):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
            at_from = token.token_type == TokenType.FROM and self.tokens[position - 1].token_type != TokenType.DISTINCT
            if depth == 0 and (at_from or token.token_type == TokenType.COMMA):
                if first == position:
                    comma = self._offsets((position, position))
                    raise self.error("an entry of the select list is empty", "remove the comma", comma)
                items.append(self._offsets((first, position - 1)))
                first = position + 1
                if at_from:
                    break
        return items

    def condition_text(self, node: exp.Expr) -> tuple[str, Extent | None]:
        """Return a condition as the user wrote it, and its extent."""
        run = self._run(node)
        if run is not None:
            extent = self._offsets(self._to_boundaries(run))
            text = self.sql[extent[0] : extent[1]]
            if _means(text, node):
                return text, extent
        return node.sql(dialect=DIALECT), self.extent(node)

    def _offsets(self, run: tuple[int, int]) -> Extent:
        return self.tokens[run[0]].start, self.tokens[run[1]].end + 1

    def _run(self, node: exp.Expr) -> tuple[int, int] | None:
        """Return the first and the last token of a node, computed from its parts up."""
        stack = [node]
        while stack:
            top = stack[-1]
            parts = list(top.iter_expressions())
            missing = [part for part in parts if id(part) not in self._runs]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if id(top) not in self._runs:
                self._runs[id(top)] = self._around(top, parts)
        return self._runs[id(node)]

    def _around(self, node: exp.Expr, parts: Sequence[exp.Expr]) -> tuple[int, int] | None:
        runs = [run for part in parts if (run := self._runs[id(part)]) is not None]
        first, last = self._at_start.get(node.meta.get("start", -1)), self._at_end.get(node.meta.get("end", -1))
        if first is not None and last is not None:
            runs.append((first, last))
        return self._extend(node, self._spanning(runs)) if runs else None

    def _spanning(self, runs: list[tuple[int, int]]) -> tuple[int, int]:
        """Return the shortest run over all of these with balanced parentheses; each of them is balanced."""
        runs.sort()
        first, last = runs[0]
        for begin, end in runs:
            between = self._partner[last + 1 : begin]
            first, last = min([first, *between]), max([last, *between, end])
        return first, last

    def _extend(self, node: exp.Expr, run: tuple[int, int]) -> tuple[int, int]:
        """Extend a run over the tokens of a node that have no offsets."""
        first, last = run
        before = self._kind(first - 1)
        # AND, OR and some operators are subclasses of Func in sqlglot.
        is_function = isinstance(node, exp.Func) and not isinstance(node, exp.Binary)
        if isinstance(node, exp.Case):
            return self._case(first, last)
        if isinstance(node, exp.Extract) and before == TokenType.FROM and first > 3:
            return first - 4, self._partner[first - 3]
        if before in _PREFIXES.get(type(node), ()):
            return first - 1, last
        if isinstance(node, exp.Cast) and first and self.tokens[first - 1].text.upper() in _TYPED_LITERALS:
            return first - 1, last
        if is_function and "start" not in node.meta and before == TokenType.L_PAREN and first > 1:
            return first - 2, max(last, self._partner[first - 1])
        if (is_function or isinstance(node, exp.In)) and self._kind(last + 1) == TokenType.L_PAREN:
            return first, self._partner[last + 1]
        if isinstance(node, exp.Paren) and before == TokenType.L_PAREN:
            return first - 1, max(last, self._partner[first - 1])
        if isinstance(node, exp.Is):
            while self._kind(last + 1) in _CONSTANTS:
                last += 1
        return first, last

    def _case(self, first: int, last: int) -> tuple[int, int]:
        while first > 0 and self._kind(first) != TokenType.CASE:
            first -= 1
        while last + 1 < len(self.tokens) and self._kind(last) != TokenType.END:
            last += 1
        return first, last

    def _kind(self, position: int) -> TokenType | None:
        return self.tokens[position].token_type if 0 <= position < len(self.tokens) else None

    def _to_boundaries(self, run: tuple[int, int]) -> tuple[int, int]:
        """Extend a run of tokens to the keywords or parentheses that enclose the whole condition."""
        first, last = run
        while first > 0 and self._kind(first - 1) not in _BEFORE:
            first = self._partner[first - 1]
        while last + 1 < len(self.tokens) and self._kind(last + 1) not in _AFTER:
            last = self._partner[last + 1]
        return first, last


def _partners(tokens: Sequence[Token]) -> list[int]:
    """Return, for each parenthesis, the position of its counterpart.

    Every other token has its own position.
    """
    partners = list(range(len(tokens)))
    openings: list[int] = []
    for position, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            openings.append(position)
        elif token.token_type == TokenType.R_PAREN and openings:
            opening = openings.pop()
            partners[opening], partners[position] = position, opening
    return partners


def _means(text: str, node: exp.Expr) -> bool:
    try:
        return bool(parse_one(text, dialect=DIALECT, into=exp.Condition) == node)
    except SqlglotError:
        return False
