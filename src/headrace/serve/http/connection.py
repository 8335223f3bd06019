"""One connection: receives a request, hands it over, sends its answer, and only then reads the next one.

How this works. A connection is in one of these states:

    HEAD       waits for a head, or for the rest of one
    BODY       receives the body, if its length is known straight into its own buffer
    HANDLING   a handler has the request
    SENDING    the client has not taken all of the answer yet
    LINGERING  all is said; what the client still sends is thrown away, so that it reads the answer rather than a reset
    CLOSED     nothing comes or goes any more

Everything here runs in the front's thread, except `answer`, which only posts. What comes while a request is being handled stays
in `_rest`, at most one piece; then reading stops. The end of a client's sending counts as its end: who half-closes gets what is
answered at once, nothing that takes longer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from enum import Enum, auto
from typing import cast

from headrace.serve.http.body import ChunkedBody, SizedBody
from headrace.serve.http.head import HeadReader
from headrace.serve.http.refusal import BadRequest
from headrace.serve.http.request import Answer, Request, error_answer
from headrace.serve.http.shared import Connected, Shared
from headrace.serve.http.wire import CONTINUE, has_body, head_bytes

logger = logging.getLogger("headrace")

#: Up to here, head and body go in one piece: copying is cheaper than another system call.
_JOINED_BYTES = 64 * 1024
_END_OF_HEAD = b"\r\n\r\n"
_OPEN_PATHS = {"/livez", "/readyz"}


class State(Enum):
    """What a connection does; see the module."""

    HEAD = auto()
    BODY = auto()
    HANDLING = auto()
    SENDING = auto()
    LINGERING = auto()
    CLOSED = auto()


class Connection(Connected, asyncio.BufferedProtocol):
    """See the module."""

    __slots__ = ("_body", "_closes", "_head", "_head_bytes", "_request", "_rest", "_shared", "_start_ns", "_state", "_tail",
                 "_transport")  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._head = HeadReader(shared.limits.header_lines)
        self._state = State.HEAD
        self._request: Request | None = None
        self._body: SizedBody | ChunkedBody | None = None
        self._rest = b""
        self._closes = False
        self._begin()

    def _begin(self) -> None:
        self._head_bytes = 0
        self._start_ns = 0
        self._tail = b""

    # --- Called by the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        shared = self._shared
        shared.connections.add(self)
        shared.idle.put(self, shared.clock.now_ns())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong."""
        if self._state is State.BODY and self._body is not None:
            return self._body.room()
        return self._shared.piece_view

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that have come."""
        if self._state is State.BODY and self._body is not None:
            try:
                self._body.received(nbytes)
            except BadRequest as refusal:
                self._refuse(refusal)
                return
            if self._body.is_complete:
                self._hand_over()
        elif self._state is State.HEAD:
            self._read(self._shared.piece, nbytes)
        elif self._state in (State.HANDLING, State.SENDING):
            self._keep(bytes(self._shared.piece_view[:nbytes]))

    def eof_received(self) -> bool:
        """Close: whoever stops sending is gone."""
        return False

    def resume_writing(self) -> None:
        """Go on: the client has taken all of its answer."""
        if self._state is State.SENDING:
            self._end_answer()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and tell the handler."""
        self._state = State.CLOSED
        shared = self._shared
        shared.connections.discard(self)
        for deadlines in (shared.idle, shared.reading, shared.sending):
            deadlines.drop(self)
        request = self._request
        if request is not None:
            shared.counts["gone"] += 1
            request.is_gone = True
            if request.on_gone is not None:
                _call(request.on_gone)
        self._forget_request()

    # --- Reading ---

    def _read(self, data: bytes | bytearray, stop: int) -> None:
        """Read requests from `data[:stop]` until one has to wait for its answer."""
        start = 0
        try:
            while start < stop and self._state is State.HEAD:
                start = self._read_head(data, start, stop)
        except BadRequest as refusal:
            self._refuse(refusal)
            return
        if start < stop and self._state in (State.HANDLING, State.SENDING):
            self._keep(bytes(data[start:stop]))

    def _keep(self, rest: bytes) -> None:
        self._rest += rest
        self._transport.pause_reading()

    def _read_head(self, data: bytes | bytearray, start: int, stop: int) -> int:
        """Read up to the end of a head, and what is here of its body; return where the next bytes begin."""
        if not self._start_ns:
            self._start_reading()
        end = self._find_end(data, start, stop)
        limit = self._shared.limits.header_bytes
        self._head_bytes += (end or stop) - start
        if self._head_bytes > limit:
            raise BadRequest(431, "http.header_bytes", f"request line and headers have more than {limit:,} bytes")
        view = memoryview(data)[start : end or stop]
        self._head.feed(view)
        if not end:
            self._tail = (self._tail + view[-3:])[-3:]
            return stop
        self._tail = b""
        return self._begin_body(data, end, stop) if self._head.is_complete else end

    def _start_reading(self) -> None:
        shared = self._shared
        self._start_ns = shared.clock.now_ns()
        shared.idle.drop(self)
        shared.reading.put(self, self._start_ns)

    def _find_end(self, data: bytes | bytearray, start: int, stop: int) -> int:
        """Return where the head ends, also if that end began in earlier bytes; 0 if it is not here."""
        if self._tail:
            joint = self._tail + data[start : min(stop, start + 3)]
            found = joint.find(_END_OF_HEAD)
            if found >= 0:
                return start + found + 4 - len(self._tail)
        found = data.find(_END_OF_HEAD, start, stop)
        return found + 4 if found >= 0 else 0

    def _begin_body(self, data: bytes | bytearray, start: int, stop: int) -> int:
        head, shared = self._head, self._shared
        if not head.keeps_alive:
            self._closes = True
        self._admit()
        if head.length == 0:
            self._hand_over()
            return start
        body: SizedBody | ChunkedBody
        if head.length < 0:
            body = ChunkedBody(shared.bodies, shared.limits, shared.piece_view)
        else:
            body = SizedBody(shared.bodies, head.length)
        self._body = body
        self._state = State.BODY
        if start < stop:
            # A copy of what chunks were received with: the body's parser may receive into the same piece.
            start += body.take(memoryview(data)[start:stop])
            if body.is_complete:
                self._hand_over()
        elif head.expects:
            self._transport.write(CONTINUE)
        return start

    def _admit(self) -> None:
        """Raise `BadRequest` for what is refused before its body is read."""
        head, shared = self._head, self._shared
        limit = shared.limits.body_bytes
        if head.length > limit:
            raise BadRequest(413, "http.body_size", f"the body has {head.length:,} bytes; at most {limit:,} are taken")
        if shared.authorization is not None and head.path not in _OPEN_PATHS:
            given = head.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, shared.authorization):
                raise BadRequest(
                    401, "http.token", "the bearer token is missing or wrong", ("WWW-Authenticate", "Bearer")
                )

    # --- Handling and answering ---

    def _hand_over(self) -> None:
        head, shared, body = self._head, self._shared, self._body
        shared.reading.drop(self)
        shared.counts["requests"] += 1
        view: bytes | memoryview = b""
        if body is not None:
            view = body.view()
            self._closes = self._closes or body.is_last
            self._pass_over(body)
        request = Request(self, head.method, head.path, head.query, head.headers, view, self._start_ns)
        self._request = request
        self._state = State.HANDLING
        self._head.clear()
        self._begin()
        try:
            answer = shared.routes.answer(request)
        except Exception as error:
            answer = _defect(request, error)
        if answer is not None and request.claim():
            self.deliver(request, answer)

    def _pass_over(self, body: SizedBody | ChunkedBody) -> None:
        if self._closes:
            return
        if isinstance(body, SizedBody):
            self._head.skip_body(body.view())
        else:
            self._head.restart()

    def answer(self, request: Request, answer: Answer) -> None:
        """Send the answer to a request; any thread."""
        self._shared.post(self, request, answer)

    def deliver(self, request: Request, answer: Answer) -> None:
        """Send the answer of a request, if the request is still the one that waits."""
        if request is not self._request:
            return
        self._request = None
        was_waiting = self._state is State.HANDLING
        self._send(answer, request.method)
        request.body = b""
        if self._state is State.HANDLING:
            self._end_answer()
        if was_waiting:
            self._go_on()

    def _send(self, answer: Answer, method: str) -> None:
        shared, transport = self._shared, self._transport
        self._closes = self._closes or answer.closes or shared.is_draining
        try:
            head = head_bytes(answer, closes=self._closes)
        except ValueError as error:
            logger.error("http.answer: %s; the client gets 500", error)
            answer = error_answer(500, "http.answer", "the answer cannot be sent; see the log of the server")
            head = head_bytes(answer, closes=self._closes)
        shared.counts[f"{answer.status // 100}xx"] += 1
        body = answer.body if has_body(answer, method) else b""
        if len(body) <= _JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        if transport.get_write_buffer_size():
            self._state = State.SENDING
            shared.sending.put(self, shared.clock.now_ns())

    def _end_answer(self) -> None:
        shared = self._shared
        shared.sending.drop(self)
        self._forget_request()
        if self._closes:
            self._close()
            return
        self._state = State.HEAD
        shared.idle.put(self, shared.clock.now_ns())

    def _forget_request(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.body = b""
        body, self._body = self._body, None
        if body is not None:
            body.release()

    def _go_on(self) -> None:
        """Read what came while the last request was being answered."""
        if self._rest and self._state is State.HEAD:
            rest, self._rest = self._rest, b""
            self._transport.resume_reading()
            self._read(rest, len(rest))

    def _refuse(self, refusal: BadRequest) -> None:
        self._shared.counts[refusal.code] += 1
        self._closes = True
        self._send(refusal.answer, "")
        self._forget_request()
        self._linger()

    def _linger(self) -> None:
        self._state = State.LINGERING
        shared = self._shared
        shared.reading.drop(self)
        shared.sending.put(self, shared.clock.now_ns())
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        self._state = State.CLOSED
        self._transport.close()

    def cut_off(self) -> None:
        """Close at once: it was slow, or the front closes."""
        self._transport.abort()


def _defect(request: Request, error: Exception) -> Answer:
    logger.error("http.handler: %s %.200s ended with %r", request.method, request.path, error, exc_info=error)
    return error_answer(500, "http.handler", "the server failed at this request; see its log")


def _call(function: object) -> None:
    try:
        cast("type[object]", function)()
    except Exception as error:
        logger.error("http.on_gone: a handler's on_gone ended with %r", error, exc_info=error)
