"""Carries many calls in one thread.

How this works: one thread begins calls and waits for those that end; it alone calls the carrier, except for `wake`. A call
runs up to its next wait at once, in that thread. What calls wait for meets in one epoll: a timer for the pauses, and an
eventfd, which `wake` and the threads of name look-ups ring. The bell is rung only while the thread waits, or is about to:
`wake` sets its mark first and looks at `_is_waiting` after, the thread does it the other way round, so that one sees the other.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.base.calls import Call, LookUp, Pause, Wait
from headrace.base.current_job import Worked, hands
from headrace.base.deadline import limit_to_deadline
from headrace.base.names_awaited import NamesAwaited
from headrace.base.pauses import Pauses
from headrace.base.records import Job


@dataclass(frozen=True, slots=True)
class Ended:
    """How one call ended."""

    token: Any
    """As given to `begin`."""
    value: Any
    """What it returned; None if it raised."""
    error: BaseException | None
    """What it raised."""
    ended_ns: int
    """When, on the host's monotonic clock."""


class Carried(Protocol):
    """What a stage's callable offers as its attribute `carried` if one thread can carry many of its calls."""

    def call(self, job: Job, value: Any) -> Call[Any]:
        """Return a call that does what the callable does with this value."""
        ...

    def carrier(self) -> Carrier:
        """Return a carrier for such calls; whoever asks closes it."""
        ...


_no_limit = contextlib.nullcontext()


@dataclass(slots=True, eq=False)
class _UnderWay:
    """One call that has begun."""

    call: Call[Any]
    token: Any
    deadline_ns: int | None
    items: Sequence[Worked]
    wait: Wait | None = None


class Carrier:
    """Drives the calls of one thread; only `wake` may be called from another.

    Attributes:
        num_under_way: Calls that have begun and not ended.
    """

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._bell_lock = threading.Lock()
        self._pauses: Pauses[_UnderWay] = Pauses(self._epoll)
        self._names: NamesAwaited[_UnderWay] = NamesAwaited(self._ring)
        self._calls: dict[Any, _UnderWay] = {}
        self._ended: list[Ended] = []
        self._is_waiting = False
        self._is_woken = False

    @property
    def num_under_way(self) -> int:
        """Calls that have begun and not ended."""
        return len(self._calls)

    def begin(self, call: Call[Any], token: Any, deadline_ns: int | None = None, items: Sequence[Worked] = ()) -> None:
        """Run a call up to its first wait; the next `wait` tells if it has ended there.

        Args:
            call: Not begun yet.
            token: Names the call; hashable, and not that of another call under way.
            deadline_ns: When its job is no longer wanted (ns of the host's monotonic clock); None: no deadline.
            items: What `current_jobs` tells while the call runs.
        """
        self._calls[token] = under_way = _UnderWay(call, token, deadline_ns, items)
        self._resume(under_way, None)

    def wait(self, seconds: float | None) -> list[Ended]:
        """Return the calls that have ended; waits for one, for `wake`, or for the time to be over.

        Args:
            seconds: At most; None: without limit.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        is_over = False
        while True:
            self._is_waiting = True
            # Looked at once even if calls have ended already: else those would keep the others from moving.
            self._poll(0.0 if self._ended or self._is_woken or is_over else self._limit(until))
            self._is_waiting = False
            self._resume_ready()
            if self._ended or self._is_woken or is_over:
                break
            is_over = time.monotonic() >= until
        self._is_woken = False
        ended, self._ended = self._ended, []
        return ended

    def wake(self) -> None:
        """End the `wait` under way, or else the next one; any thread."""
        if not self._is_woken:
            self._is_woken = True
            self._ring()

    def cancel(self, token: Any) -> None:
        """End a call without an answer, so that it puts away what it has; one that has ended already is let be."""
        under_way = self._calls.pop(token, None)
        if under_way is None:
            return
        self._forget(under_way)
        with contextlib.suppress(Exception):  # how its job ends is decided already, and others are to be cancelled, too
            under_way.call.close()

    def close(self) -> None:
        """Cancel what is under way and give everything back."""
        for token in list(self._calls):
            self.cancel(token)
        with self._bell_lock:
            self._is_waiting = False
        self._pauses.close()
        self._epoll.close()
        os.close(self._bell)

    def _ring(self) -> None:
        # A look-up may end after the carrier is closed: its descriptor is perhaps another's by then.
        with self._bell_lock:
            if self._is_waiting:
                os.eventfd_write(self._bell, 1)

    def _limit(self, until: float) -> float | None:
        """Return the seconds for which nothing is to be done unless something happens; None: without limit."""
        if self._names.has_answers:
            return 0.0
        self._pauses.set_alarm()
        now = time.monotonic()
        due = min(until, self._names.due_at(now))
        return None if due == math.inf else max(due - now, 0.0)

    def _poll(self, seconds: float | None) -> None:
        for descriptor, _ in self._epoll.poll(seconds):
            if descriptor == self._bell:
                os.eventfd_read(self._bell)

    def _resume_ready(self) -> None:
        for under_way in self._pauses.take(time.monotonic_ns()):
            self._resume(under_way, None)
        for under_way, found in self._names.take(time.monotonic()):
            self._resume(under_way, found)

    def _resume(self, under_way: _UnderWay, answer: Any) -> None:
        """Run a call on with an answer, or with an exception that is thrown into it."""
        hands.items = under_way.items
        try:
            with _no_limit if under_way.deadline_ns is None else limit_to_deadline(under_way.deadline_ns):
                wait = under_way.call.throw(answer) if isinstance(answer, Exception) else under_way.call.send(answer)
                self._await(under_way, wait)
        except StopIteration as ended:
            self._end(under_way, ended.value, None)
        except BaseException as error:
            self._end(under_way, None, error)
        finally:
            hands.items = ()
            answer = None  # else an exception and its traceback, which holds this frame, would be a circle

    def _await(self, under_way: _UnderWay, wait: Wait) -> None:
        under_way.wait = wait
        if isinstance(wait, Pause):
            self._pauses.add(under_way, time.monotonic_ns() + int(wait.seconds * 1e9))
        elif isinstance(wait, LookUp):
            self._names.add(under_way, wait, time.monotonic())
        else:
            raise TypeError(f"a call waits for {wait!r}; expected Pause, LookUp or Transfer")

    def _end(self, under_way: _UnderWay, value: Any, error: BaseException | None) -> None:
        del self._calls[under_way.token]
        self._ended.append(Ended(under_way.token, value, error, time.monotonic_ns()))

    def _forget(self, under_way: _UnderWay) -> None:
        """Let nothing resume a call any more."""
        if isinstance(under_way.wait, Pause):
            self._pauses.forget(under_way)
        elif isinstance(under_way.wait, LookUp):
            self._names.forget(under_way)
