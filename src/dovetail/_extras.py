"""Optional packages: what `pip install dovetail` leaves out, by the extra that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.errors import MissingExtraError

EXTRAS = {
    "spark": ("pyspark", "pandas", "google"),
    "cli": ("typer", "rich"),
    "plots": ("matplotlib",),
    "connect": ("grpc", "grpc_status", "google", "zstandard"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
}
"""Top-level modules of each extra; `google` is that of Protocol Buffers."""


@contextmanager
def requires_extra(extra: str, feature: str) -> Iterator[None]:
    """Report an import of a missing package, in the `with` block, as one that an extra of Dovetail brings.

    Parameters
    ----------
    extra
        Name of the extra.
    feature
        What needs it, as the user knows it.

    Examples
    --------
    >>> with requires_extra("delta", "dt.sinks.delta()"):
    ...     raise ModuleNotFoundError("No module named 'deltalake'", name="deltalake")
    Traceback (most recent call last):
    ...
    dovetail.errors.MissingExtraError: dt.sinks.delta() needs the package 'deltalake', which is not installed
    Hint: pip install 'dovetail[delta]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS[extra]:
            raise
        message = f"{feature} needs the package {package!r}, which is not installed"
        raise MissingExtraError(message, f"pip install 'dovetail[{extra}]'") from error
