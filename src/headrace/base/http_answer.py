"""What of an answer counts: status, the headers that say something to us, and the first bytes of the body."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

#: Most that is read of the body of an answer to a POST.
ANSWER_BYTES = 64 * 1024
#: Longest `Retry-After` that is believed; a server that asks for more is asked again after this.
LONGEST_RETRY_AFTER_SECONDS = 86_400.0


class Answer:
    """Reads an answer as it comes in; `is_known` once status and headers are there, whatever becomes of the body.

    Attributes:
        status: 0 until a final status came: those below 200 announce another.
        is_known: Whether all headers of the final status came.
        body: Its first bytes.
        was_cut: Whether it had more.
    """

    def __init__(self) -> None:
        self.status = 0
        self.is_known = False
        self.body = bytearray()
        self.was_cut = False
        self._headers: dict[str, str] = {}

    def read_header(self, line: bytes) -> None:
        """Take one line of the head, as libcurl hands it over."""
        if self.is_known:
            return  # a trailer
        text = line.decode("latin-1").strip()
        if text.startswith("HTTP/"):
            status = text.split(" ", 2)[1:2]
            self.status = int(status[0]) if status and status[0].isdecimal() else 0
            self._headers.clear()
        elif text:
            name, _, value = text.partition(":")
            if name.lower() in ("retry-after", "date"):
                self._headers[name.lower()] = value.strip()
        else:
            self.is_known = self.status >= 200

    def write(self, part: bytes) -> int:
        """Take a part of the body; return fewer bytes than given, which ends the transfer, once there are enough."""
        room = ANSWER_BYTES - len(self.body)
        self.body += part[:room]
        self.was_cut = len(part) > room
        return min(len(part), room)

    @property
    def retry_after_seconds(self) -> float | None:
        """How long the server asks to be left alone; None where it says nothing that can be understood.

        A date is measured by the server's own clock (`Date`) where it tells it, so that the two clocks need not agree.

        References:
            RFC 9110, 10.2.3: a number of seconds, or a date.
        """
        text = self._headers.get("retry-after", "")
        if text.isascii() and text.isdecimal():
            seconds = float(text[:12])
        else:
            until, now = _unix_seconds(text), _unix_seconds(self._headers.get("date", ""))
            if until is None:
                return None
            seconds = until - (time.time() if now is None else now)
        return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)


def _unix_seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
