"""Carries many calls in one thread.

How this works: one thread begins calls and waits for those that end; it alone calls the carrier, except for `wake`. A call
runs up to its next wait at once, in that thread. What calls wait for meets in one epoll: a timer for the pauses, and an
eventfd, which `wake` and the threads of name look-ups ring. The bell is rung only while the thread waits, or is about to:
`wake` sets its mark first and looks at `_is_waiting` after, the thread does it the other way round, so that one sees the other.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import select
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.base.aside import Aside
from headrace.base.calls import Call, InThread, LookUp, Pause, Transfer, Wait
from headrace.base.current_job import Worked, hands
from headrace.base.deadline import limit_to_deadline, note_deadline
from headrace.base.names_awaited import NamesAwaited
from headrace.base.pauses import Pauses
from headrace.base.records import Job
from headrace.base.sockets import Sockets

if TYPE_CHECKING:
    from headrace.base.transfers import Transfers


class Ended:
    """How one call ended.

    Attributes:
        token: As given to `begin`.
        value: What it returned; None if it raised.
        error: What it raised.
        ended_ns: When, on the host's monotonic clock.
    """

    __slots__ = ("ended_ns", "error", "token", "value")

    token: Any
    value: Any
    error: BaseException | None
    ended_ns: int


#: What a stage's callable offers as its attribute `carried` if one thread can carry many of its calls: returns a call that does
#: what the callable does with this value of a job.
Carried = Callable[[Job, Any], Call[Any]]


class _UnderWay(Ended):
    """One call that has begun, and then how it ended: one object for both."""

    __slots__ = ("call", "deadline_ns", "items", "payer", "wait")

    def __init__(
        self, call: Call[Any], token: Any, deadline_ns: int | None, items: Sequence[Worked], payer: Any
    ) -> None:
        self.call = call
        self.token = token
        self.deadline_ns = deadline_ns
        self.items = items
        self.payer = payer
        self.wait: Wait | None = None


class Carrier:
    """Drives the calls of one thread; only `wake` may be called from another.

    Attributes:
        num_under_way: Calls that have begun and not ended.
        at_work: What `current_jobs` tells of the call that runs now; any thread may look.
        charge: Called with the payer of a call when the thread begins to work for it, and with None when it waits; None: nobody
            asks now what calls cost.
    """

    def __init__(self) -> None:
        self.at_work: Sequence[Worked] = ()
        self.charge: Callable[[Any], object] | None = None
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._bell_lock = threading.Lock()
        self._pauses: Pauses[_UnderWay] = Pauses(self._epoll)
        self._names: NamesAwaited[_UnderWay] = NamesAwaited(self._ring)
        self._aside: Aside[_UnderWay] = Aside(self._ring)
        self._sockets: Sockets[Transfers[_UnderWay]] = Sockets(self._epoll)
        self._transfers: dict[Hashable, Transfers[_UnderWay]] = {}
        self._calls: dict[Any, _UnderWay] = {}
        self._ended: list[Ended] = []
        self._is_waiting = False
        self._is_woken = False

    @property
    def num_under_way(self) -> int:
        """Calls that have begun and not ended."""
        return len(self._calls)

    def begin(
        self,
        call: Call[Any],
        token: Any,
        deadline_ns: int | None = None,
        items: Sequence[Worked] = (),
        payer: Any = None,
    ) -> None:
        """Run a call up to its first wait; the next `wait` tells if it has ended there.

        Args:
            call: Not begun yet.
            token: Names the call; hashable, and not that of another call under way.
            deadline_ns: When its job is no longer wanted (ns of the host's monotonic clock); None: no deadline.
            items: What `current_jobs` tells while the call runs.
            payer: Who is charged for what the call costs; calls that share connections have the same.
        """
        self._calls[token] = under_way = _UnderWay(call, token, deadline_ns, items, payer)
        self._resume(under_way, None)

    def advance(self) -> None:
        """Do what is due without waiting, such as sending the requests that have begun."""
        self._resume_ready()

    def wait(self, seconds: float | None) -> list[Ended]:
        """Return the calls that have ended; waits for one, for `wake`, or for the time to be over.

        Args:
            seconds: At most; None: without limit.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        has_looked = False
        while True:
            self._resume_ready()
            # Looked at once even if calls have ended already: else those would keep the others from moving.
            if has_looked and (self._ended or self._is_woken or time.monotonic() >= until):
                break
            self._is_waiting = True
            self._poll(self._limit(until))
            self._is_waiting = False
            has_looked = True
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
        # How its job ends is decided already, whatever a user's code raises, and others are to be cancelled, too.
        with contextlib.suppress(BaseException):
            under_way.call.close()

    def close(self) -> None:
        """Cancel what is under way and give everything back; more than once is as good as once."""
        if self._epoll.closed:
            return
        for token in list(self._calls):
            self.cancel(token)
        with self._bell_lock:
            self._is_waiting = False
        for transfers in self._transfers.values():
            transfers.close()
        self._aside.close()
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
        if self._pauses.has_any:
            self._pauses.set_alarm()
        now = time.monotonic()
        due = min(until, self._names.due_at(now)) if self._names.has_any else until
        for transfers in self._transfers.values():
            due = min(due, transfers.find_due(now))
        if self._ended or self._is_woken or self._names.has_answers or self._aside.has_ended:
            return 0.0
        return None if due == math.inf else max(due - now, 0.0)

    def _poll(self, seconds: float | None) -> None:
        """Wait for events, and let libcurl do what they allow."""
        moved: dict[Transfers[_UnderWay], None] = {}
        latest: Transfers[_UnderWay] | None = None
        find_owner = self._sockets.owners.get
        charge = self.charge
        if charge is not None:
            charge(None)
        for descriptor, events in self._epoll.poll(seconds):
            owner = find_owner(descriptor)
            if owner is not None:
                if owner is not latest:  # many in a row are for the same one
                    if charge is not None:
                        charge(owner.payer)
                    latest = owner
                    moved[owner] = None
                owner.act(descriptor, events)
            elif descriptor == self._bell:
                os.eventfd_read(self._bell)
            elif descriptor != self._pauses.descriptor:
                self._sockets.drop(descriptor)
        for transfers in moved:
            self._resume_ended(transfers)
        if self._sockets.has_strays:
            with contextlib.suppress(OSError):  # what is short now may be there at the next event of the stray
                self._renew_epoll()

    def _renew_epoll(self) -> None:
        fresh = select.epoll()
        try:
            fresh.register(self._bell, select.EPOLLIN)
            self._pauses.move(fresh)
        except OSError:
            fresh.close()
            raise
        self._epoll.close()
        self._epoll = fresh
        self._sockets.move(fresh)

    def _resume_ready(self) -> None:
        """Run on the calls whose waits are over without an event of a socket."""
        if self._pauses.has_any:
            for under_way in self._pauses.take(time.monotonic_ns()):
                self._resume(under_way, None)
        if self._aside.has_ended:
            for under_way, value, error in self._aside.take():
                if under_way.wait is not None:  # not cancelled
                    self._resume(under_way, value, error)
        now = time.monotonic()
        if self._names.has_any:
            for under_way, found in self._names.take(now):
                self._resume(under_way, *((None, found) if isinstance(found, Exception) else (found,)))
        for transfers in list(self._transfers.values()):
            if transfers.due_at <= now:
                if self.charge is not None:
                    self.charge(transfers.payer)
                transfers.act_on_time(now)
                self._resume_ended(transfers)

    def _resume_ended(self, transfers: Transfers[_UnderWay]) -> None:
        for under_way, error in transfers.take_ended():
            self._resume(under_way, None, error)

    def _resume(self, under_way: _UnderWay, answer: Any, error: BaseException | None = None) -> None:
        """Run a call on to its next wait, with the answer to the last one, or with what that one failed with."""
        hands.items = self.at_work = under_way.items
        if self.charge is not None:
            self.charge(under_way.payer)
        has_limit = under_way.deadline_ns is not None
        if has_limit:
            note_deadline(under_way.deadline_ns)
        try:
            while True:
                wait = under_way.call.send(answer) if error is None else under_way.call.throw(error)
                try:
                    if type(wait) is Transfer and (transfers := self._transfers.get(wait.connections)) is not None:
                        transfers.begin(under_way, wait)  # nearly always
                        under_way.wait = wait
                    else:
                        self._await(under_way, wait)
                except Exception as failed:
                    error = failed
                else:
                    break
        except StopIteration as ended:
            self._end(under_way, ended.value, None)
        except BaseException as raised:
            self._end(under_way, None, raised)
        finally:
            if has_limit:
                note_deadline(None)
            hands.items = self.at_work = ()

    def _await(self, under_way: _UnderWay, wait: Wait) -> None:
        if isinstance(wait, Transfer):
            transfers = self._transfers.get(wait.connections)
            if transfers is None:
                transfers = self._make_transfers(wait.connections, under_way.payer)
            transfers.begin(under_way, wait)
        elif isinstance(wait, Pause):
            self._pauses.add(under_way, time.monotonic_ns() + int(wait.seconds * 1e9))
        elif isinstance(wait, LookUp):
            self._names.add(under_way, wait, time.monotonic())
        elif isinstance(wait, InThread):
            self._aside.run(under_way, functools.partial(_call_noted, wait.function, under_way))
        else:
            raise TypeError(f"a call waits for {wait!r}; expected Transfer, Pause, LookUp or InThread")
        under_way.wait = wait

    def _make_transfers(self, connections: Hashable, payer: Any) -> Transfers[_UnderWay]:
        from headrace.base.transfers import Transfers  # not needed by who only pauses

        made = self._transfers[connections] = Transfers(self._sockets, payer)
        return made

    def _end(self, under_way: _UnderWay, value: Any, error: BaseException | None) -> None:
        del self._calls[under_way.token]
        under_way.value = value
        under_way.error = error
        under_way.ended_ns = time.monotonic_ns()
        self._ended.append(under_way)

    def _forget(self, under_way: _UnderWay) -> None:
        """Let nothing resume a call any more."""
        wait, under_way.wait = under_way.wait, None
        if isinstance(wait, Transfer):
            self._transfers[wait.connections].cancel(wait)
        elif isinstance(wait, Pause):
            self._pauses.forget(under_way)
        elif isinstance(wait, LookUp):
            self._names.forget(under_way)


def _call_noted(function: Callable[[], Any], under_way: _UnderWay) -> Any:
    """Call a function in another thread with what its call knows of its job."""
    hands.items = under_way.items
    try:
        with contextlib.nullcontext() if under_way.deadline_ns is None else limit_to_deadline(under_way.deadline_ns):
            return function()
    finally:
        hands.items = ()
