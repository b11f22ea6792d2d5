"""Silences the progress messages of one of Spark's Python processes.

Python imports this module when it starts.

At the first batch of a query with `transformWithState`, Spark starts a Python process beside the driver, which prints each of its
steps to standard output: "Starting Streaming TransformWithStateInPandas Python worker." and four more. Spark copies them to standard
error, past any log level. In that process, and in no other, lines of these messages are dropped; everything else is printed.

Another module of this name that Python would have imported, for instance one of the system, is imported as well.
"""

from __future__ import annotations

import builtins
import sys
from contextlib import suppress
from functools import wraps
from importlib import import_module
from pathlib import Path

_MODULE = "pyspark.sql.streaming.transform_with_state_driver_worker"
_MESSAGES = ("Starting Streaming TransformWithState", "Streaming TransformWithState")


def silence() -> None:
    """Make `print` drop the messages of Spark's process."""
    original = builtins.print

    @wraps(original)
    def filtered(*values: object, **options: object) -> None:
        if not (values and str(values[0]).startswith(_MESSAGES)):
            original(*values, **options)  # type: ignore[call-overload]

    builtins.print = filtered


def import_shadowed() -> None:
    """Import the `sitecustomize` that this one hides."""
    here, this = Path(__file__).parent, sys.modules.pop(__name__, None)
    sys.path[:] = [entry for entry in sys.path if Path(entry) != here]
    with suppress(ImportError):
        import_module("sitecustomize")
    if this is not None:
        sys.modules.setdefault(__name__, this)


if _MODULE in sys.orig_argv:
    silence()
if __name__ == "sitecustomize":
    import_shadowed()
