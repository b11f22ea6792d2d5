"""The server of the live page, on the loopback interface only."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError, DovetailError
from dovetail.live.prometheus import prometheus_text

View = Mapping[str, Any]
_HOST = "127.0.0.1"
_MAX_PORT = 65_535


class LivePage:
    """A page that shows a job while it runs; `print` it for its address.

    The address holds a random token, without which the server answers nothing.
    """

    def __init__(self, read_view: Callable[[], View], port: int = 0) -> None:
        """Serve what `read_view` returns, on any free port unless one is given."""
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _MAX_PORT:
            raise ConfigError(
                f"monitor(port={port!r}): it must be a whole number from 0, for any free port, to {_MAX_PORT}"
            )
        self._token = secrets.token_urlsafe(16)
        handler = type("Handler", (_Handler,), {"read_view": staticmethod(read_view), "token": self._token})
        try:
            self._server = ThreadingHTTPServer((_HOST, port), handler)
        except OSError as error:
            raise ConfigError(
                f"monitor(port={port}): the port cannot be used: {error.strerror}", "omit it to take any free port"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page; that of its metrics for Prometheus ends with `metrics` in addition."""
        return f"http://{_HOST}:{self._server.server_port}/{self._token}/"

    def __repr__(self) -> str:
        return f"live page at {self.url}"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noopener">live page</a>'

    def wait(self) -> None:
        """Serve until the process is interrupted."""
        self._thread.join()

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    read_view: Callable[[], View]
    token: str
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # A page elsewhere could reach this server under a name of its own that resolves to this machine.
        host = (self.headers.get("Host") or "").partition(":")[0]
        token, _, name = self.path.partition("?")[0].lstrip("/").partition("/")
        if host not in (_HOST, "localhost") or not secrets.compare_digest(token.encode(), self.token.encode()):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "not found; the address of the live page holds a token\n")
        elif not name:
            self._send(HTTPStatus.OK, "text/html", _page())
        elif name in ("data", "metrics"):
            self._send_view(name)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there are data and metrics\n")

    def _send_view(self, name: str) -> None:
        try:
            view = self.read_view()
        except DovetailError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
            return
        if name == "data":
            self._send(HTTPStatus.OK, "application/json", json.dumps(view))
        else:
            self._send(HTTPStatus.OK, "text/plain; version=0.0.4", prometheus_text(view["metrics"]))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Keep requests out of the terminal."""


@cache
def _page() -> str:
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
