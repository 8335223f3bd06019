"""What pages that a command serves on this machine have in common: the headers that keep others from looking, and silence."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any


class LocalPageHandler(BaseHTTPRequestHandler):
    """Sends answers that no other site may read, keep or frame; a subclass says which."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "headrace", ""

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Say nothing: whoever looks sees the page."""
