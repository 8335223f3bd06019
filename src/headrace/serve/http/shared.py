"""What the connections of one front share."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from email.utils import formatdate
from itertools import islice
from typing import Protocol

from headrace.base.clock import Clock
from headrace.serve.http.bodies import Bodies
from headrace.serve.http.deadlines import Deadlines
from headrace.serve.http.head import KnownHeads
from headrace.serve.http.limits import Limits
from headrace.serve.http.request import Answer, Request, class_of
from headrace.serve.http.routes import Routes
from headrace.serve.http.turns import Turn

logger = logging.getLogger("headrace")

#: What one call receives where there is no body's own buffer. One thread empties it at once, so all connections use the same.
PIECE_BYTES = 16 * 1024
#: Buffers that wait for the next body.
_KEPT_BYTES = 64 * 1024 * 1024
#: Connections that are closed, for each kind of deadline, before others are served again: thousands that are idle would be
#: so at the same time.
CLOSED_AT_ONCE = 16
#: Between two such portions the front's thread sleeps, so that other threads get at the interpreter: while one is busy without
#: a pause, each of the others waits 5 ms for every turn. Where connections are later than this there is no time for that, and
#: a portion is so many times as large.
_PAUSE_SECONDS, _LATE_SECONDS, _LATE_TIMES = 0.001, 0.3, 3


class Connected(Protocol):
    """A connection, as its front sees it."""

    def deliver(self, request: Request, answer: Answer, left: bytes | None = None) -> None:
        """Send the answer of a request, or what is left of it, if the request is still the one that waits for it."""
        ...

    def time_out(self, kind: str) -> None:
        """Close, as a deadline of this kind has passed: `idle`, `reading` or `sending`."""
        ...

    def close_idle(self) -> None:
        """Close at once, and let the client know before anything else is done."""
        ...

    def cut_off(self) -> None:
        """Close at once."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun."""
        ...

    @property
    def has_unread(self) -> bool:
        """Whether something has come that waits for its turn to be read."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether all is answered and nothing more will be."""
        ...


class Shared:
    """Belongs to the front's thread; others call `post` alone.

    Attributes:
        piece: Where bytes are received that do not go into a body's own buffer.
        idle, reading, sending: Deadlines of connections, by what these do. A connection that goes on may stay in `idle`; it is
            asked when its time is up.
        counts: How often what happened.
        date: The header `Date`.
        turn: Of the loop.
        known_heads: What heads said that come again and again.
        is_unheard: An answer was sent of which the front's thread does not know yet.
        num_waiting: Requests that wait for their answers.
        is_draining: Each connection ends with its next answer.
    """

    def __init__(
        self, routes: Routes, limits: Limits, clock: Clock, token: str | None, wake: Callable[[], object]
    ) -> None:
        self.routes = routes
        self.limits = limits
        self.clock = clock
        self.token = None if token is None else token.encode()
        self.piece = bytearray(PIECE_BYTES)
        self.piece_view = memoryview(self.piece)
        self.bodies = Bodies(limits.total_bytes, _KEPT_BYTES)
        self.connections: set[Connected] = set()
        self.idle: Deadlines[Connected] = Deadlines(limits.idle_seconds)
        self.reading: Deadlines[Connected] = Deadlines(limits.request_seconds)
        self.sending: Deadlines[Connected] = Deadlines(limits.answer_seconds)
        self.counts: Counter[str] = Counter()
        self.date = ""
        self.turn = Turn(clock)
        self.known_heads = KnownHeads()
        self.is_unheard = False
        self.num_waiting = 0
        self.is_draining = False
        self._outbox: deque[tuple[Connected, Request, Answer, bytes | None]] = deque()
        self._wake = wake
        self._is_woken = False

    def post(self, connection: Connected, request: Request, answer: Answer, left: bytes | None = None) -> None:
        """Bring an answer to the front's thread; any thread. Many answers wake it once.

        `left` is what was not sent of it; None: all of it. Where nothing is left the thread hears of it when it wakes anyway.
        """
        self._outbox.append((connection, request, answer, left))
        if left == b"":
            self.is_unheard = True
        else:
            self._wake_once()

    def hear_soon(self) -> None:
        """Give the answers to their connections in the loop's next turn, if any were sent that the thread has not heard of."""
        if self.is_unheard:
            self._wake_once()

    def _wake_once(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def empty_outbox(self) -> None:
        """Give the answers to their connections."""
        # In this order: an answer that is appended after this line wakes the thread again, an earlier one is seen below.
        self._is_woken = self.is_unheard = False
        outbox = self._outbox
        while outbox:
            connection, request, answer, left = outbox.popleft()
            try:
                connection.deliver(request, answer, left)
            except Exception as error:  # the other answers are not to suffer
                logger.error("http.answer: an answer could not be sent: %r", error, exc_info=error)
                connection.cut_off()

    def count(self) -> dict[str, int]:
        """Return the counts, with the answers that were sent and that the front's thread has not heard of; any thread."""
        counts = Counter(dict(self.counts))
        counts.update(class_of(answer) for *_, answer, left in self._outbox.copy() if left is not None)
        return counts

    def forget(self, connection: Connected) -> None:
        """Forget a connection that is closed."""
        self.connections.discard(connection)
        for deadlines in (self.idle, self.reading, self.sending):
            deadlines.drop(connection)

    def tick(self, now_ns: int) -> float | None:
        """Close connections whose time is up; return after how many seconds to go on with others, None where there are none."""
        self.empty_outbox()
        self.date = f"Date: {formatdate(self.clock.unix_seconds(), usegmt=True)}\r\n"
        lines = {"idle": self.idle, "reading": self.reading, "sending": self.sending}
        is_late = max(line.lateness_ns(now_ns) for line in lines.values()) > _LATE_SECONDS * 1e9
        portion = CLOSED_AT_ONCE * (_LATE_TIMES if is_late else 1)
        if max(self._close(kind, line, now_ns, portion) for kind, line in lines.items()) < portion:
            return None
        return 0.0 if is_late else _PAUSE_SECONDS

    def _close(self, kind: str, deadlines: Deadlines[Connected], now_ns: int, portion: int) -> int:
        num = 0
        for connection in islice(deadlines.pop_passed(now_ns), portion):
            num += 1
            if kind != "idle" or (connection.is_idle and not self._spare(connection)):
                connection.time_out(kind)
        return num

    def _spare(self, connection: Connected) -> bool:
        """Leave an idle connection open if its client's next request is here already; return whether it is.

        That request waits for its turn, and closing would throw it away: the client would get no answer, and could not know
        whether it was done.
        """
        if not connection.has_unread:
            return False
        self.counts["spared.idle"] += 1
        self.idle.put(connection, self.clock.now_ns())
        return True

    def close_oldest_idle(self) -> bool:
        """Close the connection that has been idle longest; return whether one was found."""
        self.empty_outbox()
        num_spared = 0
        for connection in self.idle.pop_all():
            if not connection.is_idle:
                continue
            if not self._spare(connection):
                self.counts["closed_for_another"] += 1
                connection.close_idle()
                return True
            num_spared += 1
            if num_spared == CLOSED_AT_ONCE:  # those that are spared are in the line again
                break
        return False
