"""Asks the system's resolver for the addresses of a host, with the time limit that it does not have itself.

How this works: each look-up has a thread of its own, because `getaddrinfo` cannot be interrupted. One that hangs keeps its
thread until the system gives up, so only `_MOST_LOOK_UPS` may run at a time in this process.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable

from headrace.base.address_ranges import Address
from headrace.base.network_rules import parse_addresses

#: Look-ups at a time.
_MOST_LOOK_UPS = 128
_places = threading.BoundedSemaphore(_MOST_LOOK_UPS)

#: What a look-up found: addresses, perhaps none, or why there are none.
Answer = tuple[Address, ...] | Exception


class Unresolved(Exception):
    """The name has no address for now."""


def look_up(host: str, port: int, seconds: float) -> tuple[Address, ...]:
    """Return every address of a host.

    Raises:
        Unresolved: If there is none, or none in time, or no thread to wait for it.
    """
    answer: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    seconds = max(seconds, 0.001)
    if not _places.acquire(timeout=seconds):
        raise too_many_hang()
    _start(host, port, answer.put)
    try:
        return addresses_of(answer.get(timeout=seconds))
    except queue.Empty:
        raise too_slow(seconds) from None


def begin_look_up(host: str, port: int, answer: Callable[[Answer], object]) -> bool:
    """Look a host up in another thread, which calls `answer`; return False if as many as may are under way.

    Raises:
        Unresolved: If no thread can be started.
    """
    if not _places.acquire(blocking=False):
        return False
    _start(host, port, answer)
    return True


def addresses_of(answer: Answer) -> tuple[Address, ...]:
    """Return the addresses that were found; raises Unresolved if there are none."""
    if isinstance(answer, Exception):
        why = answer.strerror if isinstance(answer, OSError) else str(answer) or type(answer).__name__
        raise Unresolved(f"its name cannot be resolved: {why}") from answer
    if not answer:
        raise Unresolved("its name cannot be resolved: no address")
    return answer


def too_many_hang() -> Unresolved:
    """Return the end of a look-up that did not begin in time."""
    return Unresolved(f"its name was not looked up: {_MOST_LOOK_UPS} others hang")


def too_slow(seconds: float) -> Unresolved:
    """Return the end of a look-up that had no answer within its time."""
    return Unresolved(f"its name was not resolved within {seconds:g} s")


def _start(host: str, port: int, answer: Callable[[Answer], object]) -> None:
    def ask() -> None:
        try:
            rows = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
            found: Answer = parse_addresses(str(row[4][0]) for row in rows)
        except Exception as error:  # also no memory: whoever waits is to know
            found = error
        finally:
            _places.release()
        answer(found)

    try:
        threading.Thread(target=ask, name="headrace-lookup", daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        # The thread that gives the place back does not exist: without this, a shortage of threads would end all look-ups.
        _places.release()
        raise Unresolved(f"its name was not looked up: {error}") from error
