"""The body of one request while it comes."""

from __future__ import annotations

from mmap import mmap
from typing import Protocol

import httptools

from headrace.serve.http.bodies import Bodies
from headrace.serve.http.limits import Limits
from headrace.serve.http.refusal import BadRequest


class Body(Protocol):
    """What a connection does with a body; all but `release` and `view` raise `BadRequest` where the body is at fault."""

    @property
    def is_complete(self) -> bool:
        """Whether all of it is here."""
        ...

    def room(self) -> memoryview:
        """Return where the next bytes belong, never empty before the end."""
        ...

    def received(self, num_bytes: int) -> None:
        """Take bytes that stand in `room`."""
        ...

    def take(self, data: memoryview) -> int:
        """Take what belongs to the body from bytes received before; return how many bytes that was."""
        ...

    def view(self) -> bytes | memoryview:
        """Return the whole body."""
        ...

    def release(self) -> None:
        """Give memory back; only the first call counts."""
        ...


class SizedBody:
    """A body of known length, received straight into a buffer of the pool."""

    __slots__ = ("_bodies", "_buffer", "_filled", "_view", "is_complete")

    def __init__(self, bodies: Bodies, length: int) -> None:
        self._bodies = bodies
        self._buffer: mmap | None = bodies.take(length)
        self._view = memoryview(self._buffer)[:length]
        self._filled = 0
        self.is_complete = False

    def room(self) -> memoryview:
        """Return the rest of the buffer."""
        return self._view[self._filled :]

    def received(self, num_bytes: int) -> None:
        """Note bytes that stand in `room`."""
        self._bodies.count(num_bytes)
        self._filled += num_bytes
        self.is_complete = self._filled == len(self._view)

    def take(self, data: memoryview) -> int:
        """Copy what belongs to the body."""
        num_bytes = min(len(data), len(self._view) - self._filled)
        self._view[self._filled : self._filled + num_bytes] = data[:num_bytes]
        self.received(num_bytes)
        return num_bytes

    def view(self) -> memoryview:
        """Return the whole body."""
        return self._view

    def release(self) -> None:
        """Give the buffer back."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._bodies.used_bytes -= self._filled
            self._view = memoryview(b"")
            self._bodies.give(buffer)


class WholeBody:
    """A body that came together with its head, as most small ones do: copied once, it lives as long as somebody has it."""

    __slots__ = ("_bodies", "_data")

    is_complete = True

    def __init__(self, bodies: Bodies, data: bytes) -> None:
        bodies.count(len(data))
        self._bodies = bodies
        self._data = data

    def room(self) -> memoryview:
        """Return a place for what cannot come."""
        return memoryview(b"")

    def received(self, num_bytes: int) -> None:
        """Do nothing: all of it is here."""

    def take(self, data: memoryview) -> int:
        """Take nothing: all of it is here."""
        return 0

    def view(self) -> bytes:
        """Return the whole body."""
        return self._data

    def release(self) -> None:
        """Forget the body."""
        self._bodies.used_bytes -= len(self._data)
        self._data = b""


class SkippedBody:
    """The body of a request that is refused: it is thrown away, so that the connection can go on."""

    __slots__ = ("_left", "_piece")

    def __init__(self, length: int, piece: memoryview) -> None:
        self._left = length
        self._piece = piece

    @property
    def is_complete(self) -> bool:
        """Whether all of it has come."""
        return self._left == 0

    def room(self) -> memoryview:
        """Return a place for what is thrown away."""
        return self._piece[: self._left]

    def received(self, num_bytes: int) -> None:
        """Count."""
        self._left -= num_bytes

    def take(self, data: memoryview) -> int:
        """Count what belongs to the body."""
        num_bytes = min(len(data), self._left)
        self._left -= num_bytes
        return num_bytes

    def view(self) -> memoryview:
        """Return nothing."""
        return memoryview(b"")

    def release(self) -> None:
        """Do nothing."""


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
        """Return the piece that all connections receive into."""
        return self._piece

    def received(self, num_bytes: int) -> None:
        """Read bytes that stand in `room`."""
        self.take(self._piece[:num_bytes])

    def take(self, data: memoryview) -> int:
        """Read all of the bytes."""
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
        if self._overhead > self._limits.header_bytes:
            raise BadRequest(
                400, "http.chunks", f"{self._overhead:,} bytes of extensions or trailers without one of the body"
            )
        if self._num_raw > self._limits.body_bytes:
            raise BadRequest(
                413, "http.body_size", f"the body and its chunks have more than {self._limits.body_bytes:,} bytes"
            )

    def view(self) -> memoryview:
        """Return the whole body."""
        return memoryview(self._body)

    def release(self) -> None:
        """Forget the body."""
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
