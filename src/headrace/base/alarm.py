"""A timer that an epoll sees, to the microsecond.

The time limit of `epoll.poll` itself is rounded up to a whole millisecond, half the time of a short emulated stage.
"""

from __future__ import annotations

import ctypes
import os
import select
import time

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC  # which the TFD_ constants are on every Linux
_ABSOLUTE = 1


class _TimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class Alarm:
    """One timer, at which the epoll has an event until it is set again or switched off.

    From Python 3.13 on, `os.timerfd_create` would do.

    Attributes:
        descriptor: Of the timer.

    Raises:
        OSError: If the system gives no timer, here and in `set`.
    """

    def __init__(self, epoll: select.epoll) -> None:
        # PyDLL keeps the GIL: letting go of it and waiting for it again would cost more than these calls.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self.descriptor = _check(self._libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
        self._at_ns: int | None = None
        try:
            self.move(epoll)
        except BaseException:
            self.close()
            raise

    def set(self, at_ns: int | None) -> None:
        """Set the timer to a time (ns of CLOCK_MONOTONIC), or switch it off (None)."""
        if at_ns == self._at_ns:
            return
        spec = _TimerSpec(0, 0, *divmod(max(at_ns, 1), 10**9)) if at_ns is not None else _TimerSpec()
        _check(self._libc.timerfd_settime(self.descriptor, _ABSOLUTE, ctypes.byref(spec), None))
        self._at_ns = at_ns

    def move(self, epoll: select.epoll) -> None:
        """Have the events in another epoll."""
        epoll.register(self.descriptor, select.EPOLLIN)

    def close(self) -> None:
        """Give the timer back."""
        os.close(self.descriptor)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
