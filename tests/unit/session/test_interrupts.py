"""A call that is interrupted or runs out of memory changes nothing, or the session refuses all further calls.

Python delivers an interrupt where a function begins and where a call returns. A profiler hook runs at exactly these points and can
raise at each of them: no timer is needed, and every case is reproducible.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from session_and_oracle import MODES, Pair

import dovetail as dt
from dovetail.engine.kernels.compile import INTERPRETED
from dovetail.errors import StateError
from dovetail.testing import random_scenario

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema({"ts": TS, "k": pa.int64(), "p": pa.string()})
SQL = "SELECT a.k, a.p, b.p AS q FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
REFUSED = "an earlier call was interrupted"
# Python swallows exceptions raised while a generator is closed, and the call continues.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class _Stop:
    """Profiler hook that raises at the nth point of a call where Python could deliver an interrupt."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.places = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG002
        outermost = event == "return" and frame.f_code.co_name == "synchronized"
        if event == "c_call" or outermost or frame.f_code.co_filename == __file__:
            return  # no interrupt is delivered before a call; after the outermost one it belongs to the caller
        self.places += 1
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt


def _interrupted(call: Callable[[], Any], number: int) -> tuple[Any, int]:
    """Return the result of a call, or None if it was interrupted, and the number of points passed."""
    stop = _Stop(number)
    gc.disable()  # exceptions raised during garbage collection are not propagated
    sys.setprofile(stop)
    try:
        return call(), stop.places
    except KeyboardInterrupt:
        return None, stop.places
    finally:
        sys.setprofile(None)
        gc.enable()


def _pair(rng: random.Random) -> tuple[Pair, list[Mapping[str, pa.Table]]]:
    scenario = random_scenario(
        rng, aliases=rng.choice((2, 2, 3)), queries=2, pushes=6, tuples=60, count_windows=rng.random() < 0.3
    )
    evaluation, expiration = rng.choice(MODES)
    config = dt.Config(evaluation=evaluation, expiration=expiration, stage_rows=rng.choice((7, 1 << 17)))
    pair = Pair(scenario.streams, config)
    for name, sql in scenario.sql.items():
        pair.add(name, sql, rng, config)
    return pair, list(scenario.pushes)


def _refused(pair: Pair) -> bool:
    """Whether the session refuses further calls; then all of them must be refused."""
    try:
        pair.session.metrics()
    except StateError as error:
        assert REFUSED in str(error)  # noqa: PT017
        for call in (pair.session.snapshot, pair.session.explain, lambda: pair.session.push({})):
            with pytest.raises(StateError, match=REFUSED):
                call()
        return True
    return False


@pytest.mark.parametrize("seed", range(200))
def test_an_interrupt_anywhere_changes_nothing_or_is_reported(seed: int) -> None:
    rng = random.Random(seed)
    pair, batches = _pair(rng)
    if seed % 2:
        sample = pair.session.push(batches[0])  # not the first batch, which also plans queries
        pair._collect(sample)
        pair.oracle.push(batches.pop(0))
    batch = batches.pop(0)
    # Early points belong to planning and intake, the last ones to expiry: sample all of them.
    results, places = _interrupted(lambda: pair.session.push(batch), rng.randrange(1, rng.choice((400, 4000))))
    if results is None and _refused(pair):
        return
    if results is None and places % 3 == 0:
        results, _ = _interrupted(lambda: pair.session.push(batch), rng.randrange(1, 1500))  # also during the rollback
        if results is None and _refused(pair):
            return
    pair._collect(results if results is not None else pair.session.push(batch))
    pair.oracle.push(batch)
    for later in batches:
        pair.push(later)
    pair.check_all()


@pytest.mark.skipif(INTERPRETED, reason="kernels as plain Python have other places")
def test_a_push_can_be_interrupted_at_every_point() -> None:
    """Most points change nothing, those of expiry make the session refuse, and none gives wrong results."""
    first = {"a": _table((1, 1, "x"), (2, 2, "y")), "b": _table((1, 1, "u"))}
    second = {"a": _table((3, 1, "z")), "b": _table((4, 1, "v"), (4, 2, "w"))}
    outcomes = {"whole": 0, "refused": 0}
    number = 1
    while True:
        session = _session()
        session.push(first)
        results, places = _interrupted(lambda session=session: session.push(second), number)  # type: ignore[misc]
        number += 1
        if places < number - 1:
            break
        if results is not None:
            continue
        try:
            again = session.push(second)["q"]
            assert sorted(again["q"].to_pylist()) == ["u", "v", "v", "w"]
            outcomes["whole"] += 1
        except StateError:
            outcomes["refused"] += 1
    assert outcomes["whole"] > 5 * outcomes["refused"] > 0


def test_the_first_push_can_be_interrupted_while_planning() -> None:
    """The first push also plans the queries and creates their windows."""
    batch, whole = {"a": _table((3, 1, "z")), "b": _table((4, 1, "v"), (4, 2, "w"))}, 0
    for number in count(1, 7):
        session = _session()
        results, places = _interrupted(lambda session=session: session.push(batch), number)  # type: ignore[misc]
        if places < number:
            break
        if results is not None:
            continue
        try:
            assert session.push(batch)["q"]["q"].to_pylist() == ["v"]
            whole += 1
        except StateError as error:
            assert REFUSED in str(error)  # noqa: PT017
    assert whole > 50


def _session() -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, SCHEMA, event_time="ts")
    session.query("q", SQL)
    return session


def _table(*rows: tuple[float, int, str]) -> pa.Table:
    return pa.table([[int(ts * 1e6) for ts, _, _ in rows], *([row[i] for row in rows] for i in (1, 2))], schema=SCHEMA)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_real_signals_in_large_pushes() -> None:
    rng = random.Random(5)
    outcomes = {"whole": 0, "refused": 0, "done": 0}
    rows = 3000
    first = {name: _many(rng, rows, 0) for name in "ab"}
    second = {name: _many(rng, rows, 5) for name in "ab"}
    session = _session()
    session.push(first)
    began = time.perf_counter()
    expected = session.push(second)["q"].num_rows
    taken = time.perf_counter() - began
    for _ in range(40):
        session = _session()
        session.push(first)
        try:
            with _alarm(rng.uniform(0.0001, 1.2 * taken)):
                found = session.push(second)
            assert found["q"].num_rows == expected
            outcomes["done"] += 1
        except KeyboardInterrupt:
            if session._engine.batches == 2 and session._engine.open_savepoint is None:
                continue  # push had returned: the interrupt hit the caller's own code
            try:
                assert session.push(second)["q"].num_rows == expected
                outcomes["whole"] += 1
            except StateError:
                outcomes["refused"] += 1
    assert outcomes["whole"]


def _many(rng: random.Random, rows: int, begin: int) -> pa.Table:
    return _table(*((begin + rng.random(), rng.randrange(20), "x" * rng.randrange(30)) for _ in range(rows)))


MEMORY = """
import random, resource, sys
sys.path.insert(0, sys.argv[2])
from test_interrupts import _many, _session
from dovetail.errors import StateError

def limit(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

rng = random.Random(int(sys.argv[1]))
first = {name: _many(rng, 2000, 0) for name in "ab"}
second = {name: _many(rng, 6000, 5) for name in "ab"}
third = {name: _many(rng, 500, 9) for name in "ab"}
sample = _session()
expected = [sample.push(batch)["q"].num_rows for batch in (first, second, third)]
del sample
outcomes = {"whole": 0, "refused": 0, "done": 0}
for _ in range(int(sys.argv[3])):
    session = _session()
    assert session.push(first)["q"].num_rows == expected[0]
    limit(int(2 ** rng.uniform(16, 28)))
    try:
        assert session.push(second)["q"].num_rows == expected[1]
        outcomes["done"] += 1
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            assert session.push(second)["q"].num_rows == expected[1]
            assert session.push(third)["q"].num_rows == expected[2]
            outcomes["whole"] += 1
        except StateError:
            outcomes["refused"] += 1
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(outcomes["whole"], outcomes["refused"], outcomes["done"])
"""


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="too slow as plain Python")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_running_out_of_memory_changes_nothing_or_is_reported() -> None:
    """Try fifty memory limits, each reached elsewhere in a push, in a subprocess."""
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parents[1] / "helpers")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, "3", paths[0], "50"],
        capture_output=True, text=True, check=False, env=environment, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    whole, refused, done = map(int, ran.stdout.split())
    assert whole + refused + done == 50
    assert whole > 5


# -- threads ----------------------------------------------------------------------------------------------------------------------


def test_threads_take_turns() -> None:
    rng = random.Random(1)
    batches = [{name: _many(rng, 200, 0) for name in "ab"} for _ in range(30)]
    session, expected = _session_late(), 0
    for batch in batches:
        expected += session.push(batch)["q"].num_rows
    session, found = _session_late(), []

    def push(part: list[dict[str, pa.Table]]) -> None:
        for batch in part:
            found.append(session.push(batch)["q"].num_rows)
            session.metrics()

    threads = [threading.Thread(target=push, args=(batches[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), sum(found)) == (30, expected)


def _session_late() -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, SCHEMA, event_time="ts", lateness="1 hour")
    session.query("q", SQL)
    return session


def test_a_call_inside_a_call_is_refused() -> None:
    session = _session()
    session.push({"a": _table((5, 1, "x"))})
    refused = []

    def ask(*_: object, **__: object) -> None:
        try:
            session.metrics()
        except StateError as error:
            refused.append(str(error))

    notice = session._engine.on_arrivals
    session._engine.on_arrivals = ask
    session.push({"b": _table((5, 1, "x"))})
    session._engine.on_arrivals = notice
    assert "while the same thread was inside another call" in refused[0]
    assert session.push({"b": _table((5, 1, "y"))})["q"].num_rows == 1


@pytest.mark.parametrize("sql", [SQL, SQL.replace("a.k = b.k", "a.p = b.p AND a.k < b.k + 2")])
def test_an_interrupted_add_query_leaves_the_others_running(sql: str) -> None:
    """The second query makes the windows keep more than before."""
    batch = {"a": _table((3, 1, "v")), "b": _table((4, 1, "v"))}
    for number in range(1, 5000, 11):
        session = _session()
        session.push({"a": _table((1, 1, "x"))})
        added, _ = _interrupted(lambda session=session: session.query("late", sql) or True, number)  # type: ignore[misc]
        results = session.push(batch)
        assert results["q"].num_rows == 2
        if added:
            assert results["late"].num_rows == 1
            return
        assert "late" not in results
        session.query("late", sql)
        assert session.push({"b": _table((4, 1, "v"))})["late"].num_rows == 0


def test_an_interrupted_stream_declaration_leaves_no_trace() -> None:
    for number in range(1, 500):
        session = _session()
        session.push({"a": _table((1, 1, "x"))})
        done, _ = _interrupted(lambda session=session: session.stream("c", SCHEMA, "ts") or True, number)  # type: ignore[misc]
        if not done:
            session.stream("c", SCHEMA, "ts")
        session.query("late", SQL.replace("b ", "c ").replace("b.", "c."))
        results = session.push({"a": _table((2, 1, "x")), "b": _table((2, 1, "y")), "c": _table((2, 1, "z"))})
        assert (results["q"].num_rows, results["late"].num_rows) == (2, 1)
        if done:
            return


def test_an_interrupted_drop_query_is_reported() -> None:
    outcomes = {"dropped": 0, "refused": 0, "there": 0}
    for number in range(1, 1000):
        session = _session()
        session.push({"a": _table((1, 1, "x"))})
        done, _ = _interrupted(lambda session=session: session.drop_query("q") or True, number)  # type: ignore[misc]
        try:
            results = session.push({"b": _table((2, 1, "y"))})
        except StateError:
            outcomes["refused"] += 1
            continue
        outcomes["there" if results else "dropped"] += 1
        assert (results["q"].num_rows == 1 and not done) if results else "q" not in session.metrics()["queries"]
        if done:
            break
    assert done
    assert outcomes["dropped"] >= 1
