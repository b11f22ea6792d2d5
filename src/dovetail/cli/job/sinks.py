"""The sinks of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

import dovetail as dt
from dovetail.cli.arrow_tables import arrow_table
from dovetail.cli.job.toml_table import TABLE, TEXT, WHOLE, Kind, TomlTable

_SHOWN_ROWS = 20
_PATH: dict[str, Kind] = {"path": TEXT, "storage_options": TABLE}
_KEYS: dict[str, Mapping[str, Kind]] = {
    "parquet": _PATH,
    "delta": _PATH,
    "iceberg": {"table": TEXT, "catalog": TABLE},
    "table": {"name": TEXT, "format": TEXT},
    "format": {"name": TEXT, "options": TABLE},
    "console": {"rows": WHOLE},
}
"""Keys of each type of sink, besides `type`."""
_REQUIRED = {
    "parquet": ("path",),
    "delta": ("path",),
    "iceberg": ("table", "catalog"),
    "table": ("name",),
    "format": ("name",),
    "console": (),
}


def check_sink(table: TomlTable) -> None:
    """Refuse a sink of an unknown type, or with other keys than that type has."""
    kind = table.content.get("type")
    if kind is None:
        raise table.error(
            None, f"{table.name}the key 'type' is missing", "write sink = { type = 'parquet', path = 'out/funnel' }"
        )
    table.check_choice("type", list(_KEYS))
    table.check({"type": TEXT, **_KEYS[kind]}, _REQUIRED[kind])


def make_sink(query: str, table: TomlTable) -> Any:
    """Return the sink of a query."""
    given = {key: value for key, value in table.content.items() if key != "type"}
    if "path" in given:
        given["path"] = table.location("path")
    with table.located():
        match table.content["type"]:
            case "parquet":
                return dt.sinks.parquet(**given)
            case "delta":
                return dt.sinks.delta(given["path"], given.get("storage_options"))
            case "iceberg":
                return dt.sinks.iceberg(given["catalog"], given["table"])
            case "table":
                return dt.sinks.table(**given)
            case "format":
                options: dict[str, Any] = {key: str(value) for key, value in given.get("options", {}).items()}
                return dt.sinks.format(given["name"], **options)
            case _:
                return dt.sinks.call(_printer(query, given.get("rows", _SHOWN_ROWS)))


def _printer(query: str, rows: int) -> Any:
    """Return a function that prints the first rows of a batch."""

    def show(results: Any, batch: int) -> None:
        console, count = Console(highlight=False), results.count()
        console.print(f"{query}, batch {batch}: {count:,} results", style="bold", soft_wrap=True)
        console.print(arrow_table(results.limit(rows).toArrow()))

    return show
