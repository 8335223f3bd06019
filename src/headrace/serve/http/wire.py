"""Answers as bytes."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus

from headrace.serve.http.request import Answer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus if status.value >= 200
}
_BODILESS = {204, 304}


def head_bytes(answer: Answer, *, closes: bool) -> bytes:
    """Return status line and headers.

    Raises:
        ValueError: If a header has a line break: it would begin another header, or another answer.
    """
    lines = [_STATUS_LINES.get(answer.status) or f"HTTP/1.1 {answer.status} \r\n"]
    for name, value in (("Content-Type", answer.content_type), *answer.headers):
        if "\r" in value or "\n" in value or "\0" in value:
            raise ValueError(f"header {name} = {value!r:.100} has a line break or NUL; expected one line")
        lines.append(f"{name}: {value}\r\n")
    if answer.status not in _BODILESS:
        lines.append(f"Content-Length: {len(answer.body)}\r\n")
    lines.append("Connection: close\r\n\r\n" if closes else f"Date: {_date()}\r\n\r\n")
    return "".join(lines).encode("latin-1", "replace")


def has_body(answer: Answer, method: str) -> bool:
    """Return whether the body of an answer is sent."""
    return method != "HEAD" and answer.status not in _BODILESS and len(answer.body) > 0


def _date() -> str:
    return formatdate(time.time(), usegmt=True)
