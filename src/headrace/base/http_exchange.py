"""One request at a time by one handle of libcurl, with limits on time, rate, size and redirects.

Where a request may go, and that it goes there, is `headrace.base.dialing`'s; each redirect is judged like a new address.
"""

from __future__ import annotations

import io
import math
import os
import re
import string
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any
from urllib.parse import quote

import certifi
import pycurl

from headrace import __version__
from headrace.base.calls import Call, Transfer
from headrace.base.deadline import seconds_left
from headrace.base.dialing import STRAYED, Dialer, Judged, Refused, encode_ascii
from headrace.base.errors import DeadlinePassed, Shortage
from headrace.base.http_answer import FirstBytes, Response, is_switching, is_whole, retry_after_seconds
from headrace.base.http_error import HttpError, failure_of, refuse_without_files, strip_secrets
from headrace.base.http_settings import HttpSettings
from headrace.base.look_ups import Unresolved
from headrace.base.shortage import shortage_of

_SWITCHING_PROTOCOLS = 101
#: What a GET follows; see RFC 9110, 15.4.
_REDIRECTS = {301, 302, 303, 307, 308}
#: Nothing is decoded here: a megabyte can become a gigabyte. libcurl decodes only where its own option asks for it.
_GET_HEADERS = [b"Accept-Encoding: identity"]
_ENCODING = re.compile(rb"^content-encoding:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
#: Read buffer. A large one means few callbacks into Python, each of which needs the GIL.
_BUFFER_BYTES = 512 * 1024

#: Told how many connections a request opened and how long setting up the last of them took, in seconds.
OnConnect = Callable[[int, float], object]


class Exchange:
    """One handle, and what belongs to its request.

    Args:
        settings: Limits.
        on_connect: Called after each request that could not use a connection that was open, whether it succeeded or not.
        dialer: Of the client.
        connections: See `calls.Transfer.connections`.
    """

    def __init__(
        self, settings: HttpSettings, on_connect: OnConnect | None, dialer: Dialer, connections: Hashable
    ) -> None:
        self._settings = settings
        self._on_connect = on_connect
        self._dialer = dialer
        self._look_up_seconds = 0.0
        self._head = io.BytesIO()
        self._body = io.BytesIO()
        self._answer = FirstBytes(self._head)
        self._method, self._address = "", ""  # as the handle has them
        self._timeout: int | None = None
        self.curl = _make_handle(settings)
        self._gate = dialer.guard(self.curl)
        self.curl.setopt(pycurl.HEADERFUNCTION, self._head.write)  # a method in C: libcurl calls it for each line
        self._transfer = Transfer(self.curl, connections, self._gate)

    def getting(self, url: str, resting: list[Exchange]) -> Call[Response]:
        """Return the answer to a GET, see `HttpClient.get`; then add this to those that rest."""
        try:
            now = time.monotonic()
            deadline = self._deadline(now)
            if self._method != "GET":
                self._set_to_get()
            for _ in range(self._settings.max_redirects + 1):
                status = yield from self._requesting(url, now, deadline)
                moved_to = self._find_redirect() if status in _REDIRECTS else ""
                if not moved_to:
                    head = self._head.getvalue()
                    self._refuse_incomplete(url, head)
                    if status < 300 and b"\ncontent-encoding:" in head.lower():
                        self._refuse_encoded(url)
                    return Response(status, self._body.getvalue())
                if url[:6].lower() == "https:" and moved_to[:5].lower() == "http:":
                    raise HttpError("ssrf.downgrade", url, "it redirects from https to http", permanent=True)
                url = moved_to
                _empty(self._body)
                now = time.monotonic()
        finally:
            _empty(self._body)  # a handle that rests holds on to nothing
            resting.append(self)
        raise HttpError(
            "http.redirects", url, f"more redirects than max_redirects = {self._settings.max_redirects}", permanent=True
        )

    def posting(self, url: str, body: bytes, headers: Mapping[str, str], resting: list[Exchange]) -> Call[Response]:
        """Return the answer to a POST, see `HttpClient.post`; then add this to those that rest."""
        try:
            # "Expect:" off: waiting for "100 Continue" costs a round trip.
            text = "\n".join(["Expect:", *[f"{name}: {value}" for name, value in headers.items()]])
            lines = text.encode().split(b"\n")
            if len(lines) != 1 + len(headers) or "\r" in text or "\0" in text:
                # libcurl sends them as they are: the rest would be read as further headers.
                raise HttpError("http.header", url, "a header holds a line break or NUL", permanent=True)
            if self._method != "POST":
                self._set_to_post()
            self._answer.forget()
            self.curl.setopt(pycurl.HTTPHEADER, lines)
            self.curl.setopt(pycurl.POSTFIELDS, body)
            now = time.monotonic()
            try:
                status = yield from self._requesting(url, now, self._deadline(now))
            except (HttpError, DeadlinePassed):
                if is_switching(self._head.getvalue()):
                    return Response(_SWITCHING_PROTOCOLS, b"")
                if not is_whole(self._head.getvalue()):
                    raise
                status = int(self.curl.getinfo(pycurl.RESPONSE_CODE))
            head = self._head.getvalue()
            self._refuse_incomplete(url, head)
            return Response(
                status, bytes(self._answer.data), None if 200 <= status < 300 else retry_after_seconds(head)
            )
        finally:
            resting.append(self)

    def close(self) -> None:
        """Give the handle back, with the connections that only it has."""
        self.curl.close()

    def _requesting(self, url: str, now: float, deadline: float) -> Call[int]:
        """Send the request that is set and return the status; times are seconds of `time.monotonic`."""
        _empty(self._head)
        try:
            address = url if url.isascii() else encode_ascii(url)
            judged = self._dialer.find(address, now)
            self._look_up_seconds = 0.0
            if judged is None:
                limit = min(self._settings.connect_timeout_seconds, deadline - now)
                judged = yield from self._dialer.judging(address, now, limit)
                before, now = now, time.monotonic()
                self._look_up_seconds = now - before
            transfer = self._set(judged, address, round((deadline - now) * 1000))
            try:
                yield transfer
            except (pycurl.error, OSError):
                if transfer.is_first:
                    judged.give_again()
                raise
            finally:
                if self._gate.opened >= 0:
                    self._tell_connection()
        except pycurl.error as error:
            if self._gate.has_strayed:
                raise HttpError(STRAYED.code, url, STRAYED.why, permanent=False) from None
            self._refuse_late(url)
            raise failure_of(error, url, self._gate.unopened) from None
        except Refused as error:
            raise HttpError(error.refusal.code, url, error.refusal.why, permanent=True) from None
        except Unresolved as error:
            self._refuse_late(url)
            refuse_without_files(url)
            if (short := shortage_of(error)) is not None:
                raise Shortage(f"{short}: {strip_secrets(url)} was not called: {error}") from error
            raise HttpError("http.resolve", url, str(error), permanent=False) from None
        except (UnicodeError, ValueError) as error:
            raise HttpError("ssrf.url", url, f"not an address ({error})", permanent=True) from None
        return int(self.curl.getinfo(pycurl.RESPONSE_CODE))

    def _set(self, judged: Judged, address: str, milliseconds: int) -> Transfer:
        """Set the request to go where it may, within a time; return what is to be waited for."""
        self._gate.admit(judged)
        if address != self._address:  # a receiver of results is mostly the same
            self.curl.setopt(pycurl.URL, address)
            self._address = address
        if milliseconds != self._timeout:
            self.curl.setopt(pycurl.TIMEOUT_MS, max(1, milliseconds))  # 0 would mean no limit
            self._timeout = milliseconds
        transfer = self._transfer
        transfer.is_first = judged.resolved.entry is not None and judged.give_to(self.curl)
        return transfer

    def _tell_connection(self) -> None:
        """Tell of the connections that the request opened."""
        if self._on_connect is not None and (num_new := self.curl.getinfo(pycurl.NUM_CONNECTS)):
            # From the request's start to the end of TLS, or of TCP where there is none: name look-up is in both.
            seconds = self.curl.getinfo(pycurl.APPCONNECT_TIME) or self.curl.getinfo(pycurl.CONNECT_TIME)
            self._on_connect(num_new, self._look_up_seconds + seconds)

    def _deadline(self, now: float) -> float:
        """Return when the request that begins now is to be over, on `time.monotonic`."""
        left = seconds_left()
        limit = self._settings.timeout_seconds
        return now + (limit if left is None else min(limit, left))

    def _refuse_late(self, url: str) -> None:
        # The job's own end, and no failure of the server: it may have had no more than a moment.
        if (left := seconds_left()) is not None and left <= 0:
            raise DeadlinePassed(
                f"deadline.passed: the job's deadline passed before {strip_secrets(url)} had answered"
            ) from None

    def _set_to_get(self) -> None:
        self.curl.setopt(pycurl.HTTPGET, 1)
        self.curl.setopt(pycurl.NOPROGRESS, 1)
        self.curl.setopt(pycurl.HTTPHEADER, _GET_HEADERS)
        self.curl.setopt(pycurl.WRITEFUNCTION, self._body.write)
        self.curl.setopt(pycurl.LOW_SPEED_TIME, math.ceil(self._settings.slow_seconds))
        self._transfer.is_enough = None
        self._method = "GET"

    def _set_to_post(self) -> None:
        self.curl.setopt(pycurl.POST, 1)
        self.curl.setopt(pycurl.WRITEFUNCTION, self._answer.write)
        self.curl.setopt(pycurl.LOW_SPEED_TIME, 0)  # a receiver may think for as long as the timeout
        # Asked by libcurl where a thread waits for the request; a carrier asks itself.
        self.curl.setopt(pycurl.NOPROGRESS, 0)
        self.curl.setopt(pycurl.XFERINFOFUNCTION, self._answer.is_enough)
        self._transfer.is_enough = self._answer.is_enough
        self._transfer.curl_asks = True
        self._method = "POST"

    def _find_redirect(self) -> str:
        # Raw: the server's bytes need not be UTF-8. libcurl has made it absolute and left out user and password.
        return quote(self.curl.getinfo_raw(pycurl.REDIRECT_URL) or b"", safe=string.punctuation)

    def _refuse_incomplete(self, url: str, head: bytes) -> None:
        if not is_whole(head):
            why = "the connection ended within the headers of the answer"
            raise HttpError("http.incomplete", url, why, permanent=False)

    def _refuse_encoded(self, url: str) -> None:
        claimed = [value.strip().lower() for value in _ENCODING.findall(self._head.getvalue())]
        encoding = next((value for value in claimed if value not in (b"", b"identity")), None)
        if encoding is not None:
            raise HttpError(
                "http.encoding",
                url,
                f"the answer is compressed ({encoding[:40].decode('latin-1')!r}) although it was asked for as it is; store "
                "the file without Content-Encoding",
                permanent=True,
            )


def _make_handle(settings: HttpSettings) -> Any:
    curl = pycurl.Curl()
    curl.setopt(pycurl.NOSIGNAL, 1)  # signals and threads do not mix
    curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
    curl.setopt(pycurl.FOLLOWLOCATION, 0)
    curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, round(settings.connect_timeout_seconds * 1000)))  # 0: its own default
    curl.setopt(pycurl.MAXFILESIZE_LARGE, settings.max_bytes)
    curl.setopt(pycurl.BUFFERSIZE, _BUFFER_BYTES)
    curl.setopt(pycurl.TCP_NODELAY, 1)
    curl.setopt(pycurl.TCP_KEEPALIVE, 1)
    curl.setopt(pycurl.LOW_SPEED_LIMIT, settings.min_bytes_per_second)
    curl.setopt(pycurl.USERAGENT, f"headrace/{__version__}")
    curl.setopt(pycurl.CAINFO, os.environ.get("SSL_CERT_FILE") or certifi.where())
    return curl


def _empty(buffer: io.BytesIO) -> None:
    buffer.seek(0)
    buffer.truncate()
