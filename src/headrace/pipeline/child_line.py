"""The line to one child process: messages with a limit on the wait for them, and the end of the child.

A pipe alone tells neither. What a child forked (a helper of multiprocessing, the workers of a loader) keeps the child's side
open when it dies, so its end is watched for by itself. And a child that is stopped in the midst of a message (SIGSTOP, a
frozen cgroup) keeps whoever reads or writes it for ever, so both give up where nothing moves for as long as the limit.
"""

from __future__ import annotations

import os
import socket
import struct
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

_SIDES = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)


class ChildLine:
    """The parent's side; one thread.

    Args:
        connection: To the child; given over.
        process: The child, started.
        limit_seconds: For how long a message may stand still halfway; None: for ever.
    """

    def __init__(self, connection: Connection, process: BaseProcess, limit_seconds: float | None) -> None:
        self._connection = connection
        self._process = process
        if limit_seconds is not None:
            _limit_calls(connection.fileno(), limit_seconds)
        # Last: nobody could give it back if the limit cannot be set.
        self._end = watch_for_end(process.pid or 0)

    def send(self, message: bytes) -> bool:
        """Send a message; return False if the child does not take it within the limit.

        Raises:
            OSError: If the child is gone.
        """
        try:
            self._connection.send_bytes(message)
        except BlockingIOError:
            return False
        return True

    def receive(self, limit: float | None) -> bytes | None:
        """Return the next message; None if it does not begin within a limit (seconds), or stands still.

        Raises:
            EOFError: If the child has ended.
            OSError: If the line broke.
        """
        connection = self._connection
        ready = wait([connection] if self._end is None else [connection, self._end], limit)
        if not ready:
            return None
        if connection not in ready and not connection.poll():  # what it said last is heard
            raise EOFError
        try:
            return connection.recv_bytes()
        except BlockingIOError:
            return None

    def hang_up(self) -> None:
        """Let the child know that no more comes."""
        self._connection.close()

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the child has ended, for so long at most."""
        wait([self._process.sentinel if self._end is None else self._end], seconds)

    def close(self) -> None:
        """Give everything back."""
        self.hang_up()
        end, self._end = self._end, None
        if end is not None:
            os.close(end)


def watch_for_end(process_id: int) -> int | None:
    """Return a descriptor that is ready once a process has ended; None where the system gives none."""
    try:
        return os.pidfd_open(process_id)
    except (AttributeError, OSError):
        return None


def _limit_calls(descriptor: int, seconds: float) -> None:
    """Let no read or write of a socket take longer."""
    whole = min(int(seconds), 1 << 31)
    interval = struct.pack("ll", whole, max(1, int((seconds - whole) * 1e6)) if seconds < 1 << 31 else 0)
    with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as same:
        same.setblocking(True)  # whatever a user has made the default of new sockets
        for side in _SIDES:
            same.setsockopt(socket.SOL_SOCKET, side, interval)
