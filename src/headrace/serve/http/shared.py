"""What the connections of one front share."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from headrace.base.clock import Clock
from headrace.serve.http.bodies import Bodies
from headrace.serve.http.deadlines import Deadlines
from headrace.serve.http.limits import Limits
from headrace.serve.http.request import Answer, Request
from headrace.serve.http.routes import Routes

#: What one call reads beside bodies. All connections use one such buffer, as one thread empties it at once.
PIECE_BYTES = 16 * 1024
_KEPT_BYTES = 64 * 1024 * 1024


class Shared:
    """Belongs to the front's thread; others use `post` alone.

    Attributes:
        piece: Where bytes are received that do not go into a body's own buffer.
        idle, reading, sending: Connections by what they do, with the deadlines of `Limits`.
        counts: How often what happened.
        outbox: Answers on their way to the front's thread.
    """

    def __init__(
        self, routes: Routes, limits: Limits, clock: Clock, token: str | None, wake: Callable[[], object]
    ) -> None:
        self.routes = routes
        self.limits = limits
        self.clock = clock
        self.authorization = None if token is None else f"Bearer {token}".encode()
        self.piece = bytearray(PIECE_BYTES)
        self.piece_view = memoryview(self.piece)
        self.bodies = Bodies(limits.total_bytes, _KEPT_BYTES)
        self.connections: set[Connected] = set()
        self.idle: Deadlines[Connected] = Deadlines(limits.idle_seconds)
        self.reading: Deadlines[Connected] = Deadlines(limits.request_seconds)
        self.sending: Deadlines[Connected] = Deadlines(limits.answer_seconds)
        self.counts: Counter[str] = Counter()
        self.outbox: deque[tuple[Connected, Request, Answer]] = deque()
        self.is_draining = False
        self._wake = wake
        self._is_woken = False

    def post(self, connection: Connected, request: Request, answer: Answer) -> None:
        """Bring an answer to the front's thread; any thread. Many answers wake it once."""
        self.outbox.append((connection, request, answer))
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def empty_outbox(self) -> None:
        """Hand the answers to their connections."""
        # In this order: who appends after the flag fell wakes the thread again, who did before is seen below.
        self._is_woken = False
        while self.outbox:
            connection, request, answer = self.outbox.popleft()
            connection.deliver(request, answer)


class Connected:
    """A connection, as its front sees it."""

    __slots__ = ()

    def deliver(self, request: Request, answer: Answer) -> None:
        """Send the answer of a request, if the request is still the one that waits."""
        raise NotImplementedError

    def cut_off(self) -> None:
        """Close at once: it was slow, or the front closes."""
        raise NotImplementedError
