"""Where threads wait until another one calls them, like `threading.Condition` without a lock made for each wait.

How this works: each thread has one lock of its own, which it holds. To wait, it adds this lock to the list, gives up the
guard, and takes its own lock a second time, which blocks. Who calls it takes it off the list and releases its lock. Both
happen under the guard, so a call cannot fall between a look and the wait that follows. A thread waits in one place at a time,
so one lock is enough for all its waits. A signal handler that raises in the main thread, as for Ctrl-C, ends a wait in order.

A thread that must wait elsewhere, because it carries calls, leaves a bell in the list instead, which is rung where a thread
would be woken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_ONCE = (True,)


class _Own(threading.local):
    """The lock of each thread, which it holds but for the moment in which it is called."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


_own = _Own()


class Bell:
    """What a thread leaves where it cannot wait itself.

    Args:
        ring: Called with the guard held, so it is to be short.
    """

    __slots__ = ("release",)

    def __init__(self, ring: Callable[[], object]) -> None:
        self.release = ring  # by the name that a lock has, so that who calls need not tell them apart


class Parking:
    """Threads that wait for something; every method is called with the guard held. Not for signal handlers.

    Args:
        guard: The lock that guards what they wait for; several places may share it.

    Attributes:
        parked: Locks and bells of those that wait and that nobody has called, for who only asks whether there are any.
        num_called: Threads that were called, and bells that were rung, whose owners have not come to look yet.
    """

    def __init__(self, guard: threading.Lock) -> None:
        self._guard = guard
        self.parked: deque[threading.Lock | Bell] = deque()
        self._left: set[Bell] = set()
        self.num_called = 0

    def __len__(self) -> int:
        """Return how many threads wait that nobody has called, with the bells that were left."""
        return len(self.parked)

    def wait(self, seconds: float | None = None) -> bool:
        """Give up the guard until called, take it again, and return whether somebody called.

        Args:
            seconds: Wait no longer than this, >= 0; None: until called.
        """
        lock, is_called = _own.lock, False
        self.parked.append(lock)
        self._guard.release()
        try:
            is_called = lock.acquire(timeout=-1 if seconds is None else seconds)
        finally:
            try:
                self._take_guard()
            finally:
                if not is_called and lock in self.parked:
                    self.parked.remove(lock)
                else:
                    if not is_called:  # the call came just after the time was over, or just before a handler raised
                        lock.acquire(blocking=False)
                        is_called = True
                    self.num_called -= 1
        return is_called

    def _take_guard(self) -> None:
        """Take the guard, and only then raise what a signal handler raised meanwhile: who called is to give it up."""
        taken: list[bool] = []
        try:
            # In one step of the interpreter: between two of them a handler may raise, and nobody would know if it is taken.
            taken.extend(map(self._guard.acquire, _ONCE))
        except BaseException:
            if not taken:
                self._take_guard()
            raise

    def leave(self, bell: Bell) -> None:
        """Have a bell rung once instead of a thread woken; its owner comes for it before it leaves it again."""
        self._left.add(bell)
        self.parked.append(bell)

    def come(self, bell: Bell) -> None:
        """Take back a bell, rung or not; does nothing if it was not left."""
        if bell not in self._left:
            return
        self._left.remove(bell)
        if bell in self.parked:
            self.parked.remove(bell)
        else:
            self.num_called -= 1

    def call(self, most: int = 1) -> None:
        """Wake this many threads, or as many as wait; those that have waited longest first."""
        parked = self.parked
        while most > 0 and parked:
            self.num_called += 1
            parked.popleft().release()
            most -= 1

    def call_all(self) -> None:
        """Wake every thread that waits."""
        self.call(len(self.parked))
