"""The head of a request: request line and headers, read by llhttp (httptools) in its strict mode.

What llhttp lets pass and other servers read in another way is refused here: two hosts, none, unknown versions and codings.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote_to_bytes

import httptools

from headrace.serve.http.refusal import BadRequest

_UNIQUE = {"host", "authorization", "content-type", "expect"}


@lru_cache(maxsize=256)  # most requests have the same few
def _lower_name(name: bytes) -> str:
    return name.decode("ascii").lower()


@lru_cache(maxsize=64)
def _method(name: bytes) -> str:
    return name.decode("ascii")


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

    __slots__ = ("_num_lines", "_parser", "_target", "expects", "headers", "is_complete", "keeps_alive", "length",
                 "max_lines", "method", "path", "query")  # fmt: skip

    def __init__(self, max_lines: int) -> None:
        self.max_lines = max_lines
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
        self.is_complete = False
        self._target = b""
        self.headers: dict[str, str] = {}
        self._num_lines = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes of the head, at most up to its end; raises `BadRequest`."""
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
        self._parser.feed_data(body)

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
        self.length = _coded_length(headers, version) if is_coded else int(headers.get("content-length", "0"))
        self.expects = "expect" in headers and _expects(headers, version)
        self.path, self.query = split_target(self._target)
        self.is_complete = True


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
