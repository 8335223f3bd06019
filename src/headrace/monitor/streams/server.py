"""Shows the streams of a run in a browser of this machine: one page, which asks for what is so every second.

Nobody else may look: the server listens on the loopback alone, and refuses a `Host` that is not this one, so that no site
elsewhere can read it through a visitor's browser. The page loads nothing, and runs its own script alone.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.monitor.local_page import LocalPageHandler
from headrace.monitor.streams.watching import StreamsWatch
from headrace.report.markup import Html, raw, tag

logger = logging.getLogger("headrace")

_IDLE_SECONDS = 60
_HOST = "127.0.0.1"


class StreamsServer(ThreadingHTTPServer):
    """The server; `serving` it lasts as long as the context.

    Args:
        watch: What is shown.
        port: 0: any that is free.

    Attributes:
        address: Of the page.

    Raises:
        SettingsError: If the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, watch: StreamsWatch, port: int) -> None:
        self.watch = watch
        try:
            super().__init__((_HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingsError(
                f"--live-page {port} cannot be used: {why}; name another port (0: any that is free)"
            ) from None
        self.address = f"http://{_HOST}:{self.server_port}/"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answer for as long as this lasts."""
        thread = threading.Thread(target=self.serve_forever, name="live-page", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(LocalPageHandler):
    server: StreamsServer
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:  # noqa: N802 - the standard library's name
        """Answer."""
        host = self.headers.get("Host") or ""
        if host.rpartition(":")[0] not in (_HOST, "localhost"):
            self._send(
                403, b"this page is for this machine alone: open it at the address that was printed", "text/plain"
            )
        elif self.path == "/":
            self._send(200, _page(self.server.watch.name), "text/html; charset=utf-8")
        elif self.path == "/state":
            self._send(200, encode_document(self.server.watch.state()), "application/json")
        else:
            self._send(404, b"there is nothing here", "text/plain")


def _page(name: str) -> bytes:
    script, style = _asset("streams.js"), _asset("streams.css")
    policy = (
        f"default-src 'none'; img-src data:; connect-src 'self'; script-src 'sha256-{_digest(script)}'; "
        f"style-src 'sha256-{_digest(style)}'; base-uri 'none'; form-action 'none'"
    )
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("link", rel="icon", href="data:,"),
            tag("title", f"{name} · streams · headrace"),
            tag("style", style),
        ),
        tag(
            "body",
            tag("header", tag("h1", name), tag("p", "", id="said", role="status")),
            tag("main", id="streams"),
            tag("script", script),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{page}".encode()


def _asset(name: str) -> Html:
    return raw((files("headrace.monitor.streams") / name).read_text(encoding="utf-8").strip())


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
