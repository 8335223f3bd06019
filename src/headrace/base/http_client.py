"""HTTP by libcurl: one handle per worker, connections kept alive, limits on time, rate, size and redirects.

Where a request may go, and that it goes there, is `headrace.base.dialing`'s; each redirect is judged like a new address.

Chosen by CPU cost per request (see `docs/decisions/0004-http-client.md`): with threads, libcurl runs a whole transfer
without the GIL, so 64 downloads do not queue for it. A handle is not thread-safe: open one per worker.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import certifi
import pycurl

from headrace import __version__
from headrace.base.deadline import seconds_left
from headrace.base.dialing import Dialer, Refused
from headrace.base.errors import DeadlinePassed, SettingsError
from headrace.base.http_answer import FirstBytes, is_switching, is_whole, retry_after_seconds
from headrace.base.look_ups import Unresolved
from headrace.base.network_rules import NetworkPlan, NetworkRules
from headrace.base.settings import check

#: What browsers follow (WHATWG Fetch, HTTP-redirect fetch).
MOST_REDIRECTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Limits of one request."""

    timeout_seconds: float = 30.0
    """The whole request, redirects included."""
    connect_timeout_seconds: float = 5.0
    """Resolving the name; and after that, TCP and TLS set-up."""
    min_bytes_per_second: int = 100
    """GET: slower than this for `slow_seconds` on end, the wait for the answer included, ends the request."""
    slow_seconds: float = 15.0
    """Rounded up to whole seconds."""
    max_bytes: int = 64 * 10**6
    """Largest body."""
    max_redirects: int = 3
    """Redirects followed by GET; POST follows none."""

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("timeout_seconds", "connect_timeout_seconds", "slow_seconds", "max_bytes"):
            check(getattr(self, key) > 0, key, getattr(self, key), "more than 0")
        check(
            0 <= self.max_redirects <= MOST_REDIRECTS,
            *("max_redirects", self.max_redirects, f"a whole number from 0 to {MOST_REDIRECTS}"),
        )
        check(self.min_bytes_per_second >= 0, "min_bytes_per_second", self.min_bytes_per_second, "a whole number >= 0")


class HttpError(Exception):
    """The request got no answer, or none that counts.

    Attributes:
        code: Stable name of the cause, with which the message begins: `http.timeout`, `ssrf.address`, ...
        permanent: Whether another try cannot help.
        is_unreachable: Whether the host as a whole could not be reached, whatever it was to be asked.
    """

    def __init__(self, code: str, url: str, message: str, *, permanent: bool) -> None:
        super().__init__(f"{code}: {strip_secrets(url)}: {message}")
        self.code = code
        self.permanent = permanent
        self.is_unreachable = code in ("http.resolve", "http.connect", "http.tls")


@dataclass(frozen=True, slots=True)
class Response:
    """What the server answered."""

    status: int
    body: bytes
    retry_after_seconds: float | None = None
    """How long the server asks to be left alone (`Retry-After`); None where it says nothing. Of POST only."""


#: Causes with a name of their own, and whether no retry mends them; the others are `http.failed`, and worth one.
_CAUSES = {
    pycurl.E_URL_MALFORMAT: ("ssrf.url", True),
    pycurl.E_UNSUPPORTED_PROTOCOL: ("http.failed", True),  # what answers does not speak HTTP
    pycurl.E_FILESIZE_EXCEEDED: ("http.too_large", True),
    pycurl.E_OPERATION_TIMEDOUT: ("http.timeout", False),
    pycurl.E_COULDNT_RESOLVE_HOST: ("http.resolve", False),
    pycurl.E_COULDNT_RESOLVE_PROXY: ("http.resolve", False),
    pycurl.E_COULDNT_CONNECT: ("http.connect", False),
    pycurl.E_PARTIAL_FILE: ("http.incomplete", False),
    pycurl.E_SSL_CONNECT_ERROR: ("http.tls", False),
    pycurl.E_PEER_FAILED_VERIFICATION: ("http.tls", False),
}
#: What libcurl says, among others, where this process may open no more files: sockets are files, too.
_NO_CONNECTION = (
    pycurl.E_OUT_OF_MEMORY,
    pycurl.E_FAILED_INIT,
    pycurl.E_COULDNT_CONNECT,
    pycurl.E_COULDNT_RESOLVE_HOST,
    pycurl.E_COULDNT_RESOLVE_PROXY,
)
_SWITCHING_PROTOCOLS = 101
#: What a GET follows; see RFC 9110, 15.4.
_REDIRECTS = {301, 302, 303, 307, 308}
#: Nothing is decoded here: a megabyte can become a gigabyte. libcurl decodes only where its own option asks for it.
_GET_HEADERS = [b"Accept-Encoding: identity"]
_ENCODING = re.compile(rb"^content-encoding:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
#: Read buffer. A large one means few callbacks into Python, each of which needs the GIL.
_BUFFER_BYTES = 512 * 1024
#: (8, 4, 0): before that, MAXFILESIZE does not hold for a body that comes without its length.
_OLDEST_LIBCURL = 0x080400


#: Told how many connections a request opened and how long setting up the last of them took, in seconds.
OnConnect = Callable[[int, float], object]


class HttpClient:
    """Sends requests, one at a time.

    Args:
        settings: Limits.
        on_connect: Called after each request that could not use a connection that was open, whether it succeeded or not.
        rules: Who may be contacted; None: public servers on their usual ports.
    """

    def __init__(
        self, settings: HttpSettings, on_connect: OnConnect | None = None, rules: NetworkRules | None = None
    ) -> None:
        version = pycurl.version_info()
        if version[2] < _OLDEST_LIBCURL:
            raise SettingsError(
                f"pycurl uses libcurl {version[1]}, which cannot limit every download; it takes 8.4 or newer: "
                "pip install --force-reinstall --only-binary :all: pycurl"
            )
        self._settings = settings
        self._on_connect = on_connect
        self._look_up_seconds = 0.0
        self._head = io.BytesIO()
        self._is_set_to_get = False
        self._curl = curl = pycurl.Curl()
        curl.setopt(pycurl.NOSIGNAL, 1)  # signals and threads do not mix
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.FOLLOWLOCATION, 0)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, _milliseconds(settings.connect_timeout_seconds))
        curl.setopt(pycurl.MAXFILESIZE_LARGE, settings.max_bytes)
        curl.setopt(pycurl.BUFFERSIZE, _BUFFER_BYTES)
        curl.setopt(pycurl.TCP_NODELAY, 1)
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.LOW_SPEED_LIMIT, settings.min_bytes_per_second)
        curl.setopt(pycurl.USERAGENT, f"headrace/{__version__}")
        curl.setopt(pycurl.CAINFO, os.environ.get("SSL_CERT_FILE") or certifi.where())
        self._dialer = Dialer(curl, rules or NetworkRules(NetworkPlan()))

    def get(self, url: str) -> Response:
        """Return the answer to a GET, redirects followed.

        Raises:
            HttpError: If there is none, it breaks a limit, or an address on the way may not be contacted.
            OSError, MemoryError: If this machine has no file handle or no memory for it.
            DeadlinePassed: If the job in this thread's hands was wanted before any answer came.
        """
        deadline = self._deadline()
        if not self._is_set_to_get:
            self._set_to_get()
        for _ in range(self._settings.max_redirects + 1):
            self._forget_head()
            body = io.BytesIO()
            status = self._perform(url, body, deadline)
            moved_to = self._find_redirect() if status in _REDIRECTS else ""
            if not moved_to:
                self._refuse_incomplete(url)
                if status < 300 and b"\ncontent-encoding:" in self._head.getvalue().lower():
                    self._refuse_encoded(url)
                return Response(status, body.getvalue())
            if url[:6].lower() == "https:" and moved_to[:5].lower() == "http:":
                raise HttpError("ssrf.downgrade", url, "it redirects from https to http", permanent=True)
            url = moved_to
        raise HttpError(
            "http.redirects", url, f"more redirects than max_redirects = {self._settings.max_redirects}", permanent=True
        )

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Return the answer to a POST, redirects not followed.

        The status and the headers are the answer. Of the body at most 64 KB are read, for a second or two, and one that is
        longer, stalls or breaks off is cut, and the connection closed: whoever posts a result wants to know that it was
        taken, and must not be held up by the rest. A server that changes the protocol (101) has answered, too.

        Raises:
            HttpError: If no status came, or not all headers, or the address may not be contacted.
            OSError, MemoryError: If this machine has no file handle or no memory for it.
            DeadlinePassed: If the job in this thread's hands was wanted before any answer came.
        """
        self._is_set_to_get = False
        self._curl.setopt(pycurl.POST, 1)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if any(character in "\r\n\0" for line in lines for character in line):
            # libcurl sends them as they are: the rest would be read as further headers.
            raise HttpError("http.header", url, "a header holds a line break or NUL", permanent=True)
        # "Expect:" off: waiting for "100 Continue" costs a round trip.
        self._curl.setopt(pycurl.HTTPHEADER, [b"Expect:", *(line.encode() for line in lines)])
        self._curl.setopt(pycurl.POSTFIELDS, body)
        self._curl.setopt(pycurl.HEADERFUNCTION, self._head.write)
        self._curl.setopt(pycurl.LOW_SPEED_TIME, 0)  # a receiver may think for as long as the timeout
        self._forget_head()
        answer = FirstBytes(self._head)
        self._curl.setopt(pycurl.NOPROGRESS, 0)
        self._curl.setopt(pycurl.XFERINFOFUNCTION, answer.is_enough)
        try:
            self._perform(url, answer, self._deadline())
        except (HttpError, DeadlinePassed):
            if is_switching(self._head.getvalue()):
                return Response(_SWITCHING_PROTOCOLS, b"")
            if not is_whole(self._head.getvalue()):
                raise
        self._refuse_incomplete(url)
        status = int(self._curl.getinfo(pycurl.RESPONSE_CODE))
        asked = None if 200 <= status < 300 else retry_after_seconds(self._head.getvalue())
        return Response(status, bytes(answer.data), asked)

    def close(self) -> None:
        """Close the connections."""
        self._curl.close()

    def _perform(self, url: str, body: FirstBytes | io.BytesIO, deadline: float) -> int:
        """Send the request and return the status; what comes back is written to `body`."""
        try:
            address = encode_ascii(url)
            self._admit(address, deadline)
            self._curl.setopt(pycurl.URL, address)
            self._curl.setopt(pycurl.WRITEDATA, body)
            self._perform_and_tell()
        except pycurl.error as error:
            refusal = self._dialer.finish_request()
            if refusal is not None:
                raise HttpError(refusal.code, url, refusal.why, permanent=False) from None
            code, message = error.args
            self._refuse_late(url)
            if code in _NO_CONNECTION:
                _refuse_without_files(url)
            if code == pycurl.E_OUT_OF_MEMORY:
                raise MemoryError(f"{strip_secrets(url)} was not called: {message}") from None
            name, permanent = _CAUSES.get(code, ("http.failed", False))
            raise HttpError("http.slow" if "too slow" in message else name, url, message, permanent=permanent) from None
        except Refused as error:
            raise HttpError(error.refusal.code, url, error.refusal.why, permanent=True) from None
        except Unresolved as error:
            self._refuse_late(url)
            _refuse_without_files(url)
            raise HttpError("http.resolve", url, str(error), permanent=False) from None
        except (UnicodeError, ValueError) as error:
            raise HttpError("ssrf.url", url, f"not an address ({error})", permanent=True) from None
        self._dialer.finish_request()
        return int(self._curl.getinfo(pycurl.RESPONSE_CODE))

    def _deadline(self) -> float:
        """Return when the request that begins now is to be over, on `time.monotonic`."""
        left = seconds_left()
        limit = self._settings.timeout_seconds
        return time.monotonic() + (limit if left is None else min(limit, left))

    def _refuse_late(self, url: str) -> None:
        # The job's own end, and no failure of the server: it may have had no more than a moment.
        if (left := seconds_left()) is not None and left <= 0:
            raise DeadlinePassed(
                f"deadline.passed: the job's deadline passed before {strip_secrets(url)} had answered"
            ) from None

    def _admit(self, url: str, deadline: float) -> None:
        before = time.monotonic()
        self._dialer.admit(url, min(self._settings.connect_timeout_seconds, deadline - before))
        now = time.monotonic()
        self._look_up_seconds = now - before
        self._curl.setopt(pycurl.TIMEOUT_MS, _milliseconds(deadline - now))

    def _perform_and_tell(self) -> None:
        try:
            self._curl.perform()
        finally:
            if self._on_connect is not None and (num_new := self._curl.getinfo(pycurl.NUM_CONNECTS)):
                # From the request's start to the end of TLS, or of TCP where there is none: name look-up is in both.
                seconds = self._curl.getinfo(pycurl.APPCONNECT_TIME) or self._curl.getinfo(pycurl.CONNECT_TIME)
                self._on_connect(num_new, self._look_up_seconds + seconds)

    def _set_to_get(self) -> None:
        self._curl.setopt(pycurl.HTTPGET, 1)
        self._curl.setopt(pycurl.NOPROGRESS, 1)
        self._curl.setopt(pycurl.HTTPHEADER, _GET_HEADERS)
        self._curl.setopt(pycurl.HEADERFUNCTION, self._head.write)  # a method in C: libcurl calls it for each line
        self._curl.setopt(pycurl.LOW_SPEED_TIME, math.ceil(self._settings.slow_seconds))
        self._is_set_to_get = True

    def _find_redirect(self) -> str:
        # Raw: the server's bytes need not be UTF-8. libcurl has made it absolute and left out user and password.
        return quote(self._curl.getinfo_raw(pycurl.REDIRECT_URL) or b"", safe=string.punctuation)

    def _forget_head(self) -> None:
        self._head.seek(0)
        self._head.truncate()

    def _refuse_incomplete(self, url: str) -> None:
        if not is_whole(self._head.getvalue()):
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


def _refuse_without_files(url: str) -> None:
    """Raise OSError if this process can open no file, and so no socket: no server is to blame, see `base.shortage`."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            what = f"{strip_secrets(url)} was not called: no socket could be opened, {error.strerror}; see ulimit -n"
            raise OSError(error.errno, what) from None


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))  # 0 would mean no limit


def encode_ascii(url: str) -> str:
    """Return an address as it is contacted: what is beyond ASCII is percent-encoded."""
    return url if url.isascii() else quote(url, safe=string.punctuation)


def is_permanent(status: int) -> bool:
    """Return whether a status other than 2xx means that another try cannot help.

    408 (timeout), 425 (too early), 429 (too many) and all 5xx are worth another try; see RFC 9110 and RFC 6585.
    """
    return (status < 200 or 300 <= status < 500) and status not in (408, 425, 429)


def strip_secrets(url: str) -> str:
    """Return an address without user, password and query, and no longer than a line, for messages and logs."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(unreadable address)"
    start = f"{parts.scheme}:" + ("//" if parts.netloc or parts.scheme == "file" else "") if parts.scheme else ""
    path = parts.path if len(parts.path) <= 200 else f"{parts.path[:200]}..."  # a data: address holds a whole image
    return f"{start}{host}{port}{path}" + ("?..." if parts.query else "")
