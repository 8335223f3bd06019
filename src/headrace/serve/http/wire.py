"""Answers as bytes."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus

from headrace.serve.http.request import Answer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus if status.value >= 200
}
#: Answers that have no body, whatever the request was.
BODILESS = {204, 304}
#: What would end a header's line or value.
_BREAK = re.compile(r"[\r\n\0]")


def head_bytes(answer: Answer, date: str, *, closes: bool) -> bytes:
    """Return status line and headers; `date` is a whole line.

    Raises:
        ValueError: If a header has a line break: it would begin another header, or another answer.
    """
    head = _STATUS_LINES.get(answer.status) or f"HTTP/1.1 {answer.status} \r\n"
    head += _line("Content-Type", answer.content_type)
    for name, value in answer.headers:
        head += _line(name, value)
    head += date
    if answer.status not in BODILESS:
        head += f"Content-Length: {len(answer.body)}\r\n"
    return (head + ("Connection: close\r\n\r\n" if closes else "\r\n")).encode("latin-1", "replace")


@lru_cache(maxsize=256)  # most answers have the same few
def _line(name: str, value: str) -> str:
    if _BREAK.search(value) or _BREAK.search(name):
        raise ValueError(f"header {name!r:.100} = {value!r:.100} has a line break or NUL; expected one line")
    return f"{name}: {value}\r\n"
