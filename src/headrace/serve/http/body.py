"""The body of one request while it comes."""

from __future__ import annotations

from mmap import mmap

import httptools

from headrace.serve.http.bodies import Bodies
from headrace.serve.http.limits import Limits
from headrace.serve.http.refusal import BadRequest


class SizedBody:
    """A body of known length, received straight into a buffer of the pool.

    Attributes:
        is_complete: All of it is here.
        is_last: Nothing can be read from the connection afterwards.
    """

    __slots__ = ("_bodies", "_buffer", "_counted", "_filled", "_view", "is_complete", "is_last")

    def __init__(self, bodies: Bodies, length: int) -> None:
        bodies.check(length)
        self._bodies = bodies
        self._buffer: mmap | None = bodies.take(length)
        self._view = memoryview(self._buffer)[:length]
        self._filled = 0
        self._counted = 0
        self.is_complete = False
        self.is_last = False

    def room(self) -> memoryview:
        """Return where the next bytes belong."""
        return self._view[self._filled :]

    def received(self, num_bytes: int) -> None:
        """Note bytes that stand in `room`; raises `BadRequest`."""
        self._bodies.count(num_bytes)
        self._filled += num_bytes
        self.is_complete = self._filled == len(self._view)

    def take(self, data: memoryview) -> int:
        """Copy what belongs to the body; return how many bytes that was."""
        num_bytes = min(len(data), len(self._view) - self._filled)
        self._view[self._filled : self._filled + num_bytes] = data[:num_bytes]
        self.received(num_bytes)
        return num_bytes

    def view(self) -> memoryview:
        """Return the whole body."""
        return self._view

    def release(self) -> None:
        """Give the buffer back; only the first call counts."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._bodies.used_bytes -= self._filled
            self._view = memoryview(b"")
            self._bodies.give(buffer)


class ChunkedBody:
    """A body in chunks, of which nobody knows the length before; llhttp reads them.

    Attributes:
        is_complete: All of it is here.
        is_last: More came behind its end. It cannot be found again, so the connection ends with the answer.
    """

    __slots__ = ("_bodies", "_body", "_limits", "_num_raw", "_overhead", "_parser", "_piece", "is_complete", "is_last")

    def __init__(self, bodies: Bodies, limits: Limits, piece: memoryview) -> None:
        self._bodies = bodies
        self._limits = limits
        self._piece = piece
        self._body = bytearray()
        self._num_raw = 0
        self._overhead = 0
        self.is_complete = False
        self.is_last = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")

    def room(self) -> memoryview:
        """Return where the next bytes belong."""
        return self._piece

    def received(self, num_bytes: int) -> None:
        """Read bytes that stand in `room`; raises `BadRequest`."""
        self.take(self._piece[:num_bytes])

    def take(self, data: memoryview) -> int:
        """Read bytes; return how many that was: all. Raises `BadRequest`."""
        before = len(self._body)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if not self.is_last:
                raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            if not self.is_complete:
                raise BadRequest(
                    400, "http.chunks", f"the body is not in chunks as HTTP/1.1 wants them: {error}"
                ) from None
            self.is_last = True
        self._check(len(data), len(self._body) - before)
        return len(data)

    def _check(self, num_raw: int, num_bytes: int) -> None:
        # What is no body (sizes, extensions, trailers) is limited, too: as much as a head may have between two bytes of body,
        # and in all no more than a body.
        self._num_raw += num_raw
        self._overhead = 0 if num_bytes else self._overhead + num_raw
        if self._num_raw > self._limits.body_bytes:
            raise BadRequest(
                413, "http.body_size", f"the body and its chunks have more than {self._limits.body_bytes:,} bytes"
            )
        if self._overhead > self._limits.header_bytes:
            raise BadRequest(
                400, "http.chunks", f"{self._overhead:,} bytes of extensions or trailers without one of the body"
            )

    def view(self) -> memoryview:
        """Return the whole body."""
        return memoryview(self._body)

    def release(self) -> None:
        """Forget the body; only the first call counts."""
        self._bodies.used_bytes -= len(self._body)
        self._body = bytearray()

    # --- Called by the parser ---

    def on_body(self, data: bytes) -> None:
        """Take bytes of the body."""
        self._bodies.count(len(data))
        self._body += data

    def on_message_begin(self) -> None:
        """Stop at a second message."""
        if self.is_complete:
            self.is_last = True
            raise BadRequest(400, "http.chunks", "never sent")

    def on_message_complete(self) -> None:
        """Note the end."""
        self.is_complete = True
