"""Programs that run beside a pipeline and are no part of it: a server, other tenants of the machine.

They are not children of this process, so that no account of what the run used has them in it, and they end when the pipe that
is their standard input does, so that they cannot outlive it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType

_START_SECONDS = 30.0
#: The shell ends at once, and its child has no parent left to be counted with. Background commands would read /dev/null.
_LEAVE_BEHIND = 'exec 3<&0; "$@" <&3 3<&- &'
_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(flush=True)
while True:
    pass
"""


class OutsideProgram:
    """Runs a Python program outside for the length of a `with` block.

    Args:
        arguments: Of the interpreter.
        message: Sent to the program's standard input when it starts.

    Attributes:
        answer: The first line that it printed.
    """

    def __init__(self, *arguments: str, message: bytes = b"") -> None:
        self._command = ["/bin/sh", "-c", _LEAVE_BEHIND, "sh", sys.executable, *arguments]
        self._message = message
        self.answer = b""

    def __enter__(self) -> OutsideProgram:
        self._shell = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        late = threading.Timer(_START_SECONDS, self._close_input)
        late.start()
        with contextlib.suppress(BrokenPipeError):  # it has ended; that it gives no answer is told below
            self._send(self._message)
        self.answer = self._shell.stdout.readline() if self._shell.stdout else b""
        late.cancel()
        if not self.answer:
            self.__exit__(None, None, None)
            raise RuntimeError(
                "a program to run beside the pipeline ended before it was ready; what it printed says why"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_input()
        if self._shell.stdout is not None:
            self._shell.stdout.read()  # until it has ended
            self._shell.stdout.close()
        self._shell.wait()

    def _send(self, message: bytes) -> None:
        if self._shell.stdin is not None:
            self._shell.stdin.write(message)
            self._shell.stdin.flush()

    def _close_input(self) -> None:
        if self._shell.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._shell.stdin.close()


@contextlib.contextmanager
def busy_programs(number: int) -> Iterator[None]:
    """Run so many programs that keep a core busy each."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(OutsideProgram("-S", "-c", _BUSY))
        yield
