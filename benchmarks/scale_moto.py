"""A moto server of SQS that gives a message to one receiver: moto's own finds and takes one without a lock, so two may have it.

    python -m benchmarks.scale_moto PORT

A real queue gives a message out twice now and then, and nothing can be counted by one that does it often.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from moto.server import main
from moto.sqs.models import SQSBackend

_lock = threading.Lock()
_receive = SQSBackend.receive_message


def receive_alone(
    self: SQSBackend, queue_name: str, count: int, wait_seconds_timeout: int, *others: Any, **named: Any
) -> list[Any]:
    """Return messages that no other call returns; the waiting is without the lock."""
    ends = time.monotonic() + (wait_seconds_timeout or 0)
    while True:
        with _lock:
            found = _receive(self, queue_name, count, 0, *others, **named)
        if found or time.monotonic() >= ends:
            return found
        self.get_queue(queue_name).wait_for_messages(1)


if __name__ == "__main__":
    SQSBackend.receive_message = receive_alone  # type: ignore[method-assign]
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
