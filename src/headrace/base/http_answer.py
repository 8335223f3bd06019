"""What of an answer counts: whether its head came whole, what its headers say to us, and the first bytes of its body."""

from __future__ import annotations

import io
import re
import time
from email.utils import parsedate_to_datetime
from typing import NamedTuple

#: Most that is read of the body of an answer to a POST.
ANSWER_BYTES = 64 * 1024
#: Longest time that the body of an answer to a POST is waited for once all headers are there: they are the answer.
ANSWER_SECONDS = 1.0
#: Longest `Retry-After` that is believed; a server that asks for more is asked again after this. Less than the time after
#: which a result is given up, or one answer would decide that there is no further try.
LONGEST_RETRY_AFTER_SECONDS = 3_600.0

_SWITCHING = re.compile(rb"^HTTP/\S+ 101\b", re.MULTILINE)
#: A head to its end, the empty line; a status below 200 only announces another.
_WHOLE_HEAD = re.compile(rb"^HTTP/\S+ [2-9](?:(?!^HTTP/).)*?^\r?\n", re.MULTILINE | re.DOTALL)


class Response(NamedTuple):
    """What the server answered."""

    status: int
    body: bytes
    retry_after_seconds: float | None = None
    """How long the server asks to be left alone (`Retry-After`); None where it says nothing. Of POST only."""


class FirstBytes:
    """Takes the body of an answer as libcurl hands it over, and ends the transfer when there is enough.

    Args:
        head: Where the headers are written.
    """

    def __init__(self, head: io.BytesIO) -> None:
        self.data = bytearray()
        self._head = head
        self._whole_since: float | None = None

    def write(self, part: bytes) -> int:
        """Take a part; to take fewer bytes than given ends the transfer."""
        room = ANSWER_BYTES - len(self.data)
        self.data += part[:room]
        return min(len(part), room)

    def forget(self) -> None:
        """Begin anew."""
        self.data.clear()
        self._whole_since = None

    def is_enough(self, *_: int) -> bool:
        """Return whether to end the transfer: all headers came, and the body does not end, or is to be another protocol.

        To be asked once a second at least.
        """
        if self._whole_since is None:
            if not self._head.tell():
                return False  # nearly always: nothing came yet
            head = self._head.getvalue()
            if not head.endswith(b"\r\n\r\n"):
                return False
            if is_switching(head):
                return True
            if is_whole(head):
                self._whole_since = time.monotonic()
            return False
        return time.monotonic() - self._whole_since >= ANSWER_SECONDS


def is_permanent(status: int) -> bool:
    """Return whether a status other than 2xx means that another try cannot help.

    408 (timeout), 425 (too early), 429 (too many) and all 5xx are worth another try; see RFC 9110 and RFC 6585.
    """
    return (status < 200 or 300 <= status < 500) and status not in (408, 425, 429)


def is_switching(head: bytes) -> bool:
    """Return whether a server goes on in another protocol (101), which nobody asked for: no status will follow."""
    return _SWITCHING.search(head) is not None


def is_whole(head: bytes) -> bool:
    """Return whether all headers of the final status came; the connection may end before, and libcurl takes that for a head."""
    if head.endswith(b"\r\n\r\n") and b" 1" not in head[:11]:
        return True  # nearly all, at a fraction of the cost
    return _WHOLE_HEAD.search(head) is not None


def retry_after_seconds(head: bytes) -> float | None:
    """Return how long a server asks to be left alone; None where it says nothing that can be understood.

    A date is measured by the server's own clock (`Date`) where it tells it, so that the two clocks need not agree.

    References:
        RFC 9110, 10.2.3: a number of seconds, or a date.
    """
    text = _header(head, b"retry-after")
    if text.isascii() and text.isdecimal():
        seconds = float(text[:12])
    else:
        until, now = _unix_seconds(text), _unix_seconds(_header(head, b"date"))
        if until is None:
            return None
        seconds = until - (time.time() if now is None else now)
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)


def _header(head: bytes, name: bytes) -> str:
    found = re.findall(rb"^" + name + rb":[ \t]*([^\r\n]*)", head, re.MULTILINE | re.IGNORECASE)
    return found[-1].decode("latin-1").strip() if found else ""


def _unix_seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
