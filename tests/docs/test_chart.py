"""The chart of the README shows what the newest run of `benchmarks/spark.py` measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "spark-throughput.svg"


def chart(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "chart.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def speeds(runs: list[dict[str, Any]], workload: str, runner: str) -> list[float]:
    return [
        run["tuples_per_second"] / 1000
        for run in runs
        if run["workload"] == workload and run["runner"] == runner and "failed" not in run
    ]


def test_the_chart_is_as_measured() -> None:
    done = chart("--check")
    assert (done.returncode, done.stdout) == (0, "docs/spark-throughput.svg: as measured\n"), done.stdout + done.stderr


def test_its_numbers_are_those_of_the_result() -> None:
    drawn = PICTURE.read_text(encoding="utf-8")
    (name,) = re.findall(r"benchmarks/results/(spark-[\dTZ]+\.json)", drawn)
    runs = json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))["runs"]
    shown = re.findall(r">(\d+)(?:, (\d+) times as many)?</text>", drawn)
    wanted = []
    for workload in ("3-way", "chain", "5-way"):
        ours = median(speeds(runs, workload, "dovetail"))
        chains = ("native", "native-newest", "native-plain", "native-plain-newest")
        theirs = max(median(found) for runner in chains if (found := speeds(runs, workload, runner)))
        wanted += [(f"{ours:.0f}", f"{ours / theirs:.0f}"), (f"{theirs:.0f}", "")]
    assert shown == wanted
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="18"', drawn)]
    scale = widths[0] / float(wanted[0][0])
    for width, (number, _) in zip(widths, wanted, strict=True):
        assert abs(width - scale * float(number)) < 1


def test_another_result_makes_another_chart(tmp_path: Path) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    runs = [
        {"runner": runner, "workload": workload, "tuples_per_second": speed}
        for workload in ("3-way", "chain", "5-way")
        for runner, speed in (("dovetail", 50_000), ("native", 25_000), ("transport", 90_000))
    ]
    content = {"cpu": "a machine", "runs": [*runs, {"runner": "native-plain", "workload": "5-way", "failed": "slow"}]}
    (results / "spark-20261101T000000Z.json").write_text(json.dumps(content))
    assert chart("--check", str(tmp_path)).returncode == 1
    assert chart(str(tmp_path)).returncode == 0
    drawn = (tmp_path / "docs" / "spark-throughput.svg").read_text()
    assert drawn.count(">50, 2.0 times as many<") == 3
    assert "a machine, 2026-11-01" in drawn
    assert chart("--check", str(tmp_path)).returncode == 0
