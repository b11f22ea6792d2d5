"""File systems of Arrow for local paths and object stores, with the options of deltalake."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from dovetail.errors import ConfigError

_S3_OPTIONS = {
    "access_key": ("access_key_id",),
    "secret_key": ("secret_access_key",),
    "session_token": ("session_token", "token"),
    "region": ("region", "default_region"),
    "endpoint_override": ("endpoint_url", "endpoint", "endpoint_url_s3"),
}
"""Arguments of Arrow's file system, with the options that set them, without `aws_`."""


def check_options(sink: str, options: Any) -> dict[str, str]:
    """Return the storage options of a sink as a dict; refuse anything but text."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or any(not isinstance(part, str) for item in options.items() for part in item):
        raise ConfigError(
            f"dt.sinks.{sink}(storage_options=...) is not a dict from text to text",
            "write, for example, {'AWS_REGION': 'eu-central-1', 'AWS_ALLOW_HTTP': 'true'}",
        )
    return dict(options)


def local_path(path: str) -> Path | None:
    """Return the absolute local path that a path or a `file:` URI names; None for any other URI."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).resolve()
    return None if "://" in path else Path(path).resolve()


def open_store(uri: str, options: Mapping[str, str]) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI, and the path there."""
    local = local_path(uri)
    if local is not None:
        return pafs.LocalFileSystem(), str(local)
    parts = urlsplit(uri)
    try:
        if parts.scheme in ("s3", "s3a"):
            return _s3(options), f"{parts.netloc}{parts.path}".rstrip("/")
        files, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"the location {uri} cannot be used: {str(error).partition(chr(10))[0]}",
            "use a local path or an s3:, gs: or abfs: URI",
        ) from error
    return files, path.rstrip("/")


def _s3(options: Mapping[str, str]) -> pafs.S3FileSystem:
    known = {name.lower().removeprefix("aws_"): value for name, value in (*_environment().items(), *options.items())}
    arguments: dict[str, Any] = {}
    for argument, names in _S3_OPTIONS.items():
        value = next((known[name] for name in names if known.get(name)), None)
        if value is not None:
            arguments[argument] = value
    if ("access_key" in arguments) != ("secret_key" in arguments):
        for argument in ("access_key", "secret_key", "session_token"):
            arguments.pop(argument, None)
    if known.get("virtual_hosted_style_request", "").lower() == "true":
        arguments["force_virtual_addressing"] = True
    if arguments.get("endpoint_override", "").startswith("http://"):
        arguments["scheme"] = "http"
    return pafs.S3FileSystem(**arguments)


def _environment() -> dict[str, str]:
    """Return the variables that deltalake reads too; Arrow reads files and roles itself."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
