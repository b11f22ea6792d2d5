"""Constants that the documentation quotes are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.config import ORDERINGS
from dovetail.engine.join import watch
from dovetail.engine.storage import arena
from dovetail.engine.storage import window as window_store
from dovetail.engine.time.progress import LATEST
from dovetail.optimizer.adapt import reorder as replan
from dovetail.optimizer.ordering.dmjoin import MAX_INPUTS as MOST_INPUTS
from dovetail.optimizer.ordering.golab import MAX_COMBINED_ORDERS
from dovetail.optimizer.ordering.weave import EXACT
from dovetail.optimizer.sharing.search.exact import MAX_CANDIDATES as MOST_STORED
from dovetail.plan import query_plan
from dovetail.query.functions import MAX_DEPTH
from dovetail.schema import LARGEST_DECIMAL
from dovetail.spark import compat, wire
from dovetail.spark.driver import builder
from dovetail.spark.driver.environment import MIN_JAVA
from dovetail.spark.state import log
from dovetail.spark.state import shared_memory as live
from dovetail.spark.worker import processor
from dovetail.spark.worker import router as cut

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page: " ".join(page.read_text(encoding="utf-8").split()) for page in PAGES}
WORDS = {5: "five", 7: "seven", 8: "eight", 10: "ten", 16: "sixteen", 1000: "thousand"}
YEAR_MICROS = 365.2425 * 86_400e6


def mb(size: int) -> str:
    return str(size >> 20)


def percent(share: float) -> str:
    return f"{100 * share:g}"


# What stands in the brackets of a pattern, wherever it is found, must be what follows it.
QUOTED: list[tuple[str, tuple[str, ...]]] = [
    # The pipeline on Spark.
    (r"in slices of ([\d,]+) tuples", (f"{processor.SLICE_ROWS:,}",)),
    (r"slices come from one event time in (\w+)", (WORDS[processor.SAMPLE_STEP],)),
    (r"collects up to (\d+) MB of tuples", (mb(cut._LARGEST_PIECE),)),
    (r"makes anew [^|]*\|[^|]*\| pieces of (\d+) MB", (mb(cut._LARGEST_PIECE),)),
    (r"after (\d+) MB for a shard a cut task", (mb(cut._PADDING_THRESHOLD_BYTES),)),
    (r"as many empty rows as ([\d,]+) are to (\d+) MB", (f"{wire.FRAME_ROWS:,}", mb(wire.FRAME_BYTES))),
    (r"`maxRecordsPerBatch` is at most ([\d,]*\d)", (f"{wire.FRAME_ROWS:,}",)),
    (r"large ones in pieces of (\d+) MB", (mb(wire.MAX_RESULT_BYTES),)),
    (r"Above (\w+) segments of a stream under (\d+) MB", (WORDS[log.MAX_SMALL_SEGMENTS], mb(log.SMALL_SEGMENT_BYTES))),
    (r"more than (\w+) small segments", (WORDS[log.MAX_SMALL_SEGMENTS],)),
    (r"once it is (\w+) minutes old", (WORDS[live._ABANDONED_SECONDS // 60],)),
    (r"nothing has moved for (a day)", ({86_400: "a day"}[live._FORGOTTEN_SECONDS],)),
    (r"Where `/dev/shm` is smaller than (\d+) GB", (str(live._MIN_SHARED_MEMORY >> 30),)),
    (r"(\d+) MB for new objects", (str(builder._YOUNG >> 10),)),
    (r"A young generation of (\d+) MB, whatever", (str(builder._YOUNG >> 10),)),
    (r"`local\[\*,(\d+)\]`", (str(builder._FAILURES),)),
    (r"It needs PySpark (\d+\.\d+) or later", (compat.version_text(compat.OLDEST),)),
    (r"(?:a stream|a source that) needs PySpark (\d+\.\d+)", (compat.version_text(compat.GENERATED_SOURCE),)),
    (r"Java (\d+) or later", (str(MIN_JAVA),)),
    # Live arrays.
    (r"up to (\d+) MB of living arrays", (mb(arena.WHOLE),)),
    (
        r"Above (\d+) MB\*, (\d+) pages of (\d+) KB",
        (mb(arena.WHOLE), str(arena.SAMPLES), str(arena._PAGE >> 10)),
    ),
    (r"probability of (\d+) KB over the size", (str(arena.SAMPLES * arena._PAGE >> 10),)),
    # Orders that adapt.
    (r"After a (\w+) new tuples; above (\w+) streams", (WORDS[watch.CHECK_AFTER], WORDS[watch.WIDE_JOIN])),
    (r"Every (\w+) new tuples or so", (WORDS[watch.CHECK_AFTER],)),
    (r"memory of a (\w+) probes", (WORDS[watch.ORDER_MEMORY_PROBES],)),
    (r"range of a factor of (\d[\d.]*\d)", (str(watch.ORDER_DRIFT_FACTOR),)),
    (r"size of a window has moved by (\w+)", ({1.5: "half"}[watch.ORDER_DRIFT_FACTOR],)),
    (r"credit: (\d+) % of the tuples", (percent(watch.CREDIT_FRACTION),)),
    (r"as often as (\d+) % allow", (percent(watch.CREDIT_FRACTION),)),
    (r"(\d[\d.]*) times cheaper", (str(replan.MIN_COST_RATIO),)),
    (r"by the same (\d[\d.]*) times", (str(replan.MIN_COST_RATIO),)),
    (r"saves at least (\d+) % of the query", (percent(replan.MIN_SAVED_FRACTION),)),
    # Methods and strategies.
    (r"exact up to (\d+) inputs", (str(EXACT),)),
    (r"one table for all inputs; at most (\d+) inputs", (str(MOST_INPUTS),)),
    (r"fast streams, at most (\d+) at once", (str(MAX_COMBINED_ORDERS),)),
    (r"branch and bound; at most (\d+) sub-joins", (str(MOST_STORED),)),
    (r"by (\w+) methods", (WORDS[len(ORDERINGS)],)),
    (r"\| `([\w-]+)` \(default\) \| the cheapest", (dt.Config().ordering,)),
    (r"`Config\(strategy=\.\.\.\)` is `(\w+)` by default", (dt.Config().strategy,)),
    (r"on by default \(`Config\(adaptive=(\w+)\)`", (str(dt.Config().adaptive),)),
    (r"(\d+) distinct values are assumed", (f"{1 / query_plan.DEFAULT_EQUALITY:g}",)),
    (r"(\w+ in ten) pairs for a comparison", ({0.3: "three in ten"}[query_plan.DEFAULT_CONDITION],)),
    # What a query may be, and what is kept.
    (r"(?:fit|than|up to) (\d+) digits", (str(LARGEST_DECIMAL),)),
    (r"At most (\d+) other operations may be inside", (str(MAX_DEPTH),)),
    (r"([\d,]+) years", (f"{LATEST / YEAR_MICROS // 10_000 * 10_000:,.0f}",)),
    (r"with (\d[\d.]*) times as much room as rows", (str(window_store.GROWTH),)),
]


@pytest.mark.parametrize(("pattern", "value"), QUOTED, ids=[pattern for pattern, _ in QUOTED])
def test_a_quoted_constant_is_that_of_the_code(pattern: str, value: tuple[str, ...]) -> None:
    found = [
        (page.relative_to(ROOT).as_posix(), tuple(group for group in match.groups() if group is not None))
        for page, text in TEXTS.items()
        for match in re.finditer(pattern, text)
    ]
    assert found, "no page has this sentence any more: remove it here, or mend the pattern"
    assert [(page, quoted) for page, quoted in found if quoted != value] == []


def test_options_of_the_session_are_those_that_it_sets() -> None:
    chosen = builder.settings()
    quoted = dict(re.findall(r"\| `(spark\.[\w.]+)` \| `([^`]+)` \|", TEXTS[ROOT / "docs" / "spark.md"]))
    assert len(quoted) == 7
    assert {name: chosen.get(name) for name in quoted} == quoted
