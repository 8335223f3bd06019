"""A process beside a program that this one runs: knows which signals both were sent, and ends what outlives this process.

How this works: it is in the same process group, so what a terminal, `timeout` or a batch system sends to all of them reaches it
too, and it says so through a pipe; the kernel does not say whether others were sent the same. Its other pipe is open
as long as this process lives. When that closes, the program has been sent SIGTERM; if it still runs after `GRACE_SECONDS`, it
is killed. Whoever looks out is killed when the program has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable

#: That a program has to end, and to save its state, once this process was killed.
GRACE_SECONDS = 30.0
#: That a signal to all may reach this process before it is known here that it reached the other.
_LATE_SECONDS = 0.2

#: Of a Python without `site` and packages: 10 ms. The handler of C writes each signal's number; those of Python do nothing.
_CODE = """
import os, select, signal, sys
os.set_blocking(1, False)
signal.set_wakeup_fd(1, warn_on_full_buffer=False)
numbers = [int(one) for one in sys.argv[2:]]
for number in numbers:
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
program = os.pidfd_open(int(os.read(0, 20)))
os.read(0, 1)
if not select.select([program], [], [], float(sys.argv[1]))[0]:
    signal.pidfd_send_signal(program, signal.SIGKILL)
"""


class Lookout:
    """Looks out for signals to this process's group, and for the end of this process. Used by one thread."""

    def __init__(self, signals: Iterable[int]) -> None:
        """Start it, before the program; the calling thread blocks the signals, so that none is lost until it is ready."""
        self._seen: set[int] = set()
        words = [str(GRACE_SECONDS), *(str(int(one)) for one in signals)]
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # no process to be had: the program runs all the same
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def follow(self, program: int) -> None:
        """End the program with this process id if it outlives this process."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(str(program).encode())
                self._process.stdin.flush()

    def saw(self, number: int) -> bool:
        """Return whether the group was sent this signal, which has just reached this process."""
        if self._process is None or self._process.stdout is None:
            return False
        pipe = self._process.stdout.fileno()
        until = time.monotonic() + _LATE_SECONDS
        while number not in self._seen:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            numbers = os.read(pipe, 256) if ready else b""
            if not numbers:  # it was not, or nobody looks out any more
                return False
            self._seen.update(numbers)
        self._seen.remove(number)
        return True

    def close(self) -> None:
        """End it: the program has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
