"""HTTP by libcurl: one handle per worker, connections kept alive, limits on time, size, redirects and schemes.

Chosen by CPU cost per request (see `docs/decisions/0004-http-client.md`): with threads, libcurl runs a whole transfer
without the GIL, so 64 downloads do not queue for it. A handle is not thread-safe: open one per worker.
"""

from __future__ import annotations

import io
import os
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import certifi
import pycurl

from headrace import __version__
from headrace.base.settings import check


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Limits of one request."""

    timeout_seconds: float = 30.0
    """The whole request, redirects included."""
    connect_timeout_seconds: float = 5.0
    """TCP and TLS set-up."""
    max_bytes: int = 64 * 10**6
    """Largest body."""
    max_redirects: int = 3
    """Redirects followed by GET; POST follows none."""

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("timeout_seconds", "connect_timeout_seconds", "max_bytes"):
            check(getattr(self, key) > 0, key, getattr(self, key), "more than 0")
        check(self.max_redirects >= 0, "max_redirects", self.max_redirects, "a whole number >= 0")


class HttpError(Exception):
    """The request got no answer.

    Attributes:
        permanent: Whether another try cannot help.
    """

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Response:
    """What the server answered."""

    status: int
    body: bytes


#: Causes that no retry mends: the address itself is wrong, or the answer breaks a limit.
_PERMANENT = {
    pycurl.E_URL_MALFORMAT,
    pycurl.E_UNSUPPORTED_PROTOCOL,
    pycurl.E_FILESIZE_EXCEEDED,
    pycurl.E_TOO_MANY_REDIRECTS,
}
#: Read buffer. A large one means few callbacks into Python, each of which needs the GIL.
_BUFFER_BYTES = 512 * 1024


#: Told how many connections a request opened and how long setting up the last of them took, in seconds.
OnConnect = Callable[[int, float], object]


class HttpClient:
    """Sends requests, one at a time.

    Args:
        settings: Limits.
        on_connect: Called after each request that could not use a connection that was open, whether it succeeded or not.
    """

    def __init__(self, settings: HttpSettings, on_connect: OnConnect | None = None) -> None:
        self._settings = settings
        self._on_connect = on_connect
        self._curl = curl = pycurl.Curl()
        curl.setopt(pycurl.NOSIGNAL, 1)  # signals and threads do not mix
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.REDIR_PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.TIMEOUT_MS, _milliseconds(settings.timeout_seconds))
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, _milliseconds(settings.connect_timeout_seconds))
        curl.setopt(pycurl.MAXFILESIZE_LARGE, settings.max_bytes)
        curl.setopt(pycurl.MAXREDIRS, settings.max_redirects)
        curl.setopt(pycurl.BUFFERSIZE, _BUFFER_BYTES)
        curl.setopt(pycurl.TCP_NODELAY, 1)
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.USERAGENT, f"headrace/{__version__}")
        curl.setopt(pycurl.CAINFO, os.environ.get("SSL_CERT_FILE") or certifi.where())

    def get(self, url: str) -> Response:
        """Return the answer to a GET, redirects followed.

        Raises:
            HttpError: If there is none.
        """
        self._curl.setopt(pycurl.HTTPGET, 1)
        self._curl.setopt(pycurl.FOLLOWLOCATION, 1)
        self._curl.unsetopt(pycurl.HTTPHEADER)  # an empty list would leave those of the last POST
        return self._perform(url)

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Return the answer to a POST, redirects not followed.

        Raises:
            HttpError: If there is none.
        """
        self._curl.setopt(pycurl.POST, 1)
        self._curl.setopt(pycurl.FOLLOWLOCATION, 0)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if any(character in "\r\n\0" for line in lines for character in line):
            # libcurl sends them as they are: the rest would be read as further headers.
            raise HttpError(f"{without_secrets(url)}: a header holds a line break or NUL", permanent=True)
        # "Expect:" off: waiting for "100 Continue" costs a round trip.
        self._curl.setopt(pycurl.HTTPHEADER, [b"Expect:", *(line.encode() for line in lines)])
        self._curl.setopt(pycurl.POSTFIELDS, body)
        return self._perform(url)

    def close(self) -> None:
        """Close the connections."""
        self._curl.close()

    def _perform(self, url: str) -> Response:
        body = io.BytesIO()
        try:
            self._curl.setopt(pycurl.URL, url if url.isascii() else quote(url, safe=string.punctuation))
            self._curl.setopt(pycurl.WRITEDATA, body)
            self._perform_and_tell()
        except pycurl.error as error:
            code, message = error.args
            raise HttpError(f"{without_secrets(url)}: {message}", permanent=code in _PERMANENT) from None
        except (UnicodeError, ValueError) as error:
            raise HttpError(f"{without_secrets(url)}: not an address ({error})", permanent=True) from None
        return Response(self._curl.getinfo(pycurl.RESPONSE_CODE), body.getvalue())

    def _perform_and_tell(self) -> None:
        try:
            self._curl.perform()
        finally:
            if self._on_connect is not None and (num_new := self._curl.getinfo(pycurl.NUM_CONNECTS)):
                # From the request's start to the end of TLS, or of TCP where there is none: name look-up is in both.
                seconds = self._curl.getinfo(pycurl.APPCONNECT_TIME) or self._curl.getinfo(pycurl.CONNECT_TIME)
                self._on_connect(num_new, seconds)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))  # 0 would mean no limit


def is_permanent(status: int) -> bool:
    """Return whether a status other than 2xx means that another try cannot help.

    408 (timeout), 425 (too early), 429 (too many) and all 5xx are worth another try; see RFC 9110 and RFC 6585.
    """
    return 300 <= status < 500 and status not in (408, 425, 429)


def without_secrets(url: str) -> str:
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
