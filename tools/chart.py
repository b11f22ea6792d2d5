"""Draw the chart of the README from what benchmarks measured: `python tools/chart.py [--check] [root]`.

Bars are the median throughput of Dovetail and the best median of Spark's own joins in any of their settings, for each workload of the
newest run of `benchmarks/spark.py` that has both. `--check` writes nothing and fails if the picture is not what its file says.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from tables import TABLES, grouped, newest, ratio

PICTURE = Path("docs") / "spark-throughput.svg"
WORKLOADS = {"3-way": "3 streams, one key", "chain": "3 streams, two keys", "5-way": "5 streams, one key"}
_WIDTH, _LEFT, _LONGEST, _ROW = 760, 170, 400, 62
_OURS, _THEIRS, _INK, _PALE = "#2f6fb3", "#d98032", "#24292f", "#57606a"


@dataclass(frozen=True)
class Bars:
    """Thousand rows per second of one workload."""

    label: str
    ours: float
    theirs: float


def bars(runs: list[dict[str, Any]]) -> Iterator[Bars]:
    """Yield the bars of each workload."""
    by_workload = grouped(runs, "workload")
    for workload, label in WORKLOADS.items():
        speeds = {
            runner: median(run["tuples_per_second"] for run in own if "failed" not in run) / 1000
            for runner, own in grouped(by_workload[workload], "runner").items()
            if any("failed" not in run for run in own)
        }
        yield Bars(label, speeds["dovetail"], max(speed for name, speed in speeds.items() if name.startswith("native")))


def svg(rows: list[Bars], notes: list[str]) -> str:
    """Return the picture."""
    scale = _LONGEST / max(max(row.ours, row.theirs) for row in rows)
    height = 84 + _ROW * len(rows) + 48
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(20, 32, "Thousand rows joined per second on Spark, two cores", 17, weight="bold"),
        f'<rect x="20" y="48" width="12" height="12" fill="{_OURS}"/>',
        _text(38, 59, "Dovetail, one join of all streams", 13),
        f'<rect x="260" y="48" width="12" height="12" fill="{_THEIRS}"/>',
        _text(278, 59, "Spark's own chain of stream-stream joins, best of four settings", 13),
    ]
    for number, row in enumerate(rows):
        top = 84 + _ROW * number
        lines += [
            _text(_LEFT - 12, top + 27, row.label, 14, anchor="end"),
            _bar(top, scale * row.ours, _OURS, f"{row.ours:.0f}, {ratio(row.ours / row.theirs)} times as many"),
            _bar(top + 22, scale * row.theirs, _THEIRS, f"{row.theirs:.0f}"),
        ]
    lines += [_text(20, height - 34 + 18 * number, line, 12, color=_PALE) for number, line in enumerate(notes)]
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _bar(top: float, width: float, color: str, label: str) -> str:
    bar = f'<rect x="{_LEFT}" y="{top}" width="{max(width, 2):.1f}" height="18" fill="{color}"/>'
    return f"{bar}\n{_text(_LEFT + width + 8, top + 14, label, 13)}"


def _text(
    x: float, y: float, text: str, size: int, *, anchor: str = "start", weight: str = "normal", color: str = _INK
) -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{color}"'
    return f'<text x="{x:.1f}" y="{y}" {style}>{escape(text)}</text>'


def picture(root: Path) -> str:
    """Return the picture that the newest run gives."""
    path, runs = newest(root / "benchmarks" / "results", TABLES["spark"])
    machine = json.loads(path.read_text(encoding="utf-8"))["cpu"]
    date = "-".join(re.findall(r"-(\d{4})(\d\d)(\d\d)T", path.name)[0])
    notes = [
        "10-second windows, 200,000 rows of each stream per micro-batch, Parquet to Parquet, without the first batch.",
        f"{machine}, {date}, benchmarks/results/{path.name}",
    ]
    return svg(list(bars(runs)), notes)


def main() -> int:
    """Write the picture, or say that it is not as it should be; return the exit status."""
    check = "--check" in sys.argv
    given = [option for option in sys.argv[1:] if option != "--check"]
    root = Path(given[0]) if given else Path(__file__).resolve().parents[1]
    path, new = root / PICTURE, picture(root)
    same = path.exists() and path.read_text(encoding="utf-8") == new
    if not same and not check:
        path.write_text(new, encoding="utf-8")
    print(f"{PICTURE}: {'as measured' if same else 'not as measured' if check else 'written'}")
    return 1 if check and not same else 0


if __name__ == "__main__":
    sys.exit(main())
