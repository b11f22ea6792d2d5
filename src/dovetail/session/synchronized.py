"""One caller at a time.

Calls from several threads are serialized, and an interrupted call is rolled back.
"""

from __future__ import annotations

import time as clock
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Concatenate, ParamSpec, TypeVar

from dovetail.engine.shard import ShardEngine
from dovetail.errors import StateError
from dovetail.session.unknown_names import OUTERMOST

_POLL_SECONDS = 0.001
"""Pause between two checks whether another thread has released the session."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound="SynchronizedSession")


class SynchronizedSession(ABC):
    """An engine that one thread uses at a time."""

    _engine: ShardEngine
    _user: int | None = None
    """The thread that uses the session now."""

    @abstractmethod
    def _complete_rollback(self) -> None:
        """Bring the session in step with its engine, which has been rolled back."""

    def _rollback_if_interrupted(self) -> None:
        """Undo a call that was interrupted or ran out of memory; raise `StateError` if that is impossible."""
        if self._engine.open_savepoint is None:
            return
        if not self._engine.rollback():
            raise StateError(
                "an earlier call was interrupted, or ran out of memory, while this session's windows were being changed",
                "restore a snapshot, dt.LocalSession.restore(blob), and push again the batches after it",
            )
        self._complete_rollback()
        self._engine.open_savepoint = None

    def _wait(self, call: str, caller: int) -> None:
        """Pause while another thread uses the session."""
        if self._user == caller:
            raise StateError(
                f"{call}() was called while the same thread was inside another call of this session",
                "call it after the other call has returned, or push_iter() is exhausted; not from a signal handler or warnings filter",
            )
        clock.sleep(_POLL_SECONDS)


def synchronized(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Serialize calls from several threads, and undo an interrupted call before the next one.

    Python handles interrupts and switches threads only where a function is called or returns and where a loop repeats. So the session
    is acquired and released by assignment: a lock's `release` would let an interrupt in after the savepoint was cleared, and
    results that nobody received would count as delivered. For the same reason no other function may wrap a synchronized one.
    """

    @wraps(method)
    def synchronized(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        caller = get_ident()
        while self._user is not None:
            self._wait(method.__name__, caller)
        self._user = caller
        try:
            self._rollback_if_interrupted()
            result = method(self, *args, **kwargs)
        except BaseException:
            self._user = None
            raise
        self._engine.open_savepoint = None
        self._user = None
        return result

    return _as_outermost(synchronized)


def _as_outermost(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Record on a synchronized method that no other decorator may wrap it."""
    vars(method)[OUTERMOST] = synchronized
    return method
