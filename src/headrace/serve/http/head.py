"""The head of a request: request line and headers, read by llhttp (httptools) in its strict mode.

What llhttp lets pass and other servers read in another way is refused here: two hosts, none, unknown versions and codings.

A client sends the same head again and again, and only the digits of its length change. What such a head says is known: it is
looked up by all its other bytes, and not read again.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import httptools
import msgspec

from headrace.serve.http.refusal import BadRequest

#: Heads that are known at a time, and bytes of the longest: who sends another one each time takes up no more.
_MOST_KNOWN, _LONGEST_KNOWN = 256, 2_048
_LENGTH_NAMES = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_ANY_LENGTH = re.compile(rb"content-length", re.IGNORECASE)
_MOST_DIGITS = 12
_LENGTH, _ZERO = "content-length", ord("0")
_UNIQUE = {"host", "authorization", "content-type", "expect"}


@lru_cache(maxsize=256)  # most requests have the same few
def _lower_name(name: bytes) -> str:
    return name.decode("ascii").lower()


@lru_cache(maxsize=64)
def _method(name: bytes) -> str:
    return name.decode("ascii")


class Known(msgspec.Struct, frozen=True, gc=False):
    """What a head said that was read before; its connection goes on, and nobody waits for `100 Continue`."""

    method: str
    path: str
    query: str
    headers: dict[str, str]


class KnownHeads:
    """What is known of heads; belongs to the front's thread."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def find(self, key: bytes) -> Known | None:
        """Return what the head says."""
        return self._known.get(key)

    def keep(self, key: bytes, known: Known) -> None:
        """Note what a head says."""
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()  # those that are in use are soon here again
        self._known[key] = known


class HeadReader:
    """Reads one head after another from the bytes of one connection.

    Attributes:
        is_complete: The head is complete; the fields below are final.
        method: `GET`, ...
        path: Decoded, without the query.
        query: As it came.
        headers: {name in lower case: value}.
        length: Bytes of the body; -1: it comes in chunks.
        keeps_alive: The client may send another request on this connection.
        expects: The client waits for `100 Continue` before it sends the body.
    """

    __slots__ = ("_known", "_num_lines", "_parser", "_target", "_was_fed", "expects", "headers", "is_complete",
                 "keeps_alive", "length", "max_lines", "method", "path", "query")  # fmt: skip

    method: str
    path: str
    query: str
    length: int
    keeps_alive: bool
    expects: bool

    def __init__(self, max_lines: int, known: KnownHeads) -> None:
        self.max_lines = max_lines
        self._known = known
        self.restart()

    def restart(self) -> None:
        """Forget everything, also the state of the parser."""
        self._parser = httptools.HttpRequestParser(self)
        self.clear()

    def close(self) -> None:
        """Let go of the parser, which knows this reader."""
        del self._parser

    def clear(self) -> None:
        """Get ready for the next head of the same connection."""
        self.is_complete = self._was_fed = False
        self._target = b""
        self.headers: dict[str, str] = {}
        self._num_lines = 0

    def read_whole(self, data: bytes | bytearray, start: int, stop: int) -> None:
        """Take a head of which `data[start:stop]` is all, and the first since `clear`; raises `BadRequest`."""
        key, length = _split_length(data, start, stop)
        known = self._known.find(key) if key else None
        if known is None:
            self.feed(memoryview(data)[start:stop])
            # Not what becomes complete later only: empty lines before a request are no head.
            if key and self.is_complete and self.keeps_alive and not self.expects and self.length >= 0:
                self._known.keep(key, Known(self.method, self.path, self.query, self.headers))
            return
        self.method, self.path, self.query, self.headers = known.method, known.path, known.query, known.headers
        if _LENGTH in self.headers:
            self.headers = {**self.headers, _LENGTH: str(length)}
        self.length = length
        self.keeps_alive = self.is_complete = True
        self.expects = False

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes of the head, at most up to its end; raises `BadRequest`."""
        self._was_fed = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # llhttp stops after such a head; nothing else is offered here, and `keeps_alive` is False
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            raise cause if isinstance(cause, BadRequest) else error from None
        except httptools.HttpParserError as error:
            raise BadRequest(400, "http.syntax", f"the request is not HTTP/1.1: {error}") from None

    def pass_over(self, body: bytes | memoryview) -> None:
        """Let the parser pass over a body that was received elsewhere; it counts the bytes and looks at none."""
        if self._was_fed:
            self._parser.feed_data(body)

    def pass_over_unseen(self) -> None:
        """Do the same with a body that is not here any more."""
        if self._was_fed:
            self.restart()

    # --- Called by the parser ---

    def on_url(self, part: bytes) -> None:
        """Take a part of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._num_lines += 1
        if self._num_lines > self.max_lines:
            raise BadRequest(431, "http.header_lines", f"more than {self.max_lines} header lines")
        key = _lower_name(name)
        text = value.decode("latin-1").rstrip(" \t")
        if key not in self.headers:
            self.headers[key] = text
        elif key in _UNIQUE:
            raise BadRequest(400, "http.header_twice", f"the header {key} came twice; it may come once")
        else:
            self.headers[key] += f", {text}"

    def on_headers_complete(self) -> None:
        """Read what the head says."""
        parser, headers = self._parser, self.headers
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest(505, "http.version", f"HTTP/{version} is not served; use HTTP/1.1")
        if "host" not in headers and version == "1.1":
            raise BadRequest(400, "http.host", "the header Host is missing; HTTP/1.1 wants it")
        self.method = _method(parser.get_method())
        # Of HTTP/1.0 never: it has two ways to ask, and clients that ask in both.
        self.keeps_alive = version == "1.1" and parser.should_keep_alive() and not parser.should_upgrade()
        is_coded = "transfer-encoding" in headers
        self.length = _coded_length(headers, version) if is_coded else int(headers.get(_LENGTH, "0"))
        self.expects = "expect" in headers and _expects(headers, version)
        self.path, self.query = split_target(self._target)
        self.is_complete = True


def _split_length(data: bytes | bytearray, start: int, stop: int) -> tuple[bytes, int]:
    """Return a head without the digits of its length, and the length; b"" for one that is not to be known by that.

    Two heads that differ in these digits alone are read in the same way: a parser counts digits, and goes on where they end.
    """
    if stop - start > _LONGEST_KNOWN:
        return b"", 0
    for name in _LENGTH_NAMES:
        if (place := data.find(name, start, stop)) >= 0:
            begin = place + len(name)
            end = data.find(b"\r", begin, stop)
            digits = data[begin:end]
            if not digits.isdigit() or len(digits) > _MOST_DIGITS or (digits[0] == _ZERO and len(digits) > 1):
                return b"", 0
            return bytes(data[start:begin]) + data[end:stop], int(digits)
    # Without one there is no body, or its length is written in another way.
    return (b"", 0) if _ANY_LENGTH.search(data, start, stop) else (bytes(data[start:stop]), 0)


def _coded_length(headers: dict[str, str], version: str) -> int:
    coding = headers["transfer-encoding"]
    if coding.lower() != "chunked" or version == "1.0":
        raise BadRequest(
            501, "http.coding", f"Transfer-Encoding {coding:.100} is not served; send chunked, or a length"
        )
    return -1


def _expects(headers: dict[str, str], version: str) -> bool:
    expected = headers["expect"]
    if version == "1.0":
        return False
    if expected.lower() != "100-continue":
        raise BadRequest(417, "http.expect", f"Expect: {expected:.100} cannot be met; 100-continue can")
    return True


@lru_cache(maxsize=256)
def split_target(target: bytes) -> tuple[str, str]:
    """Return (decoded path, query as it came) of a request's target; raises `BadRequest`."""
    if target[:1] != b"/" and target != b"*":
        scheme, found, rest = target.partition(b"://")
        if not found or scheme.lower() not in (b"http", b"https"):
            raise BadRequest(400, "http.target", "the target is neither a path nor an http address")
        target = b"/" + rest.partition(b"/")[2]
    path, _, query = target.partition(b"?")
    if b"%" in path:
        path = _percent_decode(path)
    try:
        return path.decode(), query.decode("ascii")
    except UnicodeDecodeError:
        raise BadRequest(400, "http.target", "the target is not UTF-8 once decoded") from None


def _percent_decode(path: bytes) -> bytes:
    for escape in path.split(b"%")[1:]:
        if len(escape) < 2 or not all(digit in b"0123456789abcdefABCDEF" for digit in escape[:2]):
            raise BadRequest(400, "http.target", "a % in the path is not followed by two hexadecimal digits")
    decoded = unquote_to_bytes(path)
    if any(byte < 32 or byte == 127 for byte in decoded):
        raise BadRequest(400, "http.target", "the path has a control character")
    return decoded
