"""The server of the live page: its token, what it serves, and the page itself in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import ConfigError, StateError
from dovetail.live.server import LivePage

SCHEMA = pa.schema({"ts": pa.timestamp("s", tz="UTC"), "k": pa.int64()})
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def view() -> dict[str, Any]:
    """A view with the numbers of a real session."""
    session = dt.LocalSession()
    for name in ("views", "clicks"):
        session.stream(name, SCHEMA, event_time="ts")
    session.query("seen", "SELECT v.k AS k FROM views v [RANGE 1 HOUR], clicks c [RANGE 1 HOUR] WHERE v.k = c.k")
    table = pa.table([range(1234), [row % 7 for row in range(1234)]], schema=SCHEMA)
    session.push({"views": table, "clicks": table.slice(0, 500)})
    return {
        "name": "seen over views, clicks",
        "state": "runs",
        "time": "2026-01-01T00:00:00",
        "metrics": session.metrics(),
        "plan": session.explain().to_dict(),
        "batches": [{"batch": batch, "rows": 1000, "seconds": 0.5} for batch in range(3)],
        "changes": [{"batch": 0, "what": "started with <seen>"}],
    }


@pytest.fixture
def page(view: dict[str, Any]) -> Iterator[LivePage]:
    page = LivePage(lambda: view)
    yield page
    page.stop()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_page_its_data_and_its_metrics(page: LivePage, view: dict[str, Any]) -> None:
    assert get(page.url) == (200, (Path(dt.__file__).parent / "live/page.html").read_text(encoding="utf-8"))
    assert json.loads(get(f"{page.url}data")[1]) == json.loads(json.dumps(view))
    lines = get(f"{page.url}metrics")[1].splitlines()
    assert 'dovetail_arrivals_total{stream="views"} 1234' in lines
    assert f'dovetail_results_total{{query="seen"}} {view["metrics"]["queries"]["seen"]["results"]}' in lines
    assert 'dovetail_watermark_seconds{stream="clicks"} 499.0' in lines
    assert repr(page) == f"live page at {page.url}"


def test_nothing_is_served_without_the_token_or_under_another_name(page: LivePage) -> None:
    root = page.url.rpartition("/")[0].rpartition("/")[0]
    for url in (f"{root}/", f"{root}/data", f"{root}/wrong/data", f"{page.url}other"):
        assert get(url)[0] == 404
    assert get(f"{page.url}data", Host="example.com")[0] == 404
    assert get(f"{page.url}data", Host="localhost:1")[0] == 200


def test_an_error_of_the_view_is_text() -> None:
    def fail() -> dict[str, Any]:
        raise StateError("no batch yet", "wait")

    page = LivePage(fail)
    assert get(f"{page.url}data") == (503, "no batch yet\nHint: wait\n")
    page.stop()


def test_ports(page: LivePage) -> None:
    port = int(page.url.split(":")[2].split("/")[0])
    with pytest.raises(ConfigError, match=rf"monitor\(port={port}\): the port cannot be used.*\nHint: omit it"):
        LivePage(dict, port)
    with pytest.raises(ConfigError, match=r"monitor\(port='80'\): it must be a whole number"):
        LivePage(dict, "80")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_shows_the_numbers_of_metrics(page: LivePage, view: dict[str, Any], tmp_path: Path) -> None:
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000", "--dump-dom", page.url,
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    results = view["metrics"]["queries"]["seen"]["results"]
    for text in ("<td>1,234</td>", "<td>500</td>", f"{results:,} results", "started with &lt;seen&gt;", "probe c"):
        assert text in shown, text
    assert "is not defined" not in shown
