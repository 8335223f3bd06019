"""Serves the page of a review on this machine alone, to who has its address.

How this works: a thread for each connection, of the standard library's server; the review has a lock of its own. Every request
but the page itself needs the token as `Authorization: Bearer`, which no other site can send; the browser has it from the part
of the address behind `#`, which goes to no server. A name in `Host` that is not this machine's is refused, so that no site
reaches the page by a name that it lets point here. The page loads nothing from elsewhere; its policy, which the browser
enforces, allows its one script and its one style by their digests.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import socket
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.in_flight import read_regular
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.store import find_file
from headrace.runs.formats.review import AnswerBox, VerdictLine

_HOSTS = ("127.0.0.1", "localhost")
_LARGEST_BODY, _MOST_DISCARDED = 1 << 20, 16 << 20
_LARGEST_FILE = 1 << 28
_IDLE_SECONDS, _DISCARD_SECONDS = 60, 2
#: Items that the page has at hand.
_MOST_ITEMS = 30
_LONGEST_LABEL, _MOST_BOXES = 200, 500
#: Of a length; Python refuses to read numbers of thousands.
_MOST_DIGITS = 18
_TYPES = {
    ".jpg": "image/jpeg", ".png": "image/png", ".webp": "image/webp", ".gif": "image/gif", ".bmp": "image/bmp",
    ".txt": "text/plain; charset=utf-8",
}  # fmt: skip
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Review · headrace</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">"""


class _Said(msgspec.Struct, frozen=True):
    verdicts: list[VerdictLine]


class ReviewServer(ThreadingHTTPServer):
    """The server; `serve_forever` until `shutdown`.

    Args:
        review: That is shown.
        target: Items after which the review is done.
        port: To listen on; 0: any that is free.

    Attributes:
        address: Of the page, with the token.

    Raises:
        SettingsError: If the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, review: Review, target: int, port: int = 0) -> None:
        self.review, self.target = review, target
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:  # the second: there is no such port
            why = getattr(error, "strerror", None) or "expected 0 to 65535"
            raise SettingsError(f"port {port} cannot be used: {why}; name another with --port") from None
        self.address = f"http://127.0.0.1:{self.server_port}/#{self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    timeout = _IDLE_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "headrace", ""

    def do_GET(self) -> None:
        """Answer the page, its state and its files."""
        path = urlsplit(self.path).path
        if path == "/":
            if self._is_from_here():
                self._send(200, *_make_page())
        elif self._is_allowed():
            if path == "/state":
                self._send_json(_describe(self.server))
            elif path.startswith("/files/"):
                self._send_file(path)
            else:
                self._refuse(404, "there is nothing here")

    def do_POST(self) -> None:
        """Take verdicts, or take them back."""
        if not self._is_allowed() or (body := self._read_body()) is None:
            return
        try:
            undone = self._act(urlsplit(self.path).path, body)
        except (msgspec.DecodeError, SettingsError) as error:
            self._refuse(400, f"these are no verdicts: {error}")
        except HeadraceError as error:
            self._refuse(507, str(error))
        else:
            if undone is None:
                self._refuse(404, "there is nothing here")
            else:
                self._send_json({**_describe(self.server), "undone": undone})

    def _act(self, path: str, body: bytes) -> list[str] | None:
        if path == "/undo":
            return self.server.review.undo()
        if path != "/verdicts":
            return None
        said = decode_document(body, _Said).verdicts
        if any(
            len(name) > _LONGEST_LABEL for one in said for name in (one.label, *(box.name for box in one.boxes or ()))
        ):
            raise SettingsError(f"a class has at most {_LONGEST_LABEL} characters")
        if any(len(one.boxes or ()) > _MOST_BOXES or not all(map(_is_box, one.boxes or ())) for one in said):
            raise SettingsError(
                f"expected at most {_MOST_BOXES} boxes, each with a class, left before right, within the picture"
            )
        if said:
            self.server.review.record(said)
        return []

    def _is_from_here(self) -> bool:
        host = (self.headers.get("Host") or "").rpartition(":")[0] or (self.headers.get("Host") or "")
        if host in _HOSTS:
            return True
        self._refuse(403, "this page is for this machine alone: open it at the address that was printed")
        return False

    def _is_allowed(self) -> bool:
        if not self._is_from_here():
            return False
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), self.server.token.encode()):
            return True
        self._refuse(401, "the token is missing or wrong: open the address that was printed, with what is behind #")
        return False

    def _read_body(self) -> bytes | None:
        length = self.headers.get("Content-Length") or ""
        if not length.isdecimal() or len(length) > _MOST_DIGITS or int(length) > _LARGEST_BODY:
            self._refuse(413, f"a body of at most {_LARGEST_BODY} bytes with its length is expected")
            self._hang_up()
            return None
        return self.rfile.read(int(length))

    def _hang_up(self) -> None:
        """End the connection once what is still coming was read: where that is not done, the answer is lost."""
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client is slow, or gone
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_DISCARD_SECONDS)
            left = _MOST_DISCARDED
            while left > 0 and (part := self.rfile.read1(left)):
                left -= len(part)

    def _send_file(self, path: str) -> None:
        _, _, segment, name = (*path.split("/"), "", "")[:4]
        found = find_file(self.server.review.folder, unquote(segment), unquote(name))
        kind = None if found is None else _TYPES.get(found.suffix)
        content = None
        with contextlib.suppress(OSError):  # it may just have been removed
            content = None if found is None else read_regular(found, _LARGEST_FILE)
        if kind is None or content is None:
            self._refuse(404, "this file is not kept any more, or is none that a browser shows")
        else:
            self._send(200, content, {"Content-Type": kind})

    def _refuse(self, status: int, why: str) -> None:
        self._send_json({"error": why}, status)

    def _send_json(self, document: Any, status: int = 200) -> None:
        self._send(status, encode_document(document, or_text=True), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        common = {
            "Content-Length": str(len(content)), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
        }  # fmt: skip
        for name, value in {**common, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Say nothing: whoever reviews sees the page."""


def _is_box(box: AnswerBox) -> bool:
    return bool(box.name.strip()) and 0 <= box.x1 < box.x2 <= 1 and 0 <= box.y1 < box.y2 <= 1


def _describe(server: ReviewServer) -> dict[str, Any]:
    """Return what the page shows."""
    review = server.review
    items = []
    drawn = {one.item: one for one in review.round.draws}
    for name in review.list_open(_MOST_ITEMS):
        item = review.find_item(name)
        if item is None:
            continue
        segment = name.partition("/")[0]
        shown = msgspec.to_builtins(item)
        file = f"files/{segment}/{item.file}" if item.file else ""
        items.append({**shown, "item": name, "file": file, "probability": review.probability_of(drawn[name])})
    return {
        "folder": str(review.folder),
        "target": min(server.target, len(review.round.draws)),
        "reviewed": review.count_reviewed(),
        "names": review.list_names(),
        "items": items,
        "estimate": msgspec.to_builtins(review.estimate()),
    }


@cache
def _make_page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers."""
    body, script, own = (_read("headrace.monitor.review.page", name) for name in ("page.html", "page.js", "page.css"))
    style = _read("headrace.report", "report.css") + own
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = f"{_HEAD}<style>{style}</style></head>\n<body>{body}<script>{script}</script></body></html>\n"
    return text.encode(), {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}


def _read(package: str, name: str) -> str:
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
