"""One connection: receives a request, hands it over, sends its answer, and only then reads the next one.

How this works. A connection is in one of these states:

    READING    waits for a request, or for the rest of one
    HANDLING   a handler has the request
    SENDING    the client has not taken all of the answer yet
    LINGERING  all is said; what the client still sends is thrown away, so that it reads the answer rather than a reset
    CLOSED     nothing comes or goes any more

Everything here runs in the front's thread, except `answer`. That posts; but where nobody else waits for an answer, it sends it
itself first, as waking the front for that would take longer than the sending. The front hears of it when anybody sends
something, or with its next tick. What comes while a request is being handled stays in `_rest`, at most one piece; then reading
stops. The end of a client's sending counts as its end: a client that half-closes gets what is answered at once, nothing that
takes longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import socket
import termios
from enum import Enum, auto
from typing import cast

from headrace.serve.http.reading import RequestReader, defect
from headrace.serve.http.refusal import BadRequest
from headrace.serve.http.request import Answer, Request, class_of, error_answer
from headrace.serve.http.routes import Found
from headrace.serve.http.shared import Shared
from headrace.serve.http.wire import BODILESS, CONTINUE, head_bytes

logger = logging.getLogger("headrace")

#: Up to here, head and body go in one piece: copying is cheaper than another system call.
_JOINED_BYTES = 64 * 1024
#: What the kernel says of a connection from which nothing can be read.
_NO_BYTES = bytes(4)


class State(Enum):
    """What a connection does; see the module."""

    READING = auto()
    HANDLING = auto()
    SENDING = auto()
    LINGERING = auto()
    CLOSED = auto()


# Looked up for every request: names of the module are found faster than members.
READING, HANDLING, SENDING, LINGERING, CLOSED = State


class Connection(asyncio.BufferedProtocol):
    """See the module."""

    __slots__ = (
        "_closes",
        "_is_plain",
        "_is_timed",
        "_old_at_ns",
        "_reader",
        "_request",
        "_rest",
        "_shared",
        "_state",
        "_transport",
    )

    _transport: asyncio.Transport

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reader = RequestReader(shared, self)
        self._state = READING
        self._request: Request | None = None
        self._rest = b""
        self._closes = False
        self._is_plain = False
        self._is_timed = False
        self._old_at_ns: int | None = None

    # --- Called by the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        shared = self._shared
        if (own := transport.get_extra_info("socket")) is not None:
            self._reader.descriptor = own.fileno()
            self._is_plain = transport.get_extra_info("sslcontext") is None
        shared.connections.add(self)
        now_ns = shared.clock.now_ns()
        shared.idle.put(self, now_ns)
        if (most := shared.limits.connection_seconds) is not None:
            self._old_at_ns = now_ns + round(most * 1e9 * random.uniform(0.75, 1.25))  # not all at once

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong."""
        if self._state is HANDLING:
            self._hear_answer()
        elif self._shared.is_unheard:
            self._shared.empty_outbox()
        return self._reader.room() if self._state is READING else self._shared.piece_view

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that have come."""
        shared = self._shared
        if self._state is not READING:
            self._keep(bytes(shared.piece_view[:nbytes]))
            if self._state is HANDLING:  # whoever sent the answer meanwhile may not have seen that more came
                self._hear_answer()
            return
        try:
            reader = self._reader
            used = reader.received(nbytes)
            if not reader.is_ready and not self._is_timed and reader.is_amid_body:
                self._read_at_once()
            if reader.is_ready:
                self._hand_over()
            if used < nbytes or reader.start_ns:  # more came, or the rest of a request is awaited
                self._read(shared.piece, used, nbytes)
        except BadRequest as refusal:
            self._refuse(refusal)

    def eof_received(self) -> bool:
        """Close: a client that stops sending is gone."""
        return False

    def resume_writing(self) -> None:
        """Go on: the client has taken all of its answer."""
        if self._state is SENDING:
            self._shared.sending.drop(self)
            self._end_answer()
            if self._rest:
                self._read_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and let the handler know."""
        if self._state is HANDLING:
            self._hear_answer()
        was_waiting, self._state = self._state is HANDLING, CLOSED
        shared, request = self._shared, self._request
        shared.forget(self)
        shared.bodies.used_bytes -= len(self._rest)
        if was_waiting and request is not None:
            shared.num_waiting -= 1
            shared.counts["gone"] += 1
            _note_gone(request)
        self._request = None
        self._reader.close()

    # --- Called by the front ---

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun."""
        return self._state is READING and not self._reader.start_ns

    @property
    def has_unread(self) -> bool:
        """Whether something has come that waits for its turn to be read."""
        try:
            num_bytes = fcntl.ioctl(self._reader.descriptor, termios.FIONREAD, _NO_BYTES)
        except OSError:  # it is closed
            return False
        return num_bytes != _NO_BYTES

    @property
    def is_over(self) -> bool:
        """Whether all is answered and nothing more will be."""
        return self._state is LINGERING or self._state is CLOSED

    def time_out(self, kind: str) -> None:
        """Close, as a deadline of this kind has passed: `idle`, `reading` or `sending`."""
        self._shared.counts[f"cut_off.{kind}"] += 1
        if kind == "idle":
            self.close_idle()
            return
        if kind == "sending":
            self.cut_off()
            return
        seconds = self._shared.limits.request_seconds
        self._closes = True
        self._forget_request()
        self._send(error_answer(408, "http.slow", f"the request took longer than {seconds:g} s to come"), "")
        self._close()

    def close_idle(self) -> None:
        """Close at once, and let the client know before anything else is done.

        The socket itself is closed in the loop's next turn only, and a request that came until then would be lost.
        """
        if (own := self._transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):  # the client was first
                own.shutdown(socket.SHUT_WR)
        self.cut_off()

    def cut_off(self) -> None:
        """Close at once."""
        self._transport.abort()

    # --- Reading ---

    def _read(self, data: bytes | bytearray, start: int, stop: int) -> None:
        """Read requests from `data[start:stop]` until one has to wait; raises `BadRequest`."""
        reader = self._reader
        while start < stop and self._state is READING:
            start = reader.read(data, start, stop)
            if reader.is_ready:
                self._hand_over()
        if start < stop:
            self._keep(bytes(memoryview(data)[start:stop]))
            if self._state is HANDLING:
                self._hear_answer_soon()
        if self._state is READING and reader.start_ns and not self._is_timed:
            self._is_timed = True
            self._shared.reading.put(self, reader.start_ns)
        if reader.wants_continue:
            reader.wants_continue = False
            self._transport.write(CONTINUE)

    def _read_at_once(self) -> None:
        """Take what of a body is here beside its beginning: in the loop's next turn others would be before it."""
        if not self._is_plain:
            return
        with contextlib.suppress(OSError):  # nothing is, or the loop is about to hear what happened
            if num_bytes := os.readv(self._reader.descriptor, [self._reader.room()]):
                self._reader.received(num_bytes)

    def _keep(self, rest: bytes) -> None:
        """Keep what came too early, and read no more."""
        if self.is_over:
            return
        try:
            self._shared.bodies.count(len(rest))
        except BadRequest:  # there is no room: the client sends it again, over another connection
            self._closes = True
        else:
            self._rest += rest
        self._transport.pause_reading()

    def _read_rest(self) -> None:
        """Read what came while the last request was being answered."""
        if self._state is not READING:
            return
        rest, self._rest = self._rest, b""
        self._shared.bodies.used_bytes -= len(rest)
        self._transport.resume_reading()
        try:
            self._read(rest, 0, len(rest))
        except BadRequest as refusal:
            self._refuse(refusal)

    # --- Handling and answering ---

    def _hand_over(self) -> None:
        """Give the request to its handler."""
        shared, reader = self._shared, self._reader
        shared.counts["requests"] += 1
        if self._is_timed:
            shared.reading.drop(self)
            self._is_timed = False
        self._request = request = reader.finish()
        self._closes = self._closes or reader.closes
        self._state = HANDLING
        shared.num_waiting += 1
        found = reader.found
        answer = found if isinstance(found, Answer) else _handle(found, request)
        if answer is not None and request.claim():
            self._answer_now(request, answer)

    def answer(self, request: Request, answer: Answer) -> None:
        """Send the answer to a request; any thread."""
        shared = self._shared
        if shared.num_waiting != 1 or not self._is_plain:
            shared.post(self, request, answer)
            return
        with request.lock:  # meanwhile the connection is not lost, nor its descriptor given to another
            shared.post(self, request, answer, self._send_at_once(request, answer))

    def deliver(self, request: Request, answer: Answer, left: bytes | None = None) -> None:
        """Send the answer of a request, or what is left of it, if the request is still the one that waits for it."""
        if request is self._request and self._state is HANDLING:
            self._answer_now(request, answer, left)
            if self._rest:
                self._read_rest()

    def _send_at_once(self, request: Request, answer: Answer) -> bytes | None:
        """Send an answer beside the front's thread; return what the client did not take.

        None where the front is to send all of it: what ends the connection, or is not simple.
        """
        if request.is_gone or self._rest or self._ends_with(answer) or self._transport.get_write_buffer_size():
            return None
        if len(answer.body) > _JOINED_BYTES:
            return None
        try:
            data = b"".join(self._as_bytes(answer, request.method))
            num_sent = os.write(self._reader.descriptor, data)
        except Exception:  # whatever it is: the front meets the same and says so, or it is over by then
            return None
        return data[num_sent:]

    def _hear_answer(self) -> None:
        """Note that the request was answered, if another thread has sent the answer; it has the lock meanwhile."""
        if (request := self._request) is not None:
            with request.lock:
                pass
            self._shared.empty_outbox()

    def _hear_answer_soon(self) -> None:
        """Do the same in the loop's next turn: who reads here may have been called for an answer, and would be again."""
        if (request := self._request) is not None:
            with request.lock:
                pass
            self._shared.hear_soon()

    def _answer_now(self, request: Request, answer: Answer, left: bytes | None = None) -> None:
        self._shared.num_waiting -= 1
        self._forget_request()
        if left is None:
            self._send(answer, request.method)
        else:
            self._shared.counts[class_of(answer)] += 1
            self._transport.write(left)
        if self._transport.get_write_buffer_size():
            self._state = SENDING
            self._shared.sending.put(self, self._shared.clock.now_ns())
        else:
            self._end_answer()

    def _send(self, answer: Answer, method: str) -> None:
        transport = self._transport
        self._closes = self._ends_with(answer)
        try:
            head, body = self._as_bytes(answer, method)
        except (AttributeError, TypeError, ValueError) as error:
            logger.error("http.answer: the client gets 500 instead of an answer that cannot be sent: %r", error)
            answer = error_answer(500, "http.answer", "the server's answer cannot be sent; see its log")
            head, body = self._as_bytes(answer, method)
        self._shared.counts[class_of(answer)] += 1
        if len(body) <= _JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def _ends_with(self, answer: Answer) -> bool:
        """Return whether the connection ends with an answer."""
        if self._closes or self._shared.is_draining or answer.closes:
            return True
        return self._old_at_ns is not None and self._shared.clock.now_ns() > self._old_at_ns

    def _as_bytes(self, answer: Answer, method: str) -> tuple[bytes, bytes]:
        """Return head and body; raises what `head_bytes` does."""
        head = head_bytes(answer, self._shared.date, closes=self._closes)
        return head, b"" if method == "HEAD" or answer.status in BODILESS else answer.body

    def _end_answer(self) -> None:
        """Close, or be ready to read on: the client has its answer."""
        if self._transport.is_closing():
            self._state = CLOSED
        elif not self._closes:
            self._state = READING
            self._shared.idle.put(self, self._shared.clock.now_ns())
        elif self._transport.is_reading():
            self._close()
        else:
            self._linger()

    def _forget_request(self) -> None:
        self._request = None
        self._reader.forget_request()

    def _refuse(self, refusal: BadRequest) -> None:
        """Answer a request that is not read to its end."""
        self._shared.counts[refusal.code] += 1
        self._closes = True
        self._forget_request()
        self._send(refusal.answer, "")
        self._linger()

    def _linger(self) -> None:
        """Say nothing more, and throw away what comes, until the client closes or its time is up."""
        self._state = LINGERING
        shared = self._shared
        shared.reading.drop(self)
        shared.sending.put(self, shared.clock.now_ns())
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        """Close once all is sent."""
        self._state = CLOSED
        if self._transport.get_write_buffer_size():
            self._shared.sending.put(self, self._shared.clock.now_ns())
        self._transport.close()


def _handle(found: Found, request: Request) -> Answer | None:
    try:
        answer = found.handler(request, **found.places)
        if answer is None or isinstance(answer, Answer):
            return answer
        raise TypeError(f"the handler returned {answer!r:.100}; expected an Answer or None")
    except Exception as error:
        return defect(request, error)


def _note_gone(request: Request) -> None:
    try:
        request.note_gone()
    except Exception as error:
        logger.error(
            "http.on_gone: what hears that %.200s's client went, raised %r", request.path, error, exc_info=error
        )
