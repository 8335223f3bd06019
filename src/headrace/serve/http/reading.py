"""Bytes of one connection become requests; no sockets here.

A head is given to llhttp piece by piece, so that what is no HTTP is refused with its first wrong byte. Its end is looked for
here, since llhttp does not say where it was: what follows is the body, which is received straight into its own buffer, or the
next request. Before the body is read the request is admitted: token, route, gate, length.
"""

from __future__ import annotations

import hmac
import logging

from headrace.serve.http.body import Body, ChunkedBody, SizedBody, SkippedBody, WholeBody
from headrace.serve.http.head import HeadReader
from headrace.serve.http.refusal import BadRequest
from headrace.serve.http.request import Answer, Request, Sends, error_answer
from headrace.serve.http.routes import Found
from headrace.serve.http.shared import Shared

logger = logging.getLogger("headrace")

#: The body of a refused request is read up to here, so that the connection can go on; behind a longer one it ends.
_SKIPPED_BYTES = 1024 * 1024
_END_OF_HEAD = b"\r\n\r\n"
#: Probes have no token, and a browser sends none for the page on which it is typed.
_OPEN_PATHS = {"/", "/livez", "/readyz"}


class RequestReader:
    """Reads one request after another.

    Attributes:
        found: What answers the request, or the answer that refuses it.
        start_ns: When the first byte of a request came; 0: none has come.
        is_ready: It has come to its end, and `finish` is to be called.
        wants_continue: The client waits for `100 Continue`.
        closes: No other request can follow on this connection.
        descriptor: Of the connection; -1: it has none.
    """

    __slots__ = ("_body", "_head", "_head_bytes", "_request", "_sends", "_shared", "_tail", "closes", "descriptor", "found",
                 "is_ready", "start_ns", "wants_continue")  # fmt: skip

    found: Found | Answer
    _request: Request | None

    def __init__(self, shared: Shared, sends: Sends) -> None:
        self._shared = shared
        self._sends = sends
        self._head = HeadReader(shared.limits.header_lines, shared.known_heads)
        self._body: Body | None = None
        self._request = None
        self.closes = False
        self.descriptor = -1
        self._expect_head()

    def close(self) -> None:
        """Let go of the connection, which is over: circles would be left to the garbage collector."""
        self.forget_request()
        self._head.close()
        del self._sends

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._tail = b""
        self.start_ns = 0
        self.is_ready = False
        self.wants_continue = False

    @property
    def is_amid_body(self) -> bool:
        """Whether more of a body is to come."""
        return self._body is not None and not self.is_ready

    def room(self) -> memoryview:
        """Return where the next bytes belong."""
        return self._shared.piece_view if self._body is None else self._body.room()

    def received(self, num_bytes: int) -> int:
        """Read bytes that stand in `room`; return how many of them belong to this request. Raises `BadRequest`."""
        if self._body is None:
            return self.read(self._shared.piece, 0, num_bytes)
        self._body.received(num_bytes)
        self.is_ready = self._body.is_complete
        return num_bytes

    def read(self, data: bytes | bytearray, start: int, stop: int) -> int:
        """Read from `data[start:stop]`, at most to the end of one request; return where it ends. Raises `BadRequest`."""
        while start < stop and not self.is_ready:
            start = self._read_head(data, start, stop)
        return start

    def finish(self) -> Request:
        """Return the request with its body, and get ready for the next head."""
        request, body = self._request, self._body
        assert request is not None
        if body is not None:
            self._shared.turn.begun.discard(self.descriptor)
            request.body = self._pass_over(body)
        self._head.clear()
        self._expect_head()
        return request

    def forget_request(self) -> None:
        """Let the body go to the next request."""
        request, self._request = self._request, None
        body, self._body = self._body, None
        if body is not None:
            self._shared.turn.begun.discard(self.descriptor)
        if request is not None and body is not None:
            request.body = b""
            body.release()

    def _read_head(self, data: bytes | bytearray, start: int, stop: int) -> int:
        """Read up to the end of a head, and what is here of its body; return where the next bytes begin."""
        if not self.start_ns:
            turn = self._shared.turn
            self.start_ns = turn.came_ns(self.descriptor) if turn.since else turn.began_ns
        end = self._find_joint(data, start, stop) if self._tail else 0
        if not end:
            found = data.find(_END_OF_HEAD, start, stop)
            end = found + 4 if found >= 0 else 0
        is_whole = end and not self._head_bytes
        self._head_bytes += (end or stop) - start
        limit = self._shared.limits.header_bytes
        if self._head_bytes > limit:
            raise BadRequest(431, "http.header_bytes", f"request line and headers have more than {limit:,} bytes")
        if is_whole:
            self._head.read_whole(data, start, end)
            return self._begin_request(data, end, stop) if self._head.is_complete else end
        view = memoryview(data)[start : end or stop]
        self._head.feed(view)
        if not end:
            self._tail = (self._tail + view[-3:])[-3:]
            return stop
        self._tail = b""
        return self._begin_request(data, end, stop) if self._head.is_complete else end

    def _find_joint(self, data: bytes | bytearray, start: int, stop: int) -> int:
        """Return where a head ends whose end began in earlier bytes; 0 if it does not."""
        joint = self._tail + data[start : min(stop, start + 3)]
        found = joint.find(_END_OF_HEAD)
        return start + found + 4 - len(self._tail) if found >= 0 else 0

    def _begin_request(self, data: bytes | bytearray, start: int, stop: int) -> int:
        head, shared = self._head, self._shared
        self.closes = not head.keeps_alive
        self._request = request = Request(
            self._sends, head.method, head.path, head.query, head.headers, b"", self.start_ns
        )
        length = head.length
        self.found = self._admit(request)
        if length == 0:
            self.is_ready = True
            return start
        if 0 < length <= stop - start:
            self._take_whole(memoryview(data)[start : start + length])
            return start + length
        self._body = body = self._make_body()
        self.wants_continue = head.expects and start == stop
        if start < stop:
            start += body.take(memoryview(data)[start:stop])
            self.is_ready = body.is_complete
        if not self.is_ready:
            shared.turn.begun.add(self.descriptor)
        return start

    def _take_whole(self, body: memoryview) -> None:
        """Take a body of which all is here; that of a refused request is thrown away."""
        if not isinstance(self.found, Answer):
            self._body = WholeBody(self._shared.bodies, bytes(body))
        elif not self.closes:
            self._head.pass_over(body)
        self.is_ready = True

    def _admit(self, request: Request) -> Found | Answer:
        """Return what answers a request, or the answer that refuses it, before its body is read."""
        shared, length = self._shared, self._head.length
        if length > shared.limits.body_bytes:
            limit = shared.limits.body_bytes
            raise BadRequest(413, "http.body_size", f"the body has {length:,} bytes; at most {limit:,} are taken")
        if shared.token is not None and request.path not in _OPEN_PATHS and not _has_token(request, shared.token):
            reason = "the header Authorization: Bearer TOKEN is missing, or its token is not this server's"
            return error_answer(401, "http.token", reason, ("WWW-Authenticate", "Bearer"))
        found = shared.routes.find(request.method, request.path)
        if isinstance(found, Answer) or found.gate is None:
            return found
        try:
            return found.gate(request) or found
        except Exception as error:
            return defect(request, error)

    def _make_body(self) -> Body:
        """Return what receives the body; raises `BadRequest` where a refused one is not worth reading."""
        head, shared = self._head, self._shared
        if isinstance(self.found, Answer):
            if head.expects or not 0 < head.length <= _SKIPPED_BYTES:
                raise BadRequest.with_answer(self.found)
            return SkippedBody(head.length, shared.piece_view)
        if head.length < 0:
            return ChunkedBody(shared.bodies, shared.limits, shared.piece_view)
        shared.bodies.check(head.length)
        return SizedBody(shared.bodies, head.length)

    def _pass_over(self, body: Body) -> bytes | memoryview:
        """Return the body, and get the head's reader behind it."""
        view = body.view()
        if isinstance(body, ChunkedBody):
            self.closes = self.closes or body.is_last
        if not self.closes and isinstance(body, WholeBody | SizedBody):
            self._head.pass_over(view)
        elif not self.closes:
            self._head.pass_over_unseen()
        return view


def _has_token(request: Request, token: bytes) -> bool:
    scheme, _, given = request.header("authorization").partition(" ")
    return hmac.compare_digest(given.strip().encode(), token) and scheme.lower() == "bearer"


def defect(request: Request, error: Exception) -> Answer:
    """Return the answer for a handler or gate that raised, and log where."""
    logger.error("http.handler: %s %.200s ended with %r", request.method, request.path, error, exc_info=error)
    return error_answer(500, "http.handler", "the server failed at this request; see its log")
